"""metrics.jsonl of a run as checked rows: steps 1, 2, ... without a gap. Errors name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.run_record import UserError, read_jsonl


@dataclass(frozen=True)
class Step:
    """One line: ``where`` is "file:line", for messages."""

    where: str
    step: int
    models: Mapping[str, Any]
    exchange: tuple[Mapping[str, Any], ...]


def read_steps(run: Path) -> list[Step]:
    """All steps of a run directory; UserError if there is no file, no step, a gap, or a line of another shape."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise UserError(f"{run} has no metrics.jsonl: nothing was trained there. Give a run directory of experiments.train.")
    try:
        rows = read_jsonl(file)
    except ValueError as e:
        raise UserError(str(e)) from e
    if not rows:
        raise UserError(f"{file} holds no step; train the run first")
    return [_step(row, f"{file}:{number}", number) for number, row in enumerate(rows, 1)]


def _step(row: Any, where: str, number: int) -> Step:
    if not isinstance(row, Mapping) or not isinstance(row.get("models"), Mapping) or not isinstance(row.get("exchange"), list):
        raise UserError(f"{where}: a line is an object with step, models and exchange")
    if type(row.get("step")) is not int or row["step"] != number:
        raise UserError(f"{where}: step is {row.get('step')!r}, expected {number}; steps follow each other from 1")
    return Step(where, number, row["models"], tuple(row["exchange"]))


def count(row: Mapping[str, Any], key: str, where: str) -> int:
    """A count that must be there: an integer of at least 0."""
    if type(row.get(key)) is not int or row[key] < 0:
        raise UserError(f"{where}: {key} is {row.get(key)!r}, expected a count")
    return row[key]
