"""Tables of kind "compute" (table 5): scores beside what they cost, by the rules of the paper's appendix D.

Device-hours of training: devices x wall-clock time of the steps, without validation and checkpoint writing; evaluation, repeated
steps and lost attempts are in no column. An independent method costs both models the sum of their two runs. A joint run costs both
models its time up to the later of the two selected checkpoints, and each model its share of it: its own phases and half of what
no model owns (the paper prints such shares without saying how the rest is divided). The conservative charge of figure 5 is the
whole joint run up to the model's own selected checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis import tables
from analysis.collect import model_of
from analysis.footer import commits, scale_note, stand_ins
from analysis.page import Item, Line, Page, Part, Span, csv_number, csv_text, heading, number, receiver_head, todo_lists
from analysis.spec import AVERAGE, RowSpec, TableSpec, only_known, read_rows, read_spec, reported_lines
from analysis.todo import Todo
from experiments.files import read_json
from experiments.ledger import Ledger, read_ledger
from experiments.run_record import RunRecord, UserError

HOURS = ("best", "full", "both_best", "both_full", "conservative")
REPORTED = {
    "best": "best_ckpt_gpu_h",
    "full": "full_run_gpu_h",
    "both_best": "both_best_ckpt_gpu_h",
    "both_full": "both_full_run_gpu_h",
}
HEADS = {"best": "best", "full": "full", "both_best": "both best", "both_full": "both full", "conservative": "charged"}
CSV_COLUMNS = ("row", "receiver", "quantity", "value", "std", "reported_value", "reported_std", "unit")


@dataclass(frozen=True)
class ComputeSpec:
    """``reported``: (row, receiver) -> quantity -> the paper's value ("mean", "std", and HOURS without the conservative charge)."""

    name: str
    title: str
    caption: str
    pair: str
    receivers: tuple[str, str]
    decimals: int
    rows: tuple[RowSpec, ...]
    reported_file: str
    reported: Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True)
class Cost:
    """One row for one receiver. ``mean`` and ``std`` in percent (None: not whole); ``hours`` by HOURS, absent where not known.

    ``runs``: the receiver's run directory; ``both``: those of both models.
    """

    mean: float | None = None
    std: float | None = None
    hours: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""
    runs: tuple[str, ...] = ()
    both: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComputeTable:
    """``costs`` by (row slug, receiver)."""

    spec: ComputeSpec
    scale: str
    costs: Mapping[tuple[str, str], Cost]
    notes: tuple[str, ...]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[Todo, ...] = ()
    unfinished: tuple[Todo, ...] = ()
    unavailable: tuple[str, ...] = ()


def load_spec(name: str, folder: Path) -> ComputeSpec:
    """Read and check a table of costs; the paper's values are in ``folder/../reported``."""
    path, given = read_spec(name, folder)
    given.pop("kind", None)
    only_known(given, ComputeSpec, str(path), derived=("name", "reported"))
    if len(given["receivers"]) != 2:
        raise UserError(f"{path}: a table of costs has the two models of a pair as receivers; got {given['receivers']}")
    rows, receivers = read_rows(given["rows"], str(path)), tuple(given["receivers"])
    reported = read_reported(folder.parent / "reported" / given["reported_file"])
    needed = {(row.slug, receiver) for row in rows for receiver in receivers}
    if needed != reported.keys():
        raise UserError(f"{path} and {given['reported_file']} do not list the same cells: {sorted(needed ^ reported.keys())}")
    return ComputeSpec(
        **given | {"name": name, "pair": str(given["pair"]), "receivers": receivers, "rows": rows, "reported": reported}
    )


def read_reported(path: Path) -> dict[tuple[str, str], dict[str, float]]:
    """(row, receiver) -> the paper's numbers."""
    columns = {"mean": "avg_mean", "std": "avg_std", **REPORTED}
    values = {}
    for where, line in reported_lines(path, {"method", "model", *columns.values()}):
        try:
            values[line["method"], line["model"]] = {key: float(line[column]) for key, column in columns.items()}
        except ValueError as e:
            raise UserError(f"{where}: {e}") from e
    return values


def from_reported(spec: ComputeSpec) -> ComputeTable:
    """The paper's own values."""
    note = f"As printed in the paper (paper_tables/reported/{spec.reported_file}); nothing here was measured with this code."
    return ComputeTable(spec, "reported", {}, (note,))


def from_runs(spec: ComputeSpec, records: Sequence[RunRecord], *, scale: str, seed: int, methods: Path) -> ComputeTable:
    """The table of the given runs at one scale and training seed."""
    scores = tables.from_runs(score_spec(spec), records, scale=scale, seed=seed, methods=methods)
    cells = {(row.spec.slug, x): row.cells[x, AVERAGE] for row in scores.rows for x in spec.receivers}
    costs, used = {}, {}
    for row in spec.rows:
        found = {x: tables.match_row(records, row, spec.pair, x, scale, seed).done for x in spec.receivers}
        runs = {x: r for x, r in found.items() if r is not None}
        used |= {r.path: r for r in runs.values()}
        hours = row_hours({x: (r, read_ledger(r)) for x, r in runs.items()})
        paths = [r.path for r in runs.values()]
        for x in runs:
            cell = cells[row.slug, x]
            score = (cell.mean, cell.std) if cell.state == "whole" else (None, None)
            unit = read_ledger(runs[x]).devices.unit
            costs[row.slug, x] = Cost(*score, hours[x], unit, (str(runs[x].path),), tuple(dict.fromkeys(map(str, paths))))
    return ComputeTable(
        spec,
        scale,
        costs,
        _notes(list(used.values()), scale, seed),
        scores.stand_ins,
        scores.missing,
        scores.unfinished,
        scores.unavailable,
    )


def score_spec(spec: ComputeSpec) -> TableSpec:
    """The same rows as a table of average pass@1."""
    return TableSpec(
        name=spec.name,
        title=spec.title,
        caption=spec.caption,
        pair=spec.pair,
        receivers=spec.receivers,
        reference=spec.rows[0].slug,
        decimals=spec.decimals,
        columns={AVERAGE: "average"},
        parts={},
        groups={},
        rows=spec.rows,
    )


def row_hours(runs: Mapping[str, tuple[RunRecord, Ledger]]) -> dict[str, dict[str, float]]:
    """receiver -> device-hours by HOURS, of one method's finished run or runs. Sums over both models need both."""
    selected = {x: selected_step(record, x) for x, (record, _) in runs.items()}
    for x, (record, ledger) in runs.items():
        if selected[x] > len(ledger.kept):
            raise UserError(
                f"{record.path}: the selected checkpoint is of step {selected[x]}, the ledger (attempts/*/steps.jsonl) ends at step "
                f"{len(ledger.kept)}; its files were removed, so its cost is not known. Move the run away and train it again."
            )
    # By models and not by pair: a run with a stored peer belongs to a pair and trains one model, so its costs add up as GRPO's do.
    joint = any(len(record.config["recipe"]["models"]) > 1 for record, _ in runs.values())
    hours = {}
    for x, (record, ledger) in runs.items():
        if joint:
            name = model_of(record, x)["name"]
            mine = {"best": ledger.share(name, selected[x]), "full": ledger.share(name, len(ledger.kept))}
        else:
            mine = {"best": ledger.until(selected[x]), "full": ledger.full}
        hours[x] = mine | {"conservative": ledger.until(selected[x])}
    if len(runs) == 2:
        first = next(iter(runs.values()))[1]
        best = first.until(max(selected.values())) if joint else sum(h["best"] for h in hours.values())
        full = first.full if joint else sum(h["full"] for h in hours.values())
        hours = {x: h | {"both_best": best, "both_full": full} for x, h in hours.items()}
    return hours


def selected_step(record: RunRecord, receiver: str) -> int:
    """The step of the checkpoint that evaluation used."""
    return int(read_json(record.path / "selected.json")[model_of(record, receiver)["name"]]["step"])


def _notes(used: Sequence[RunRecord], scale: str, seed: int) -> tuple[str, ...]:
    line = scale_note(scale, paper=True)
    if not used:
        return (line, f"No finished run of this table was found (scale {scale}, seed {seed}).")
    ledgers = [read_ledger(r) for r in used]
    kinds = sorted({f"{x.devices.count} {x.devices.kind}" for x in ledgers})
    lost = sum(sum(c.wall for c in x.repeated) * x.devices.count for x in ledgers) / 3600
    return (
        line,
        *stand_ins([m for r in used for m in r.config["recipe"]["models"]], "Models"),
        f"Hours are {ledgers[0].devices.unit} of training ({', '.join(kinds)} a run): devices x wall-clock time of the steps, without "
        "validation and checkpoint writing. best: up to the selected checkpoint. full: all steps. charged: the whole joint run up to "
        "the model's own selected checkpoint.",
        "Per model of a joint run: its own phases and half of what no model owns. both: the sum of two independent runs, or the joint "
        "run up to the later selected checkpoint. The paper's hours are GPU-hours on H200s and no measure for these.",
        f"Not in the table: steps that restarts repeated ({lost:.3f} device-hours), evaluation, loading.",
        f"Training seed {seed}. Commits: {commits(used)}. — = no value.",
    )


def to_page(table: ComputeTable) -> Page:
    """Methods as lines, with a line for each receiver under them."""
    spec, ours = table.spec, table.scale != "reported"
    shown = HOURS if ours else tuple(REPORTED)
    heads = ("pass@1", *(HEADS[h] for h in shown))
    spans = (*([Span("here", heads)] if ours else []), Span("paper" if ours else "", ("pass@1", *(HEADS[h] for h in REPORTED))))
    lines = []
    for row in spec.rows:
        lines.append(Line(row.label))
        for x in spec.receivers:
            lines.append(Line(receiver_head(table.stand_ins, x), _items(table, row.slug, x, shown if ours else ())))
    return Page(
        name=spec.name,
        folder=table.scale,
        heading=heading(spec.name, spec.title, table.scale),
        title=spec.title,
        caption=spec.caption.strip(),
        parts=(Part("Score in percent, cost in device-hours", spans, tuple(lines)),),
        notes=table.notes,
        lists=todo_lists(table.missing, table.unfinished, table.unavailable),
    )


def _items(table: ComputeTable, slug: str, receiver: str, shown: Sequence[str]) -> tuple[Item, ...]:
    decimals, paper = table.spec.decimals, table.spec.reported[slug, receiver]
    cost = table.costs.get((slug, receiver), Cost())
    runs = {h: cost.both if h.startswith("both") else cost.runs for h in cost.hours}
    hours = (Item(number(cost.hours.get(h), 3), runs=runs.get(h, ())) for h in shown)
    ours = [_score(cost.mean, cost.std, decimals, cost.runs), *hours] if shown else []
    return (*ours, _score(paper["mean"], paper["std"], decimals), *(Item(number(paper[h], 1)) for h in REPORTED))


def _score(mean: float | None, std: float | None, decimals: int, runs: tuple[str, ...] = ()) -> Item:
    return Item(number(mean, decimals), "" if std is None else f" ± {number(std, decimals)}", runs=runs)


def to_csv(table: ComputeTable) -> str:
    """One line per row, receiver and quantity; no value = empty field."""
    rows = []
    for row in table.spec.rows:
        for x in table.spec.receivers:
            cost, paper = table.costs.get((row.slug, x), Cost()), table.spec.reported[row.slug, x]
            score = [csv_number(cost.mean), csv_number(cost.std), csv_number(paper["mean"]), csv_number(paper["std"]), "percent"]
            rows.append([row.slug, x, "average pass@1", *score])
            for h in HOURS:
                rows.append([row.slug, x, h, csv_number(cost.hours.get(h)), "", csv_number(paper.get(h)), "", cost.unit])
    return csv_text(CSV_COLUMNS, rows)
