"""Run directories -> the tidy evaluation frame, with every row checked and every missing row counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from analysis.cache import cached_rows
from analysis.rows import ROW_SCHEMA, EvalFile
from analysis.schema import COLUMNS, validate_frame
from analysis.spec import AVERAGE
from experiments.run_record import RunRecord, UserError, find_runs


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


def evaluation_files(record: RunRecord) -> list[EvalFile]:
    """The run's files of evaluation rows, in the recipe's order; a file that is not there yet is left out (its rows are counted).

    Raises UserError for a file of rows that the recipe does not ask for: no number may come from it, nor may it be overlooked.
    """
    evaluation = record.config["recipe"]["evaluation"]
    asked = {
        eval_file(record, model["name"], benchmark["name"], run): EvalFile(
            eval_file(record, model["name"], benchmark["name"], run),
            model["name"],
            benchmark["name"],
            run,
            evaluation["samples"],
            benchmark["items"],
        )
        for model in record.config["recipe"]["models"]
        for benchmark in evaluation["benchmarks"]
        for run in range(runs_asked(record))
    }
    there = set(record.path.glob("eval/*/*/run*.jsonl"))
    if foreign := sorted(there - asked.keys()):
        runs = runs_asked(record)
        known = f"{runs} evaluation runs (run0 to run{runs - 1})"
        named = ", ".join(b["name"] for b in evaluation["benchmarks"])
        models = ", ".join(m["name"] for m in record.config["recipe"]["models"])
        raise UserError(f"{foreign[0]}: the recipe asks for {known} of {models} on {named}; move this file away")
    return [file for path, file in asked.items() if path in there]


def evaluation_frame(records: Sequence[RunRecord]) -> pd.DataFrame:
    """All evaluation rows of the given runs, one per (run directory, model, benchmark, run, item, sample).

    In the order of the records, then of the recipe's models and benchmarks, then run, item and sample, however the files are sorted.
    Raises UserError for rows that are malformed, doubled or not asked for, and for replicates that are copies of each other.
    """
    files: list[tuple[RunRecord, EvalFile]] = []
    parts = [pl.DataFrame(schema=ROW_SCHEMA)]
    for record in records:
        mine = evaluation_files(record)
        rows = cached_rows(record.path, mine, record.config["fingerprint"])
        parts.append(rows.with_columns(pl.col("file") + len(files)))
        files += [(record, file) for file in mine]
    rows = pl.concat(parts)
    _refuse_copies(rows, files)
    return validate_frame(_to_pandas(rows, files))


def _to_pandas(rows: pl.DataFrame, files: Sequence[tuple[RunRecord, EvalFile]]) -> pd.DataFrame:
    """The declared columns. What is the same for a whole file is a category, looked up by the file's number."""
    number = rows["file"].to_numpy()
    per_file = {
        "directory": [str(record.path) for record, _ in files],
        "model": [file.model for _, file in files],
        "stands_for": [_stands_for(record.config["recipe"]["models"], file.model) for record, file in files],
        "benchmark": [file.benchmark for _, file in files],
        "benchmark_stands_for": [
            _stands_for(record.config["recipe"]["evaluation"]["benchmarks"], file.benchmark) for record, file in files
        ],
    }
    columns: dict[str, Any] = {}
    for name, values in per_file.items():
        categories = sorted(set(values))
        position = {value: k for k, value in enumerate(categories)}
        codes = np.array([position[value] for value in values], dtype=np.int32)[number]
        columns[name] = pd.Categorical.from_codes(codes, categories=pd.Index(categories, dtype="str"))
    columns["run"] = np.array([file.run for _, file in files], dtype=np.int64)[number]
    for name in ("item", "finish_reason"):
        texts = rows[name].unique().sort()
        codes = rows[name].cast(pl.Enum(texts)).to_physical().to_numpy().astype(np.int32)
        columns[name] = pd.Categorical.from_codes(codes, categories=pd.Index(texts.to_list(), dtype="str"))
    for name in ("sample", "correct", "response_digest", "tokens"):
        columns[name] = rows[name].to_numpy()
    return pd.DataFrame({name: columns[name] for name in COLUMNS})


def _stands_for(items: Sequence[Mapping[str, Any]], name: str) -> str:
    return next(item["stands_for"] for item in items if item["name"] == name)


def _refuse_copies(rows: pl.DataFrame, files: Sequence[tuple[RunRecord, EvalFile]]) -> None:
    """Two evaluation runs with the same response to every (benchmark, item, sample) are one run counted twice."""
    number = rows["file"].to_numpy()
    place = np.array([hash((str(r.path), f.model)) for r, f in files], dtype=np.int64)[number]
    benchmark = pl.Series("benchmark", [f.benchmark for _, f in files], dtype=pl.String).hash().to_numpy()[number]
    run = np.array([f.run for _, f in files], dtype=np.int64)[number]
    keyed = rows.select("file", "item", "sample", "response_digest").with_columns(
        pl.Series("place", place), pl.Series("benchmark", benchmark), pl.Series("run", run)
    )
    # The xor of the rows' hashes does not depend on their order; a row stands in a file only once.
    row_hash = pl.struct("benchmark", "item", "sample", "response_digest").hash()
    runs = keyed.group_by("place", "run").agg(
        pl.col("file").first(), pl.len().alias("rows"), row_hash.bitwise_xor().alias("content")
    )
    seen: dict[tuple[int, int], int] = {}
    for where, run_number, file, height, content in runs.sort("file").iter_rows():
        record, mine = files[file]
        evaluation = record.config["recipe"]["evaluation"]
        expected = evaluation["samples"] * sum(b["items"] for b in evaluation["benchmarks"])
        if height < expected:
            continue
        if (where, content) in seen:
            raise UserError(
                f"{record.path}: evaluation runs {seen[where, content]} and {run_number} of {mine.model} hold the same response in all "
                f"{expected} rows; they are no replicates (did the seed reach the sampler?). Evaluate again."
            )
        seen[where, content] = run_number


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
