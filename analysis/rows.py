"""Evaluation rows read fast: many JSONL files at once with polars, and any file that is not unmistakably sound again, row by row.

The fast way never judges. It accepts a file only if every rule of ``check_row`` provably holds for all of its lines; the slow way
then either names the line that is wrong or finds that the file is fine after all (a torn last line, an item given as a number).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from analysis.schema import check_row
from experiments.run_record import UserError, read_jsonl

# Bytes of JSON parsed at a time: more is no faster, and the responses in it are what fills the memory.
BATCH_BYTES = 16 * 2**20
JSON_SCHEMA = {
    "benchmark": pl.String,
    "run": pl.Int64,
    "item": pl.String,
    "sample": pl.Int64,
    "response": pl.String,
    "correct": pl.Boolean,
    "finish_reason": pl.String,
    "tokens": pl.Int64,
}
# What is kept of a row; ``file`` is the index of its file in the list that was read.
ROW_SCHEMA = {
    "file": pl.UInt32,
    "item": pl.String,
    "sample": pl.Int64,
    "correct": pl.Boolean,
    "response_digest": pl.UInt64,
    "finish_reason": pl.String,
    "tokens": pl.Int64,
}
# A text that polars may have made out of a number, true, false, a list or an object. Digits alone are allowed: 3 is read as "3" by
# both ways.
MAY_BE_NO_TEXT = r"^(true|false|[\[{].*|-?[0-9]*\.?[0-9]*[eE.+-][0-9eE.+-]*)$"
# polars turns the escape of a lone surrogate into other characters. Pairs of them are sound and merely read the slow way.
SURROGATES = (b"\\ud", b"\\uD")
RESPONSE, RESPONSE_IS_TEXT = b'"response"', (b'"response":"', b'"response": "')


@dataclass(frozen=True)
class EvalFile:
    """One file of evaluation rows and what its place and its run's recipe say of them."""

    path: Path
    model: str
    benchmark: str
    run: int
    samples: int
    items: int


def read_files(files: Sequence[EvalFile]) -> pl.DataFrame:
    """All rows of the files (``ROW_SCHEMA``), by file, item and sample whatever their order in a file.

    UserError naming file and line for a row that is malformed, doubled or beyond the recipe. A torn last line is left out.
    """
    parts = [pl.DataFrame(schema=ROW_SCHEMA)]
    for indices, data in _batches(files):
        rows, doubtful = _fast(files, indices, data)
        parts.append(rows)
        parts += [_slow(files[index], index) for index in doubtful]
    return pl.concat(parts).sort("file", "item", "sample")


def digests(responses: pl.Series) -> pl.Series:
    """64-bit hashes of texts: tables need to know whether two responses are equal, never what they say."""
    return responses.hash(seed=0)


def _batches(files: Sequence[EvalFile]) -> Iterator[tuple[list[int], list[bytes]]]:
    """(indices, contents) of the files in portions of about ``BATCH_BYTES``; a larger file is a portion of its own."""
    indices: list[int] = []
    data: list[bytes] = []
    size = 0
    for index, file in enumerate(files):
        content = file.path.read_bytes()
        if data and size + len(content) > BATCH_BYTES:
            yield indices, data
            indices, data, size = [], [], 0
        size += len(content)
        indices.append(index)
        data.append(content)
    if data:
        yield indices, data


def _fast(files: Sequence[EvalFile], indices: Sequence[int], data: Sequence[bytes]) -> tuple[pl.DataFrame, list[int]]:
    """(rows of the sound files, indices of the others)."""
    lines = [content.count(b"\n") for content in data]
    sound = [_bytes_sound(content, n) for content, n in zip(data, lines, strict=True)]
    chosen = [k for k, good in enumerate(sound) if good]
    doubtful = [indices[k] for k, good in enumerate(sound) if not good]
    numbers = [indices[k] for k in chosen]
    rows = _parse(b"".join(data[k] for k in chosen))
    if rows is None or rows.height != sum(lines[k] for k in chosen):
        if len(chosen) <= 1:
            return pl.DataFrame(schema=ROW_SCHEMA), list(indices)
        # One bad file spoils the whole portion: find it by reading each alone.
        alone = [_fast(files, [indices[k]], [data[k]]) for k in chosen]
        return pl.concat([part for part, _ in alone]), doubtful + [i for _, bad in alone for i in bad]
    rows = rows.with_columns(pl.Series("file", np.repeat(numbers, [lines[k] for k in chosen]), dtype=pl.UInt32))
    bad = _unsound(rows, files, numbers)
    kept = rows.filter(~pl.col("file").is_in(bad)) if bad else rows
    return kept.with_columns(digests(kept["response"]).alias("response_digest")).select(*ROW_SCHEMA), doubtful + bad


def _bytes_sound(content: bytes, lines: int) -> bool:
    """Whole lines, no surrogate escapes, and as many responses that are texts as lines, and no other place that says "response".

    Quotes inside a JSON text are escaped, so the searched bytes cannot stand inside a response.
    """
    whole = not content or content.endswith(b"\n")
    texts = content.count(RESPONSE) == lines and any(content.count(pattern) == lines for pattern in RESPONSE_IS_TEXT)
    # A single byte is found, or not, much faster than two of them.
    odd = b"\\" in content and any(escape in content for escape in SURROGATES)
    return whole and texts and not odd


def _parse(content: bytes) -> pl.DataFrame | None:
    """None if polars refuses it: not JSON, or a number or verdict of another type."""
    if not content:
        return pl.DataFrame(schema=JSON_SCHEMA)
    try:
        return pl.read_ndjson(content, schema=JSON_SCHEMA)
    except pl.exceptions.PolarsError:
        return None


def _unsound(rows: pl.DataFrame, files: Sequence[EvalFile], numbers: Sequence[int]) -> list[int]:
    """Indices of files with a row that may break a rule."""
    place = pl.DataFrame(
        {
            "file": numbers,
            "expected_benchmark": [files[i].benchmark for i in numbers],
            "expected_run": [files[i].run for i in numbers],
            "samples": [files[i].samples for i in numbers],
            "items": [files[i].items for i in numbers],
        },
        schema_overrides={"file": pl.UInt32},
    )
    may_be_no_text = pl.any_horizontal(pl.col("item", "finish_reason", "benchmark").str.contains(MAY_BE_NO_TEXT))
    digits = pl.any_horizontal(pl.col("finish_reason", "benchmark").str.contains(r"^[0-9]*$"))
    bad_row = (
        pl.any_horizontal(pl.col(list(JSON_SCHEMA)).is_null())
        | may_be_no_text
        | digits
        | (pl.col("benchmark") != pl.col("expected_benchmark"))
        | (pl.col("run") != pl.col("expected_run"))
        | ~pl.col("sample").is_between(0, pl.col("samples") - 1)
    )
    by_file = rows.join(place, on="file", how="left").group_by("file").agg(
        bad_row.any().alias("bad"),
        (pl.struct("item", "sample").n_unique() < pl.len()).alias("doubled"),
        (pl.col("item").n_unique() > pl.col("items").first()).alias("beyond"),
    )  # fmt: skip
    return by_file.filter(pl.col("bad") | pl.col("doubled") | pl.col("beyond"))["file"].sort().to_list()


def _slow(file: EvalFile, index: int) -> pl.DataFrame:
    """The rows of one file, each checked by itself."""
    try:
        rows = read_jsonl(file.path)
    except ValueError as e:
        raise UserError(str(e)) from e
    seen: dict[tuple[str, int], int] = {}
    for number, row in enumerate(rows, 1):
        check_row(row, file=file.path, number=number, benchmark=file.benchmark, run=file.run, samples=file.samples)
        key = (str(row["item"]), row["sample"])
        if key in seen:
            doubled = f"item {key[0]}, sample {key[1]} is already in row {seen[key]}"
            raise UserError(f"{file.path}:{number}: {doubled}; delete this file and evaluate the run again")
        seen[key] = number
    items = len({item for item, _ in seen})
    if items > file.items:
        raise UserError(f"{file.path}: {items} different items, the recipe pins {file.items} for {file.benchmark}")
    columns = {
        "file": [index] * len(rows),
        "item": [item for item, _ in seen],
        "sample": [sample for _, sample in seen],
        "correct": [row["correct"] for row in rows],
        "response_digest": digests(pl.Series([_valid_text(row["response"]) for row in rows], dtype=pl.String)),
        "finish_reason": [_valid_text(row["finish_reason"]) for row in rows],
        "tokens": [row["tokens"] for row in rows],
    }
    return pl.DataFrame(columns, schema=ROW_SCHEMA)


def _valid_text(text: str) -> str:
    """The text itself; one with lone surrogates, which models do emit and UTF-8 cannot hold, with their escapes behind a NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "\x00" + text.encode(errors="backslashreplace").decode()
    return text
