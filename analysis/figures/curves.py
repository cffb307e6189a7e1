"""Figure 4: validation pass@1 over the steps of training, a star at the selected checkpoint, a panel per pair and receiver.

``python -m analysis curves --rows base full grpo_n8 --out docs/curves.png`` draws the same panels over training seeds, for any rows of
a table's spec: the mean over the seeds on record, with a band from the lowest to the highest.
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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.collect import match, model_of, open_runs
from analysis.compute import selected_step
from analysis.figures import style
from analysis.figures.common import FigureData, Point, Query, find, measured, not_drawn, panel_of
from analysis.figures.spec import FigureSpec
from analysis.page import receiver_head
from analysis.seeds import pairs_of
from analysis.spec import RowSpec, TableSpec, load_spec
from experiments.files import write_atomic
from experiments.run_record import RunRecord, UserError, read_jsonl

PROJECT = Path(__file__).resolve().parents[2]
CSV_COLUMNS = ("pair", "receiver", "row", "seed", "step", "pass@1", "run")
SELECTED = " (selected)"  # of a panel's name: its points are the stars


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


@dataclass(frozen=True)
class Line:
    """What is drawn of one row in one panel, in percent: ``band`` from low to high, ``star``: (step, value) of the checkpoint."""

    slug: str
    steps: Sequence[float]
    values: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    star: tuple[float, float] | None = None


def curve_points(record: RunRecord, receiver: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(steps, average pass@1) of validation.jsonl. UserError when there are none or a step is there twice."""
    model = (model_of(record, receiver) or {})["name"]
    file = record.path / "validation.jsonl"
    rows = [r for r in read_jsonl(file) if r["model"] == model and r["benchmark"] == "average"]
    steps = tuple(r["step"] for r in rows)
    if not steps or len(set(steps)) != len(steps):
        raise UserError(f"{file}: {len(steps)} validation averages of {model} at {len(set(steps))} steps; one per step is needed")
    return steps, tuple(r["pass@1"] for r in rows)


def from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Figure 4: one training seed."""
    found = find(spec, query)
    points: list[Point] = []
    for block in spec.blocks:
        for receiver in block.receivers:
            for slug in spec.labels:
                panel, place = panel_of(block.pair, receiver), (block.pair, slug, receiver)
                if place in found.done:
                    points += _curve(found.done[place], receiver, panel, slug)
                else:
                    points.append(Point(panel, slug, None, None, todo=found.todo[place]))
    rules = sorted({r.config["recipe"]["training"]["selection"] for r in found.used})
    rule = f"Star: the selected checkpoint (rule: {', '.join(rules) or 'none, no run'})."
    lines = (
        "pass@1 of the validation: unweighted mean over the benchmarks, in percent, fewer samples than the evaluation. " + rule,
    )
    return measured(found, points, lines=lines, foot=("One training run per line. Star: the selected checkpoint.",))


def _curve(record: RunRecord, receiver: str, panel: str, slug: str) -> list[Point]:
    steps, values = curve_points(record, receiver)
    runs, chosen = (record.path.name,), selected_step(record, receiver)
    points = [Point(panel, slug, step, 100 * value, runs=runs) for step, value in zip(steps, values, strict=True)]
    value = dict(zip(steps, values, strict=True)).get(chosen)
    todo = "" if value is not None else f"step {chosen}, the selected one, has no validation average"
    return [*points, Point(panel + SELECTED, slug, chosen, None if value is None else 100 * value, runs=runs, todo=todo)]


def draw_figure(data: FigureData) -> Figure:
    """Figure 4."""
    panels: dict[str, list[Line]] = {}
    for block in data.spec.blocks:
        for receiver in block.receivers:
            panel = panel_of(block.pair, receiver)
            lines = panels.setdefault(f"pair {block.pair}: {receiver_head(data.stand_ins, receiver)}", [])
            for slug in data.spec.labels:
                points, stars = data.of(panel, slug), data.of(panel + SELECTED, slug)
                star = (stars[0].x, stars[0].y) if stars else None
                if points:
                    lines.append(Line(slug, [p.x for p in points], [p.y for p in points], star=star))
    return draw_panels(panels, data.spec.labels, (*data.foot, *not_drawn(data)))


def draw_panels(panels: Mapping[str, Sequence[Line]], labels: Mapping[str, str], foot: Sequence[str]) -> Figure:
    """Up to three panels side by side; a pair's two receivers stand below each other where there are two rows of panels."""
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = style.new_figure(style.DOUBLE, 0.35 + 1.75 * down, foot)
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    looks = style.looks(list(labels))
    places = axes.T.flat if len(panels) > 3 else axes.flat
    for ax, (title, lines) in zip(places, panels.items(), strict=False):
        ax.set_title(title)
        _draw_lines(ax, lines, looks)
    for ax in axes[-1]:
        ax.set_xlabel("step")
    for ax in axes[:, 0]:
        ax.set_ylabel("validation pass@1, %")
    figure.legend(
        handles=[style.handle(looks[s], labels[s], line=True) for s in labels], loc="outside upper center", ncols=len(labels)
    )
    return figure


def _draw_lines(ax: Axes, lines: Sequence[Line], looks: Mapping[str, style.Look]) -> None:
    for line in lines:
        look = looks[line.slug]
        ax.plot(line.steps, line.values, color=look.color, linestyle=look.line, marker=look.marker, markersize=2.2, linewidth=1.0)
        if line.band:
            ax.fill_between(line.steps, *line.band, color=look.color, alpha=0.15, linewidth=0)
        if line.star:
            ax.plot(
                *line.star, marker="*", markersize=9, color=look.color, markeredgecolor="white", markeredgewidth=0.6, zorder=5
            )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.set_xlim(left=0)
    if not lines:
        style.empty(ax, "no finished runs")


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


def draw_seeds(found: Sequence[Curve], labels: Mapping[str, str], stand_ins: Mapping[str, str]) -> Figure:
    """The mean over training seeds with its band; the foot says how many seeds each line has."""
    panels: dict[str, list[Line]] = {}
    counts = []
    for pair, receiver in dict.fromkeys((c.pair, c.receiver) for c in found):
        lines = panels.setdefault(f"pair {pair}: {receiver_head(stand_ins, receiver)}", [])
        for slug in labels:
            mine = [c for c in found if (c.pair, c.receiver, c.row) == (pair, receiver, slug)]
            counts.append(len(mine))
            if mine:
                steps, mean, low, high = band(mine)
                lines.append(Line(slug, steps, 100 * mean, (100 * low, 100 * high)))
    seeds = f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    foot = (
        "One training seed a line."
        if seeds == "1"
        else f"Mean over {seeds} training seeds a line; band from the lowest to the highest."
    )
    return draw_panels(panels, labels, (foot,))


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
    suffix = args.out.suffix.lstrip(".")
    if suffix not in ("png", "pdf", "svg"):
        raise UserError(f"--out {args.out}: give a file that ends in .png, .pdf or .svg")
    spec = load_spec(args.table, args.specs)
    by_slug = {row.slug: row for row in spec.rows}
    if unknown := [slug for slug in args.rows if slug not in by_slug]:
        raise UserError(f"{args.table} has no row {', '.join(unknown)}; it has {', '.join(by_slug)}")
    chosen = [by_slug[slug] for slug in args.rows]
    records = open_runs(args.root / args.experiment)
    found = curves(spec, chosen, records, args.scale)
    models = [m for r in records if r.config["cell"]["scale"] == args.scale for m in r.config["recipe"]["models"]]
    stand_ins = {m["stands_for"]: m["name"] for m in models}
    with style.styled():
        style.write_bytes(args.out, style.render(draw_seeds(found, {row.slug: row.label for row in chosen}, stand_ins), suffix))
    write_atomic(args.out.with_suffix(".csv"), to_csv(found))
    print(f"wrote {args.out} and {args.out.with_suffix('.csv')}", file=sys.stderr)
    return 0
