"""Prompt sets that come as files: MATH train and the paper's five benchmarks. docs/data.md says which files go where.

The texts are never part of this project; counts, ids and hashes are (experiments/tasks/pins).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import UserError

ITEMS = {"math-train": 7500, "math500": 500, "aime2024": 30, "aime2025": 30, "amc23": 40, "minerva": 272}
FIELDS = ("id", "problem", "answer")
SUFFIXES = (".jsonl", ".parquet")
# The second name is that of a copy without the solutions, which nothing here reads.
STEMS = {source: (source.replace("-", "_"),) for source in ITEMS} | {"math-train": ("math_train", "math_train_nosol")}
# Contest answers: copies print one number as 27, 27.0 and 027.
INTEGER_GOLDS = frozenset({"aime2024", "aime2025", "amc23"})
INTEGER = re.compile(r"0*([0-9]+)(?:\.0*)?")


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a file. ``gold`` is empty where the source gives no answer. ``alternatives`` come from an overlay only."""

    id: str
    problem: str
    gold: str
    alternatives: tuple[str, ...] = ()


def file_name(source: str) -> str:
    """The documented name of the set's JSONL file."""
    return f"{STEMS[source][0]}.jsonl"


def find_file(source: str, root: str) -> Path:
    """The set's one file in ``root``. UserError when there is none, or several that could differ."""
    if not Path(root).is_dir():
        raise UserError(
            f"data.root={root} is not a directory, so {file_name(source)} is not in it; correct data.root (docs/data.md)"
        )
    paths = [Path(root) / (stem + suffix) for stem in STEMS[source] for suffix in SUFFIXES]
    found = [p for p in paths if p.is_file()]
    if not found:
        raise UserError(
            f"{paths[0]} does not exist. Put the {ITEMS[source]} items of {source} there (docs/data.md; .parquet will do), "
            "or correct data.root."
        )
    if len(found) > 1:
        raise UserError(f"{root} has {' and '.join(p.name for p in found)} for {source}, which may differ; keep one of them")
    return found[0]


def read_items(source: str, root: str | None) -> tuple[Item, ...]:
    """Items of the set's file in their order, each with fields id, problem and answer. Contents are not compared with the pins.

    UserError with file and line (parquet: row) for what cannot be read, missing or unusable fields, and ids that occur twice.
    """
    if root is None:
        raise UserError(
            f"data set {source} is not part of this project: give data.root=<directory with {file_name(source)}>, or, with a "
            "network, data.root=hub (docs/data.md)"
        )
    path = find_file(source, root)
    items: dict[str, tuple[str, Item]] = {}
    for where, row in _rows(path):
        item = to_item(where, row, integer=source in INTEGER_GOLDS)
        if item.id in items:
            raise UserError(f"{where}: id {item.id!r} occurs twice (first at {items[item.id][0]}); give every item its own id")
        items[item.id] = (where, item)
    if not items:
        raise UserError(f"{path} has no items; {source} has {ITEMS[source]}. Was the copy interrupted?")
    return tuple(item for _, item in items.values())


def to_item(where: str, row: Any, *, integer: bool = False) -> Item:
    """Check one row. ``integer``: golds are whole numbers, written in one way. UserError names ``where`` and the field."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: {type(row).__name__} instead of an object; each line is one object with {', '.join(FIELDS)}")
    missing = [k for k in FIELDS if k not in row]
    if missing:
        raise UserError(
            f"{where}: no field {', '.join(missing)}; each item needs id, problem and answer (it has {', '.join(row)})"
        )
    name, problem = row["id"], row["problem"]
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
        raise UserError(f"{where}: id {name!r} is no usable name; give a text or a whole number")
    if not isinstance(problem, str) or not problem.strip():
        raise UserError(f"{where}: problem of item {name!r} is empty or no text; every item needs its problem")
    return Item(str(name), problem, gold_text(where, row["answer"], integer=integer))


def gold_text(where: str, answer: Any, *, integer: bool) -> str:
    """An answer as text: numbers without a zero fraction, null as empty. UserError for all but text, number, null."""
    if answer is None:
        return ""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise UserError(f"{where}: answer is of type {type(answer).__name__}; give one text or number")
    text = str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
    whole = INTEGER.fullmatch(text.strip()) if integer else None
    return whole[1] if whole else text


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    return _parquet_rows(path) if path.suffix == ".parquet" else _jsonl_rows(path)


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(file:line, row). Unlike a log of ours, a data file may lack its last newline: the last line is a row like the others."""
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as e:  # bad JSON and bad UTF-8
            raise UserError(f"{path}:{number}: not a JSON object ({e}); the file is damaged or no JSONL, copy it again") from e


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = [c for c in FIELDS if c in file.schema_arrow.names]
            rows = file.read(columns=columns).to_pylist() if columns else [{}]
    except (pa.ArrowException, OSError) as e:
        raise UserError(f"{path}: not a parquet file ({e}); the file is damaged or a pointer to one, copy it again") from e
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row
