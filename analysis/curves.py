"""``python -m analysis curves --rows base full grpo_n8 --out docs/curves.png``: validation pass@1 over the steps of training.

One panel per pair and receiver, one line per row of a table's spec: the mean over the training seeds on record, with a band from
the lowest to the highest seed. Every line beside it is in a CSV of the same name.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.collect import match, model_of, open_runs
from analysis.seeds import pairs_of
from analysis.spec import RowSpec, TableSpec, load_spec
from experiments.files import write_atomic
from experiments.run_record import RunRecord, UserError, read_jsonl

PROJECT = Path(__file__).resolve().parent.parent
COLORS = ("#1b6ca8", "#d1495b", "#6a994e", "#8d6b94", "#e09f3e", "#444444")
CSV_COLUMNS = ("pair", "receiver", "row", "seed", "step", "pass@1", "run")


@dataclass(frozen=True)
class Curve:
    """One run's validation average of one receiver: pass@1 [points] at ``steps`` [points]."""

    pair: str
    receiver: str
    row: str
    seed: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    run: str


def curve_points(record: RunRecord, receiver: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(steps, average pass@1) of validation.jsonl. UserError when there are none or a step is there twice."""
    model = (model_of(record, receiver) or {})["name"]
    file = record.path / "validation.jsonl"
    rows = [r for r in read_jsonl(file) if r["model"] == model and r["benchmark"] == "average"]
    steps = tuple(r["step"] for r in rows)
    if not steps or len(set(steps)) != len(steps):
        raise UserError(f"{file}: {len(steps)} validation averages of {model} at {len(set(steps))} steps; one per step is needed")
    return steps, tuple(r["pass@1"] for r in rows)


def curves(spec: TableSpec, rows: Sequence[RowSpec], records: Sequence[RunRecord], scale: str) -> list[Curve]:
    """All finished training runs of the rows, by pair, receiver, row and seed."""
    seeds = sorted({r.config["cell"]["seed"] for r in records if r.config["cell"]["scale"] == scale})
    found = []
    for pair, receivers in sorted(pairs_of(records, scale).items()):
        for receiver in receivers:
            for row in rows:
                for seed in seeds:
                    wanted = {"method": row.method, "deviations": dict(row.deviations), "scale": scale, "seed": seed}
                    run = match(records, wanted, pair=pair, receiver=receiver).done
                    if run is not None:
                        found.append(Curve(pair, receiver, row.slug, seed, *curve_points(run, receiver), run.path.name))
    if not found:
        raise UserError(f"no finished run of {', '.join(r.slug for r in rows)} at scale={scale} for the pairs of {spec.name}")
    return found


def band(lines: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(steps, mean, lowest, highest) over the seeds, at the steps that every seed has."""
    common = sorted(set.intersection(*(set(c.steps) for c in lines)))
    values = np.array([[dict(zip(c.steps, c.values, strict=True))[s] for s in common] for c in lines])
    return np.array(common), values.mean(0), values.min(0), values.max(0)


def draw(found: Sequence[Curve], labels: Mapping[str, str], path: Path) -> None:
    """The picture, written aside and renamed; the format follows the suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((c.pair, c.receiver) for c in found))
    rows = list(dict.fromkeys(c.row for c in found))
    across = min(len(panels), 3)
    figure, axes = pyplot.subplots(
        -(-len(panels) // across), across, figsize=(3.6 * across, 2.7 * -(-len(panels) // across)), squeeze=False, sharey=True
    )
    # Column by column: a pair's two receivers stand below each other where there are two rows of panels.
    places = axes.T.flat if len(panels) > 3 else axes.flat
    for ax, (pair, receiver) in zip(places, panels, strict=False):
        for color, row in zip(COLORS, rows, strict=False):
            lines = [c for c in found if (c.pair, c.receiver, c.row) == (pair, receiver, row)]
            if lines:
                steps, mean, low, high = band(lines)
                ax.plot(steps, 100 * mean, color=color, label=f"{labels[row]} ({len(lines)} seeds)", linewidth=1.8)
                ax.fill_between(steps, 100 * low, 100 * high, color=color, alpha=0.15, linewidth=0)
        ax.set_title(f"pair {pair}: {receiver}", fontsize=9)
        ax.set_xlabel("step", fontsize=8)
        ax.set_ylabel("validation pass@1, %", fontsize=8)
        ax.tick_params(labelsize=8)
        ax.grid(alpha=0.25)
    axes.flat[0].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    image = io.BytesIO()
    figure.savefig(image, dpi=130, format=path.suffix.lstrip("."), metadata={"Software": None} if path.suffix == ".png" else None)
    pyplot.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(image.getvalue())
    aside.replace(path)


def to_csv(found: Sequence[Curve]) -> str:
    """One line per point, with the run that it comes from."""
    out = io.StringIO()
    writer: Any = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for c in found:
        writer.writerows((c.pair, c.receiver, c.row, c.seed, s, v, c.run) for s, v in zip(c.steps, c.values, strict=True))
    return out.getvalue()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis curves", description=__doc__)
    parser.add_argument("--table", default="table2", help="the spec whose rows are drawn (default: table2)")
    parser.add_argument("--rows", nargs="+", default=["grpo_n8", "full"], help="row slugs of the spec")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--experiment", default="paper")
    parser.add_argument("--out", type=Path, required=True, help="a .png, .pdf or .svg file")
    parser.add_argument("--specs", type=Path, default=PROJECT / "paper_tables/specs")
    args = parser.parse_args(argv)
    if args.out.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"--out {args.out}: give a file that ends in .png, .pdf or .svg")
    spec = load_spec(args.table, args.specs)
    by_slug = {row.slug: row for row in spec.rows}
    if unknown := [slug for slug in args.rows if slug not in by_slug]:
        raise UserError(f"{args.table} has no row {', '.join(unknown)}; it has {', '.join(by_slug)}")
    chosen = [by_slug[slug] for slug in args.rows]
    found = curves(spec, chosen, open_runs(args.root / args.experiment), args.scale)
    draw(found, {row.slug: row.label for row in chosen}, args.out)
    write_atomic(args.out.with_suffix(".csv"), to_csv(found))
    print(f"wrote {args.out} and {args.out.with_suffix('.csv')}", file=sys.stderr)
    return 0
