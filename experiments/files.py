"""Writing files so that a kill at any moment leaves either the old file or the new one. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, non-ASCII kept, NaN refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fsync_dir(path: Path) -> None:
    """Make a rename in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8, lone surrogates escaped) aside, fsync, rename over ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    fsync_dir(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Atomic, indented, sorted JSON for people and programs."""
    write_atomic(path, json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; ValueError names the file when it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise ValueError(f"{path}: not JSON ({e}); the file was changed by something else, restore or delete the run") from e


def complete_bytes(path: Path) -> int:
    """Size of ``path`` up to and including its last newline: what a torn append leaves intact."""
    data = path.read_bytes() if path.exists() else b""
    return data.rfind(b"\n") + 1


class JsonlWriter:
    """Append rows to a JSONL file. Opening repairs a torn tail by truncating it to ``offset`` or to its last newline."""

    def __init__(self, path: Path, offset: int | None = None):
        path.parent.mkdir(parents=True, exist_ok=True)
        keep = complete_bytes(path)
        if offset is not None:
            if offset > keep:
                raise ValueError(
                    f"{path} holds {keep} complete bytes but the checkpoint expects {offset}; rows were removed from it"
                )
            keep = offset
        self._file = open(path, "ab")
        self._file.truncate(keep)
        self._file.seek(keep)

    def append(self, row: Any) -> None:
        """Write one row as canonical JSON. A lone surrogate in a text is kept as its escape."""
        line = canonical_json(row).encode("utf-8", errors="backslashreplace")
        self._file.write(line + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Fsync; returns the offset that a checkpoint stores."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def iter_jsonl(path: Path) -> Iterator[Any]:
    """Rows of a JSONL file. A torn last line is dropped; a bad line anywhere else is a ValueError with its number."""
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as e:
                raise ValueError(
                    f"{path}:{number}: not a JSON row ({e}); it is not the last line, so it was not torn by a kill"
                ) from e
