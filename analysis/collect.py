"""Run directories -> the tidy evaluation frame, with every row checked and every missing row counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.schema import COLUMNS, check_row, digest, empty_frame, validate_frame
from analysis.spec import AVERAGE
from experiments.run_record import RunRecord, UserError, find_runs, read_jsonl


@dataclass(frozen=True)
class Match:
    """The runs behind one cell: the finished one, if any, and those that were started and are not finished."""

    done: RunRecord | None
    unfinished: tuple[RunRecord, ...]


@dataclass(frozen=True)
class Count:
    """Rows present and asked for, of one evaluation run of one model on one benchmark."""

    file: Path
    run: int
    rows: int
    expected: int


def open_runs(root: Path) -> list[RunRecord]:
    """Every run directly under ``root``; a damaged run.json is a UserError that names it."""
    try:
        return find_runs([root])
    except ValueError as e:
        raise UserError(str(e)) from e


def model_of(record: RunRecord, receiver: str) -> Mapping[str, Any] | None:
    """The run's model that is, or stands for, ``receiver``."""
    return next((m for m in record.config["recipe"]["models"] if m["stands_for"] == receiver), None)


def column_benchmarks(record: RunRecord, column: str) -> list[Mapping[str, Any]]:
    """The run's benchmarks behind a table column: all of them for the average, else the one that is, or stands for, the column."""
    benchmarks = record.config["recipe"]["evaluation"]["benchmarks"]
    if column == AVERAGE:
        return list(benchmarks)
    fitting = [b for b in benchmarks if b["stands_for"] == column]
    if len(fitting) != 1:
        named = ", ".join(f"{b['name']} for {b['stands_for']}" for b in benchmarks)
        raise UserError(f"{record.path}: {len(fitting)} benchmarks stand for the column {column}, one is needed; it has {named}")
    return fitting


def match(records: Sequence[RunRecord], wanted: Mapping[str, Any], *, pair: str, receiver: str) -> Match:
    """Runs with the wanted method, scale, seed and deviations that trained ``receiver``.

    A joint run must be of ``pair`` and covers all its receivers; an independent run (no pair) must be of this very receiver.
    Raises UserError if two finished runs fit: they differ in something that no table row names, so neither can be chosen.
    """

    def fits(record: RunRecord) -> bool:
        cell = record.config["cell"]
        same = all(cell[key] == wanted[key] for key in ("method", "scale", "seed"))
        same = same and record.config["deviations"] == wanted["deviations"]
        return same and (cell["pair"] is None or str(cell["pair"]) == pair) and model_of(record, receiver) is not None

    fitting = [record for record in records if fits(record)]
    done = [record for record in fitting if record.done]
    if len(done) > 1:
        raise UserError(
            f"two finished runs fit the cell {wanted['method']}, {receiver}: {done[0].path} and {done[1].path}. "
            "Their recipes differ; move the one that is not wanted to another experiment's folder."
        )
    return Match(done[0] if done else None, tuple(r for r in fitting if not r.done))


def runs_asked(record: RunRecord) -> int:
    """Evaluation runs that the recipe asks for: one per seed, numbered from 0."""
    return len(record.config["recipe"]["evaluation"]["seeds"])


def require_comparable(records: Sequence[RunRecord]) -> None:
    """UserError unless all runs were evaluated alike (benchmarks and hashes, runs, samples, sampling) on the same stand-ins."""
    slots: dict[str, tuple[str, Path]] = {}
    for record in records:
        ours, first = record.config["recipe"], records[0].config["recipe"]
        for key in sorted((ours["evaluation"].keys() | first["evaluation"].keys()) - {"seeds"}):
            if ours["evaluation"].get(key) != first["evaluation"].get(key):
                raise UserError(
                    f"{record.path} and {records[0].path} differ in evaluation.{key}: their difference would not be one of "
                    "methods. Evaluate both alike, or move one to another experiment's folder."
                )
        for model in ours["models"]:
            name, path = slots.setdefault(model["stands_for"], (model["name"], record.path))
            if name != model["name"]:
                raise UserError(f"{record.path} and {path}: {model['name']} and {name} both stand for {model['stands_for']}")
        seeds = ours["evaluation"]["seeds"]
        if len(set(seeds)) != len(seeds):
            raise UserError(f"{record.path}: evaluation seeds {seeds} repeat one; two evaluation runs with one seed are one run")
        if len(seeds) != runs_asked(records[0]):
            raise UserError(f"{record.path} and {records[0].path} differ in the number of evaluation runs; evaluate both alike")


def eval_file(record: RunRecord, model: str, benchmark: str, run: int) -> Path:
    return record.path / "eval" / model / benchmark / f"run{run}.jsonl"


def _read_file(record: RunRecord, model: Mapping[str, Any], benchmark: Mapping[str, Any], run: int) -> list[tuple]:
    file = eval_file(record, model["name"], benchmark["name"], run)
    samples = record.config["recipe"]["evaluation"]["samples"]
    try:
        rows = read_jsonl(file)
    except ValueError as e:
        raise UserError(str(e)) from e
    seen: dict[tuple[str, int], int] = {}
    out = []
    for number, row in enumerate(rows, 1):
        check_row(row, file=file, number=number, benchmark=benchmark["name"], run=run, samples=samples)
        key = (str(row["item"]), row["sample"])
        if key in seen:
            doubled = f"item {key[0]}, sample {key[1]} is already in row {seen[key]}"
            raise UserError(f"{file}:{number}: {doubled}; delete this file and evaluate the run again")
        seen[key] = number
        head = (str(record.path), model["name"], model["stands_for"], benchmark["name"], benchmark["stands_for"], run)
        out.append((*head, *key, row["correct"], digest(row["response"]), row["finish_reason"], row["tokens"]))
    items = len({item for item, _ in seen})
    if items > benchmark["items"]:
        raise UserError(f"{file}: {items} different items, the recipe pins {benchmark['items']} for {benchmark['name']}")
    return out


def evaluation_frame(records: Sequence[RunRecord]) -> pd.DataFrame:
    """All evaluation rows of the given runs, one per (run directory, model, benchmark, run, item, sample), in that order.

    Raises UserError for rows that are malformed, doubled or not asked for, and for replicates that are copies of each other.
    """
    parts = [empty_frame()]
    for record in records:
        evaluation = record.config["recipe"]["evaluation"]
        for model in record.config["recipe"]["models"]:
            for benchmark in evaluation["benchmarks"]:
                _refuse_extra_files(record, model["name"], benchmark["name"])
                rows = [row for run in range(runs_asked(record)) for row in _read_file(record, model, benchmark, run)]
                parts.append(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS))
    frame = pd.concat(parts, ignore_index=True)
    for record in records:
        _refuse_copies(frame, record)
    return validate_frame(frame)


def _refuse_extra_files(record: RunRecord, model: str, benchmark: str) -> None:
    runs = runs_asked(record)
    asked = {eval_file(record, model, benchmark, run).name for run in range(runs)}
    folder = record.path / "eval" / model / benchmark
    for file in sorted(folder.glob("run*.jsonl")) if folder.is_dir() else []:
        if file.name not in asked:
            raise UserError(f"{file}: the recipe asks for {runs} evaluation runs (run0 to run{runs - 1}); move this file away")


def _refuse_copies(frame: pd.DataFrame, record: RunRecord) -> None:
    """Two evaluation runs with the same response to every (benchmark, item, sample) are one run counted twice."""
    evaluation = record.config["recipe"]["evaluation"]
    expected = evaluation["samples"] * sum(b["items"] for b in evaluation["benchmarks"])
    for model in record.config["recipe"]["models"]:
        seen: dict[tuple, int] = {}
        mine = frame[(frame["directory"] == str(record.path)) & (frame["model"] == model["name"])]
        for run, rows in mine.groupby("run"):
            if len(rows) < expected:
                continue
            content = tuple(rows.sort_values(["benchmark", "item", "sample"])["response_digest"])
            if content in seen:
                raise UserError(
                    f"{record.path}: evaluation runs {seen[content]} and {run} of {model['name']} hold the same response in all "
                    f"{expected} rows; they are no replicates (did the seed reach the sampler?). Evaluate again."
                )
            seen[content] = int(run)


def counts(record: RunRecord, frame: pd.DataFrame, model: str, benchmark: Mapping[str, Any]) -> list[Count]:
    """Rows present against items x samples, for every evaluation run asked for."""
    evaluation = record.config["recipe"]["evaluation"]
    present = _rows(frame, record, model, benchmark["name"]).groupby("run").size()
    expected = benchmark["items"] * evaluation["samples"]
    return [
        Count(eval_file(record, model, benchmark["name"], run), run, int(present.get(run, 0)), expected)
        for run in range(runs_asked(record))
    ]


def correct_array(
    record: RunRecord, frame: pd.DataFrame, model: str, benchmark: Mapping[str, Any], runs: Sequence[int]
) -> np.ndarray:
    """Verdicts of the given whole evaluation runs as bool ``[runs, items, samples]``, items in one order for all runs."""
    rows = _rows(frame, record, model, benchmark["name"])
    rows = rows[rows["run"].isin(runs)].sort_values(["run", "item", "sample"])
    shape = (len(runs), benchmark["items"], record.config["recipe"]["evaluation"]["samples"])
    items = rows["item"].to_numpy(dtype=object).reshape(shape)
    if (items != items[:1, :, :1]).any():
        raise UserError(f"{record.path}: the evaluation runs of {model} on {benchmark['name']} do not hold the same items")
    return rows["correct"].to_numpy().reshape(shape)


def _rows(frame: pd.DataFrame, record: RunRecord, model: str, benchmark: str) -> pd.DataFrame:
    mine = (frame["directory"] == str(record.path)) & (frame["model"] == model) & (frame["benchmark"] == benchmark)
    return frame[mine]


def repeated_sample_share(frame: pd.DataFrame) -> pd.Series:
    """Per (directory, model): share of (benchmark, run, item) whose samples are all one and the same response.

    Items with a single sample are left out: one response cannot repeat itself.
    """
    items = frame.groupby(["directory", "model", "benchmark", "run", "item"])["response_digest"].agg(["nunique", "size"])
    items = items[items["size"] > 1]
    return (items["nunique"] == 1).groupby(level=["directory", "model"]).mean()
