"""Spec + runs + evaluation frame -> a Table of frozen rows. Knows no row, method or value of any particular table.

All numbers are percent points and unrounded; rounding is the writers' last step. A cell is whole only if every evaluation run
that the recipe asks for has every row; the others are marked, and neither ranked nor subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from analysis.collect import (
    Count,
    Match,
    column_benchmarks,
    correct_array,
    counts,
    match,
    model_of,
    runs_asked,
)
from analysis.evidence import Evidence, gather
from analysis.footer import notes_for_reported, notes_for_runs
from analysis.spec import AVERAGE, Marks, RowSpec, TableSpec
from analysis.stats import aggregate, mean_and_std, pass_at_1
from analysis.todo import SHORT, Todo, progress, train_command, why_no_run
from experiments.run_record import RunRecord, UserError

State = Literal["whole", "short", "unfinished", "missing", "unavailable", "reported"]
# (row slug, receiver, column)
Key = tuple[str, str, str]
Cells = dict[Key, "Cell"]
Matches = Mapping[tuple[str, str], Match]  # by (row slug, receiver)


@dataclass(frozen=True)
class Cell:
    """One row for one receiver in one column. ``n`` whole evaluation runs of ``N`` asked for; ``std`` None means n = 1 (or no number).

    ``runs``: the run directories that the numbers rest on; of a cell without a finished run, those that were started.
    """

    state: State
    mean: float | None = None
    std: float | None = None
    n: int = 0
    N: int | None = None
    delta: float | None = None
    reported_mean: float | None = None
    reported_std: float | None = None
    reported_delta: float | None = None
    best: bool = False
    mark: str = ""
    runs: tuple[str, ...] = ()

    @property
    def ranked_value(self) -> float | None:
        """What takes part in a ranking: a whole measured mean, or the printed one of a table of the paper's own values."""
        return {"whole": self.mean, "reported": self.reported_mean}.get(self.state)


@dataclass(frozen=True)
class Row:
    """``cells`` by (receiver, column)."""

    spec: RowSpec
    cells: Mapping[tuple[str, str], Cell]


@dataclass(frozen=True)
class Table:
    """What a writer needs. ``source`` is "runs" or "reported"; ``stand_ins`` maps a receiver to the model that stands for it."""

    spec: TableSpec
    source: Literal["runs", "reported"]
    scale: str
    rows: tuple[Row, ...]
    stand_ins: Mapping[str, str]
    notes: tuple[str, ...]
    missing: tuple[Todo, ...] = ()
    unfinished: tuple[Todo, ...] = ()
    unavailable: tuple[str, ...] = ()


def from_reported(spec: TableSpec) -> Table:
    """The paper's own values; the columns for our runs stay empty. Bold and marks only where the spec has the paper's rule for them."""
    if not spec.reported:
        raise UserError(f"{spec.name} is not a table of the paper, so there are no printed values of it; leave out --source")
    shown = [row for row in spec.rows if not row.optional]
    cells = {key: _with_reported(Cell("reported"), spec, key) for key in _keys(spec, shown)}
    if spec.marks:
        cells = rank(cells, spec, shown)
    return Table(spec, "reported", "reported", _rows(spec, shown, cells), {}, notes_for_reported(spec))


def from_runs(spec: TableSpec, records: Sequence[RunRecord], *, scale: str, seed: int, methods: Path) -> Table:
    """The table of the given runs at one scale and training seed. ``methods``: folder with one YAML per method there is."""
    matches = find(spec, records, scale, seed)
    evidence = gather(matches.values())
    table = build(spec, matches, evidence, scale=scale, seed=seed, methods=methods)
    return replace(
        table, notes=notes_for_runs(spec, evidence.used, evidence.frame, scale=scale, seed=seed) + marks_note(spec) + table.notes
    )


def find(spec: TableSpec, records: Sequence[RunRecord], scale: str, seed: int) -> Matches:
    """The runs behind every row and receiver."""
    return {(row.slug, x): match_row(records, row, spec.pair, x, scale, seed) for row in spec.rows for x in spec.receivers}


def build(spec: TableSpec, matches: Matches, evidence: Evidence, *, scale: str, seed: int, methods: Path) -> Table:
    """The table of the matches; its notes are those about single cells."""
    shown = [row for row in spec.rows if not row.optional or any(matches[row.slug, x].done for x in spec.receivers)]
    cells = _measure(spec, shown, matches, evidence, methods)
    cells = rank(with_deltas(_with_expected_runs(cells, evidence.used), spec.reference), spec, shown)
    rows = _rows(spec, shown, cells)
    return Table(
        spec=spec,
        source="runs",
        scale=scale,
        rows=rows,
        stand_ins={m["stands_for"]: m["name"] for record in evidence.used for m in record.config["recipe"]["models"]},
        notes=_cell_notes(spec, matches, cells, evidence),
        missing=todo(rows, "missing", lambda r: train_command(r, pair=spec.pair, seed=seed, scale=scale)),
        unfinished=todo(rows, "unfinished", lambda r: progress([matches[r.slug, x] for x in spec.receivers])),
        unavailable=tuple(r.spec.slug for r in rows if any(c.state == "unavailable" for c in r.cells.values())),
    )


def marks_note(spec: TableSpec) -> tuple[str, ...]:
    """What the marks mean; none for a table without."""
    return (spec.marks.note,) if spec.marks else ()


def match_row(records: Sequence[RunRecord], row: RowSpec, pair: str, receiver: str, scale: str, seed: int) -> Match:
    """The runs behind one row for one receiver."""
    wanted = {
        "method": row.method,
        "deviations": dict(row.deviations),
        "scale": scale,
        "seed": seed if row.seed is None else row.seed,
    }
    return match(records, wanted, pair=pair, receiver=receiver)


def _keys(spec: TableSpec, shown: Sequence[RowSpec]) -> list[Key]:
    return [(row.slug, x, c) for row in shown for x in spec.receivers for c in spec.columns]


def _rows(spec: TableSpec, shown: Sequence[RowSpec], cells: Mapping[Key, Cell]) -> tuple[Row, ...]:
    def whole(row: RowSpec) -> Row:
        return Row(row, {key[1:]: _with_reported(cells[key], spec, key) for key in _keys(spec, [row])})

    return tuple(map(whole, shown))


def _measure(spec: TableSpec, shown: Sequence[RowSpec], matches: Matches, evidence: Evidence, methods: Path) -> Cells:
    cells: Cells = {}
    for row in shown:
        for receiver in spec.receivers:
            found = matches[row.slug, receiver]
            if found.done is None:
                started = tuple(str(r.path) for r in found.unfinished)
                empty = Cell("unfinished" if started else why_no_run(row, methods), runs=started)
                cells |= {(row.slug, receiver, column): empty for column in spec.columns}
                continue
            mine = evidence.rows_of(found.done, receiver)
            for column in spec.columns:
                cells[row.slug, receiver, column] = measure_cell(found.done, mine, receiver, column)
    return cells


def measure_cell(record: RunRecord, frame: pd.DataFrame, receiver: str, column: str) -> Cell:
    """Mean and std over the whole evaluation runs. A run that is short on one benchmark is short for the average."""
    benchmarks = column_benchmarks(record, column)
    model = model_of(record, receiver)["name"]
    whole = set(range(runs_asked(record))) - {c.run for c in _short_counts(record, frame, receiver, column)}
    n, asked = len(whole), runs_asked(record)
    if not whole:
        return Cell("short", n=0, N=asked, runs=(str(record.path),))
    runs = sorted(whole)
    per_benchmark = [pass_at_1(correct_array(record, frame, model, b, runs)) for b in benchmarks]
    mean, std = mean_and_std(100 * aggregate(np.stack(per_benchmark)))
    return Cell("whole" if n == asked else "short", mean, std, n, asked, runs=(str(record.path),))


def _short_counts(record: RunRecord, frame: pd.DataFrame, receiver: str, column: str) -> list[Count]:
    model = model_of(record, receiver)["name"]
    return [c for b in column_benchmarks(record, column) for c in counts(record, frame, model, b) if c.rows < c.expected]


def _with_expected_runs(cells: Cells, used: Sequence[RunRecord]) -> Cells:
    # All runs of a table ask for the same number of evaluation runs (require_comparable), so a missing one would too.
    asked = runs_asked(used[0]) if used else None
    return {key: cell if cell.N is not None else replace(cell, N=asked) for key, cell in cells.items()}


def with_deltas(cells: Cells, reference: str) -> Cells:
    """delta = mean - reference mean in the same place, unrounded; None for the reference and where either is not whole."""
    out = dict(cells)
    for (slug, *place), cell in cells.items():
        base = cells[reference, *place]
        if slug != reference and cell.state == "whole" and base.state == "whole":
            out[slug, *place] = replace(cell, delta=cell.mean - base.mean)
    return out


def rank(cells: Cells, spec: TableSpec, shown: Sequence[RowSpec]) -> Cells:
    """Bold and marks by the spec's rules."""
    cells = mark_best(cells, {row.slug for row in shown if row.compare}, spec.decimals)
    return mark_above(cells, spec.marks, spec.decimals) if spec.marks else cells


def mark_best(cells: Cells, ranked: set[str], decimals: int) -> Cells:
    """Mark, per receiver and column, the highest unrounded mean among ranked whole cells, and every one that prints the same.

    With fewer than two such cells nothing is marked: there is nothing to be best of.
    """
    out = dict(cells)
    for place in {key[1:] for key in cells}:
        mine = {key: c.ranked_value for key, c in cells.items() if key[1:] == place and key[0] in ranked}
        means = {key: value for key, value in mine.items() if value is not None}
        if len(means) < 2:
            continue
        printed = f"{max(means.values()):.{decimals}f}"
        for key, mean in means.items():
            if f"{mean:.{decimals}f}" == printed:
                out[key] = replace(out[key], best=True)
    return out


def mark_above(cells: Cells, marks: Marks, decimals: int) -> Cells:
    """The strongest mark that holds, on bold cells of the marked row. A row to exceed that is not whole exceeds everything."""
    out = dict(cells)
    for (slug, *place), cell in cells.items():
        if slug != marks.row or not cell.best:
            continue
        for mark, others in marks.above.items():
            values = [cells[other, *place].ranked_value if (other, *place) in cells else None for other in others]
            if all(v is not None and round(cell.ranked_value, decimals) > round(v, decimals) for v in values):
                out[slug, *place] = replace(cell, mark=mark)
    return out


def _with_reported(cell: Cell, spec: TableSpec, key: Key) -> Cell:
    value = spec.reported.get(key)
    if value is None:
        return cell
    return replace(cell, reported_mean=value.mean, reported_std=value.std, reported_delta=value.delta)


def todo(rows: Sequence[Row], state: State, text: Callable[[RowSpec], str]) -> tuple[Todo, ...]:
    """The rows with cells in this state, for whom, and a text on each."""
    # Whether there is a run is the same for every column.
    receivers = {
        row.spec.slug: tuple(x for (x, c), cell in row.cells.items() if c == AVERAGE and cell.state == state) for row in rows
    }
    return tuple(Todo(row.spec.slug, receivers[row.spec.slug], text(row.spec)) for row in rows if receivers[row.spec.slug])


def _cell_notes(spec: TableSpec, matches: Matches, cells: Mapping[Key, Cell], evidence: Evidence) -> tuple[str, ...]:
    """What is odd about single cells: short evaluation runs with their counts, and a std of exactly 0."""
    notes = []
    for slug, receiver, column in cells:
        if column != AVERAGE:
            continue
        record = matches[slug, receiver].done
        where = f"{slug}, {receiver}"
        if cells[slug, receiver, AVERAGE].state == "short":
            notes += [
                f"{SHORT} incomplete: {where}: {c.rows} of {c.expected} rows in {c.file}; evaluation run {c.run} is left out"
                for c in _short_counts(record, evidence.rows_of(record, receiver), receiver, AVERAGE)
            ]
            notes.append(
                f"{SHORT} to complete {where}: remove these files and done.json, then python -m experiments.evaluate run={record.path}"
            )
        equal = [c for c in spec.columns if cells[slug, receiver, c].std == 0 and cells[slug, receiver, c].n > 1]
        if equal:
            values = ", ".join(spec.columns[c] for c in equal)
            notes.append(f"std is exactly 0: {where}, {values}: all evaluation runs gave the same value; check that they differ")
    return tuple(notes)
