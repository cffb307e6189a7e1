"""What an evaluation row must hold, and the declared columns of the tidy evaluation frame.

One frame row is one (run directory, model, benchmark, evaluation run, item, sample). The response itself is kept as a digest:
tables need to know whether two responses are equal, never what they say, and at paper scale the texts would fill the memory. Texts
that many rows share are categories for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.run_record import UserError

COLUMNS: dict[str, str] = {
    "directory": "category",
    "model": "category",
    "stands_for": "category",
    "benchmark": "category",
    "benchmark_stands_for": "category",
    "run": "int64",
    "item": "category",
    "sample": "int64",
    "correct": "bool",
    "response_digest": "uint64",
    "finish_reason": "category",
    "tokens": "int64",
}
KEY = ["directory", "model", "benchmark", "run", "item", "sample"]

# type(x) is compared and not isinstance: JSON true must not pass for the integer 1, nor 1 for true.
ROW_TYPES: dict[str, tuple[type, ...]] = {
    "benchmark": (str,),
    "run": (int,),
    "item": (str, int),
    "sample": (int,),
    "response": (str,),
    "correct": (bool,),
    "finish_reason": (str,),
    "tokens": (int,),
}


def check_row(row: Any, *, file: Path, number: int, benchmark: str, run: int, samples: int) -> None:
    """UserError naming file and row (1-based line) if an evaluation row is not what its place in the run directory says."""
    where = f"{file}:{number}"
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: the row is a {type(row).__name__}, not an object; evaluate the run again")
    for field, types in ROW_TYPES.items():
        if field not in row:
            raise UserError(f"{where}: no field {field!r}; an evaluation row holds {', '.join(ROW_TYPES)}")
        if type(row[field]) not in types:
            raise UserError(f"{where}: {field} is {row[field]!r}, expected {' or '.join(t.__name__ for t in types)}")
    for field, expected in (("benchmark", benchmark), ("run", run)):
        if row[field] != expected:
            raise UserError(f"{where}: {field} is {row[field]!r} in the file of {expected!r}; the file was copied or renamed")
    if not 0 <= row["sample"] < samples:
        raise UserError(f"{where}: sample {row['sample']} but the recipe asks for samples 0 to {samples - 1} of every item")


def empty_frame() -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in COLUMNS.items()})


def validate_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame itself if its columns, dtypes and key are as declared; ValueError otherwise."""
    if list(frame.columns) != list(COLUMNS):
        raise ValueError(f"evaluation frame has columns {list(frame.columns)}, declared are {list(COLUMNS)}")
    wrong = {name: str(frame[name].dtype) for name, dtype in COLUMNS.items() if str(frame[name].dtype) != dtype}
    if wrong:
        raise ValueError(f"evaluation frame has dtypes {wrong}, declared are {[COLUMNS[name] for name in wrong]}")
    if frame.isna().any(axis=None):
        raise ValueError("evaluation frame holds missing values; a missing row is left out and counted, never filled")
    doubled = frame[frame.duplicated(KEY)]
    if len(doubled):
        raise ValueError(f"evaluation frame holds {len(doubled)} rows twice, the first is {doubled.iloc[0][KEY].to_dict()}")
    return frame
