"""Spec + runs + evaluation frame -> a Table of frozen rows. Knows no row, method or value of any particular table.

All numbers are percent points and unrounded; rounding is the writers' last step. A cell is whole only if every evaluation run
that the recipe asks for has every row; the others are marked, and neither ranked nor subtracted.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.collect import (
    Count,
    Match,
    correct_array,
    counts,
    evaluation_frame,
    match,
    model_of,
    require_comparable,
    runs_asked,
)
from analysis.footer import notes_for_reported, notes_for_runs
from analysis.spec import RowSpec, TableSpec
from analysis.stats import aggregate, mean_and_std, pass_at_1
from experiments.run_record import RunRecord, UserError

State = Literal["whole", "short", "unfinished", "missing", "unavailable", "reported"]
AVERAGE = "average"


@dataclass(frozen=True)
class Cell:
    """One row for one receiver. ``n`` whole evaluation runs of ``N`` asked for; ``std`` None means n = 1 (or no number)."""

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


@dataclass(frozen=True)
class Row:
    spec: RowSpec
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Todo:
    """A row without (whole) runs, for whom, why, and the command that makes them."""

    row: str
    receivers: tuple[str, ...]
    text: str


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
    """The paper's own values; the columns for our runs stay empty."""
    cells = {(row.slug, x): Cell("reported") for row in spec.rows for x in spec.receivers}
    rows = _rows(spec, [row for row in spec.rows if not row.optional], cells)
    return Table(spec, "reported", "reported", rows, {}, notes_for_reported(spec))


def from_runs(spec: TableSpec, records: Sequence[RunRecord], *, scale: str, seed: int, methods: Path) -> Table:
    """The table of the given runs at one scale and training seed. ``methods``: folder with one YAML per method there is."""
    matches = {(row.slug, x): _match(records, spec, row, x, scale, seed) for row in spec.rows for x in spec.receivers}
    used = list({m.done.path: m.done for m in matches.values() if m.done}.values())
    require_comparable(used)
    frame = evaluation_frame(used)
    shown = [row for row in spec.rows if not row.optional or any(matches[row.slug, x].done for x in spec.receivers)]
    cells = {(row.slug, x): _cell(matches[row.slug, x], frame, row, x, methods) for row in shown for x in spec.receivers}
    cells = _with_deltas(_with_expected_runs(cells, used), spec.reference)
    cells = mark_best(cells, {row.slug for row in shown if row.compare}, spec.decimals)
    rows = _rows(spec, shown, cells)
    return Table(
        spec=spec,
        source="runs",
        scale=scale,
        rows=rows,
        stand_ins={m["stands_for"]: m["name"] for record in used for m in record.config["recipe"]["models"]},
        notes=notes_for_runs(spec, used, frame, scale=scale, seed=seed) + _cell_notes(matches, cells, frame),
        missing=_todo(rows, "missing", lambda r: train_command(r, pair=spec.pair, seed=seed, scale=scale)),
        unfinished=_todo(rows, "unfinished", lambda r: _progress([matches[r.slug, x] for x in spec.receivers])),
        unavailable=tuple(r.spec.slug for r in rows if any(c.state == "unavailable" for c in r.cells.values())),
    )


def _rows(spec: TableSpec, shown: Sequence[RowSpec], cells: Mapping[tuple[str, str], Cell]) -> tuple[Row, ...]:
    return tuple(Row(r, {x: _with_reported(cells[r.slug, x], spec, r, x) for x in spec.receivers}) for r in shown)


def _match(records: Sequence[RunRecord], spec: TableSpec, row: RowSpec, receiver: str, scale: str, seed: int) -> Match:
    wanted = {
        "method": row.method,
        "deviations": dict(row.deviations),
        "scale": scale,
        "seed": seed if row.seed is None else row.seed,
    }
    return match(records, wanted, pair=spec.pair, receiver=receiver)


def _cell(found: Match, frame: pd.DataFrame, row: RowSpec, receiver: str, methods: Path) -> Cell:
    """Mean and std over the whole evaluation runs. A run that is short on one benchmark is short for the average."""
    record = found.done
    if record is None:
        return Cell("unfinished" if found.unfinished else _why_no_run(row, methods))
    benchmarks = record.config["recipe"]["evaluation"]["benchmarks"]
    model = model_of(record, receiver)["name"]
    whole = set(range(runs_asked(record))) - {c.run for c in _short_counts(record, frame, receiver)}
    n, asked = len(whole), runs_asked(record)
    if not whole:
        return Cell("short", n=0, N=asked)
    runs = sorted(whole)
    per_benchmark = [pass_at_1(correct_array(record, frame, model, b, runs)) for b in benchmarks]
    mean, std = mean_and_std(100 * aggregate(np.stack(per_benchmark)))
    return Cell("whole" if n == asked else "short", mean, std, n, asked)


def _short_counts(record: RunRecord, frame: pd.DataFrame, receiver: str) -> list[Count]:
    model = model_of(record, receiver)["name"]
    benchmarks = record.config["recipe"]["evaluation"]["benchmarks"]
    return [c for b in benchmarks for c in counts(record, frame, model, b) if c.rows < c.expected]


def _why_no_run(row: RowSpec, methods: Path) -> State:
    if not methods.is_dir():
        raise UserError(f"{methods} is not a folder, so it cannot be said which methods this version has; give --methods")
    return "missing" if (methods / f"{row.method}.yaml").is_file() else "unavailable"


def _with_expected_runs(cells: dict[tuple[str, str], Cell], used: Sequence[RunRecord]) -> dict[tuple[str, str], Cell]:
    # All runs of a table ask for the same number of evaluation runs (require_comparable), so a missing one would too.
    asked = runs_asked(used[0]) if used else None
    return {key: cell if cell.N is not None else replace(cell, N=asked) for key, cell in cells.items()}


def _with_deltas(cells: dict[tuple[str, str], Cell], reference: str) -> dict[tuple[str, str], Cell]:
    """delta = mean - reference mean of the same receiver, unrounded; None for the reference and where either is not whole."""
    out = dict(cells)
    for (slug, receiver), cell in cells.items():
        base = cells[reference, receiver]
        if slug != reference and cell.state == "whole" and base.state == "whole":
            out[slug, receiver] = replace(cell, delta=cell.mean - base.mean)
    return out


def mark_best(cells: dict[tuple[str, str], Cell], ranked: set[str], decimals: int) -> dict[tuple[str, str], Cell]:
    """Mark, per receiver, the highest unrounded mean among ranked whole cells, and every one that prints the same.

    With fewer than two such cells nothing is marked: there is nothing to be best of.
    """
    out = dict(cells)
    for receiver in {key[1] for key in cells}:
        means = {key: c.mean for key, c in cells.items() if key[1] == receiver and key[0] in ranked and c.state == "whole"}
        if len(means) < 2:
            continue
        printed = f"{max(means.values()):.{decimals}f}"
        for key, mean in means.items():
            if f"{mean:.{decimals}f}" == printed:
                out[key] = replace(out[key], best=True)
    return out


def _with_reported(cell: Cell, spec: TableSpec, row: RowSpec, receiver: str) -> Cell:
    value = spec.reported.get((row.slug, receiver))
    if value is None:
        return cell
    return replace(cell, reported_mean=value.mean, reported_std=value.std, reported_delta=value.delta)


def _override(key: str, value: Any) -> str:
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def train_command(row: RowSpec, *, pair: str, seed: int, scale: str) -> str:
    """The command that produces the row's runs; an independent method runs once per model of the pair."""
    overrides = {"method": row.method, "pair": pair, "seed": seed, "scale": scale, **row.deviations}
    return " ".join(["python -m experiments.train", *(_override(k, v) for k, v in overrides.items())])


def _progress(found: Sequence[Match]) -> str:
    parts = []
    for record in {r.path: r for m in found for r in m.unfinished}.values():
        status = record.status()
        steps = f"step {status.get('step')} of {status.get('steps')}"
        parts.append(f"{record.path}: {status['state']}, {steps}" + (f", {status['reason']}" if status.get("reason") else ""))
    return "; ".join(parts)


def _todo(rows: Sequence[Row], state: State, text: Callable[[RowSpec], str]) -> tuple[Todo, ...]:
    out = []
    for row in rows:
        receivers = tuple(x for x, cell in row.cells.items() if cell.state == state)
        if receivers:
            out.append(Todo(row.spec.slug, receivers, text(row.spec)))
    return tuple(out)


def _cell_notes(
    matches: Mapping[tuple[str, str], Match], cells: Mapping[tuple[str, str], Cell], frame: pd.DataFrame
) -> tuple[str, ...]:
    """What is odd about single cells: short evaluation runs with their counts, and a std of exactly 0."""
    notes = []
    for (slug, receiver), cell in cells.items():
        record = matches[slug, receiver].done
        where = f"{slug}, {receiver}"
        if cell.state == "short":
            notes += [
                f"† incomplete: {where}: {c.rows} of {c.expected} rows in {c.file}; evaluation run {c.run} is left out"
                for c in _short_counts(record, frame, receiver)
            ]
            notes.append(
                f"† to complete {where}: remove these files and done.json, then python -m experiments.evaluate run={record.path}"
            )
        if cell.std == 0 and cell.n > 1:
            notes.append(f"std is exactly 0: {where}: {cell.n} evaluation runs gave the same average; check that they differ")
    return tuple(notes)
