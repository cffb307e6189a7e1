"""The trajectory log: every step's groups of all models, as append-only Parquet parts with a manifest.

One part per step, one row per response; readable with pandas, polars and duckdb (``step-*.parquet``). A part is written aside and
renamed, then the manifest is, so a part that the manifest lists is whole unless something else changed it: its size and SHA-256 are
in there. Both are on the disk for good after ``sync``, which a checkpoint calls (an fsync for every step would cost more than all the
rest); a resumed run first drops the parts after its checkpoint. Logs without a manifest (of earlier versions) are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from graft.retokenize import Sender
from graft.types import Group, SamplingSettings

FORMAT = 2
# The underscore keeps it out of what pyarrow and pandas take for data when they are given the directory.
MANIFEST = "_manifest.json"
METADATA = b"graft"
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
        # Since format 2. ``mean_logprob`` is for imported rows without log-probs of their own; elsewhere it is null.
        ("correct", pa.bool_()),
        ("mean_logprob", pa.float64()),
        ("seed", pa.int64()),
        ("policy_step", pa.int32()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("max_response_tokens", pa.int32()),
    ]
)
TRANSFERS = pa.schema(
    [
        ("step", pa.int32()),
        ("prompt_id", pa.string()),
        ("source", pa.string()),
        ("receiver", pa.string()),
        ("index", pa.int32()),
        ("reward", pa.float32()),
        ("advantage", pa.float64()),
        ("score", pa.float64()),
        ("weight", pa.float64()),
        ("reason", pa.string()),
    ]
)


class BrokenLog(ValueError):
    """A log that is torn, incomplete or changed; the message names the part."""


@dataclass(frozen=True)
class Facts:
    """What holds for a whole run: how it sampled, its seed, and each model's tokenizer as a receiver has to know it.

    ``policy_step`` of a row follows from its step: the steps of training that the sampling policy has behind it.
    """

    seed: int
    sampling: SamplingSettings
    senders: Mapping[str, Sender] = field(default_factory=lambda: MappingProxyType({}))

    def metadata(self) -> dict[bytes, bytes]:
        """For the part's schema: what is no column. ``senders``: tokenizer fingerprint and special ids by model."""
        senders = {m: {"fingerprint": s.fingerprint, "special_ids": sorted(s.special_ids)} for m, s in self.senders.items()}
        return {METADATA: json.dumps({"format": FORMAT, "senders": senders}, sort_keys=True).encode()}


def part(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}.parquet"


def step_of(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))


def rows_of(step: int, groups: Mapping[str, tuple[Group, ...]], facts: Facts) -> list[dict[str, Any]]:
    """Lone surrogates in a text are stored as their escapes (Parquet is UTF-8)."""
    common = {
        "step": step,
        "seed": facts.seed,
        "policy_step": step - 1,
        "temperature": facts.sampling.temperature,
        "top_p": facts.sampling.top_p,
        "max_response_tokens": facts.sampling.max_response_tokens,
    }
    return [
        common
        | {
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
            "correct": r.verdict.correct if r.verdict else None,
            "mean_logprob": r.mean_logprob,
        }
        for model, gs in groups.items()
        for g in gs
        for i, r in enumerate(g.responses)
    ]


def append(directory: Path, step: int, groups: Mapping[str, tuple[Group, ...]], facts: Facts) -> Path:
    """Write one step's part, then the manifest; returns the part's path."""
    return append_rows(directory, step, rows_of(step, groups, facts), SCHEMA.with_metadata(facts.metadata()))


def append_transfers(directory: Path, step: int, rows: Seq[Any]) -> Path:
    """What became of every response that was offered in one step (``exchange_report.TransferRow``)."""
    columns = [name for name in TRANSFERS.names if name != "step"]
    made = [{"step": step} | {name: getattr(row, name) for name in columns} for row in rows]
    return append_rows(directory, step, made, TRANSFERS)


def append_rows(directory: Path, step: int, rows: Seq[Mapping[str, Any]], schema: pa.Schema) -> Path:
    """Write one part and list it in the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    target = part(directory, step)
    _write(target, content)
    listed = {k: v for k, v in manifest(directory).items() if step_of(Path(k)) < step}
    listed[target.name] = {"rows": len(rows), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _write_manifest(directory, listed)
    return target


def sync(directory: Path, after: int) -> None:
    """Make the parts of steps after ``after``, the manifest and their names durable."""
    if not directory.is_dir():
        return
    written = [f for f in directory.glob("step-*.parquet") if step_of(f) > after]
    for path in (*written, *directory.glob(MANIFEST), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def manifest(directory: Path) -> dict[str, dict[str, Any]]:
    """part name -> rows, bytes, sha256; {} where there is no manifest."""
    file = directory / MANIFEST
    if not file.exists():
        return {}
    try:
        parts: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["parts"]
    except (ValueError, KeyError) as e:
        raise BrokenLog(
            f"{file} is not a manifest of a trajectory log ({e}); restore it, or delete it to read the parts unchecked"
        ) from e
    return parts


def drop_after(directory: Path, step: int) -> None:
    """Remove parts of later steps and unfinished ones: what a run that resumes after ``step`` will write again."""
    listed = manifest(directory)
    kept = {k: v for k, v in listed.items() if step_of(Path(k)) <= step}
    if kept != listed:
        _write_manifest(directory, kept)
    for file in directory.glob("step-*"):
        if file.suffix == ".tmp" or step_of(file) > step:
            file.unlink()
    (directory / MANIFEST).with_suffix(".tmp").unlink(missing_ok=True)
    if directory.is_dir() and not kept:
        (directory / MANIFEST).unlink(missing_ok=True)


def steps(directory: Path) -> tuple[int, ...]:
    """The steps that the log holds, by its manifest, else by its files."""
    names = manifest(directory) or [f.name for f in directory.glob("step-*.parquet")]
    return tuple(sorted(step_of(Path(name)) for name in names))


def problems(directory: Path) -> list[str]:
    """Everything that is wrong with a log, each naming its part; [] for a whole one. Reads every byte."""
    listed = manifest(directory)
    found = []
    for step in sorted({*steps(directory), *(step_of(f) for f in directory.glob("step-*.parquet"))}):
        name = part(directory, step).name
        if listed and name not in listed:
            found.append(f"{directory / name} is not in the manifest: its writer was stopped before the step was complete")
            continue
        try:
            read(directory, step)
        except (BrokenLog, FileNotFoundError) as e:
            found.append(str(e))
    present = steps(directory)
    found += [f"{part(directory, k)} is missing" for k in range(1, max(present, default=0)) if k not in present]
    return found


def read(directory: Path, step: int, *, columns: Seq[str] | None = None) -> pa.Table:
    """One step's rows. Columns that the log's version did not have yet are null.

    FileNotFoundError if the step was not logged; BrokenLog if the part is missing, torn or changed.
    """
    file = part(directory, step)
    entry = manifest(directory).get(file.name)
    if not file.exists():
        if entry is not None:
            raise BrokenLog(f"{file} is missing, although the manifest lists it with {entry['rows']} rows; copy the log again")
        raise FileNotFoundError(f"{file}: step {step} was not logged; the log holds {said(steps(directory))}")
    content = file.read_bytes()
    if entry is not None and (len(content) != entry["bytes"] or hashlib.sha256(content).hexdigest() != entry["sha256"]):
        size = f"{len(content)} bytes instead of {entry['bytes']}" if len(content) != entry["bytes"] else "other bytes"
        raise BrokenLog(f"{file} is torn or was changed: it holds {size} than the manifest lists; copy the log again")
    wanted = list(columns or SCHEMA.names)
    try:
        opened = pq.ParquetFile(pa.BufferReader(content))
        table = opened.read(columns=[name for name in wanted if name in opened.schema_arrow.names])
    except pa.ArrowInvalid as e:
        raise BrokenLog(f"{file} is torn or no Parquet file ({str(e).splitlines()[0]}); copy the log again") from e
    return _with_columns(table, wanted, file)


def _with_columns(table: pa.Table, columns: Seq[str], file: Path) -> pa.Table:
    arrays = []
    for name in columns:
        if name in table.column_names:
            arrays.append(table[name].cast(SCHEMA.field(name).type))
        elif SCHEMA.get_field_index(name) < SCHEMA.get_field_index("correct"):
            raise BrokenLog(f"{file} has no column {name}; it is no part of a trajectory log")
        else:
            arrays.append(pa.nulls(len(table), SCHEMA.field(name).type))
    made = pa.table(dict(zip(columns, arrays, strict=True)))
    return made.replace_schema_metadata(table.schema.metadata)


def senders(table: pa.Table) -> dict[str, Sender]:
    """The tokenizers of a part's models as far as the part says them; {} for logs that do not."""
    noted = json.loads((table.schema.metadata or {}).get(METADATA, b"{}")).get("senders", {})
    return {m: Sender(s["fingerprint"], frozenset(s["special_ids"])) for m, s in noted.items()}


def said(numbers: Seq[int]) -> str:
    """``steps 1 to 7`` or ``no step``; gaps are said."""
    if not numbers:
        return "no step"
    gaps = sorted({*range(numbers[0], numbers[-1])} - {*numbers})
    return f"steps {numbers[0]} to {numbers[-1]}" + (f" without {', '.join(map(str, gaps[:5]))}" if gaps else "")


def _write_manifest(directory: Path, parts: Mapping[str, Mapping[str, Any]]) -> None:
    text = json.dumps({"format": FORMAT, "parts": parts}, sort_keys=True, indent=0) + "\n"
    _write(directory / MANIFEST, text.encode())


def _write(target: Path, content: bytes) -> None:
    """Aside, then rename."""
    aside = target.with_suffix(".tmp")
    aside.write_bytes(content)
    os.replace(aside, target)
