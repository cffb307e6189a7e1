"""The trajectory log: every step's groups of all models, as append-only Parquet parts.

One part per step, written aside, fsynced and renamed, so a part that exists is whole; a resumed run first drops the parts after
its checkpoint. One row per response. Readable with pandas, polars and duckdb.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from graft.types import Group

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("model", pa.string()),
        ("prompt_id", pa.string()),
        ("index", pa.int32()),
        ("text", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("reward", pa.float32()),
        ("extracted", pa.string()),
        ("how", pa.string()),
    ]
)


def part(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}.parquet"


def append(directory: Path, step: int, groups: Mapping[str, tuple[Group, ...]]) -> Path:
    """Write one step's part; returns its path. Lone surrogates in a text are stored as their escapes (Parquet is UTF-8)."""
    rows = [
        {
            "step": step,
            "model": model,
            "prompt_id": g.prompt.id,
            "index": i,
            "text": r.text.encode("utf-8", "backslashreplace").decode(),
            "ids": r.ids,
            "logprobs": r.logprobs,
            "finish_reason": r.finish_reason,
            "reward": r.reward,
            "extracted": r.verdict.extracted if r.verdict else None,
            "how": r.verdict.how if r.verdict else None,
        }
        for model, gs in groups.items()
        for g in gs
        for i, r in enumerate(g.responses)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    target = part(directory, step)
    aside = target.with_suffix(".tmp")
    with open(aside, "wb") as f:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), f, compression="zstd")
        f.flush()
        os.fsync(f.fileno())
    os.replace(aside, target)
    return target


def drop_after(directory: Path, step: int) -> None:
    """Remove parts of later steps and unfinished ones: what a run that resumes after ``step`` will write again."""
    for file in directory.glob("step-*"):
        if file.suffix == ".tmp" or int(file.stem.removeprefix("step-")) > step:
            file.unlink()


def read(directory: Path, step: int) -> pa.Table:
    """One step's rows; FileNotFoundError if the step was not logged."""
    return pq.read_table(part(directory, step), schema=SCHEMA)
