"""``attempts/<k>/``: one process's go at a run. How it started, how it ended; no end means that it was killed. Standard library only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.files import read_json, write_json

# What a scheduler calls this process. The job's array id and task are how squeue and scontrol name an element.
SCHEDULER_IDS = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")
RESERVE_BYTES = 64 * 1024


def scheduler_ids(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {name: environ[name] for name in SCHEDULER_IDS if name in environ}


def job_name(ids: Mapping[str, str]) -> str | None:
    """``7``, ``7_3`` for an array's element, None outside Slurm."""
    if "SLURM_JOB_ID" not in ids:
        return None
    if "SLURM_ARRAY_TASK_ID" in ids and "SLURM_ARRAY_JOB_ID" in ids:
        return f"{ids['SLURM_ARRAY_JOB_ID']}_{ids['SLURM_ARRAY_TASK_ID']}"
    return ids["SLURM_JOB_ID"]


@dataclass(frozen=True)
class Attempt:
    """``end`` is None while the process lives, and for ever when it was killed."""

    number: int
    path: Path
    start: Mapping[str, Any]
    end: Mapping[str, Any] | None

    @property
    def reason(self) -> str | None:
        """done, trained, interrupted, timeout, preempted, environment or failed."""
        return self.end["reason"] if self.end is not None else None

    @property
    def job(self) -> str | None:
        """As ``job_name``."""
        return job_name(self.start)


def read_attempts(base: Path) -> tuple[Attempt, ...]:
    """All attempts in order. One that was killed before it could describe its start has an empty ``start``."""
    numbers = sorted(int(p.name) for p in base.iterdir() if p.name.isdigit()) if base.is_dir() else []
    return tuple(
        Attempt(n, base / str(n), _read(base / str(n) / "start.json") or {}, _read(base / str(n) / "end.json")) for n in numbers
    )


def _read(file: Path) -> dict[str, Any] | None:
    return read_json(file) if file.exists() else None


def next_attempt(base: Path, start: Mapping[str, Any]) -> Path:
    """Create ``<base>/<k>/`` with the next free number (exclusive mkdir) and describe its start."""
    base.mkdir(exist_ok=True)
    path = base / str(1 + max((int(p.name) for p in base.iterdir() if p.name.isdigit()), default=0))
    path.mkdir()
    write_json(path / "start.json", dict(start) | scheduler_ids() | {"pid": os.getpid()})
    return path


@contextmanager
def reserve(path: Path) -> Iterator[None]:
    """Keep a little space on the disk until the end, so that the end can be written on a disk that is full by then.

    Within the context an error frees it before it is handled outside.
    """
    file = path / ".reserve"
    for left_by_a_kill in path.parent.glob("*/.reserve"):
        left_by_a_kill.unlink(missing_ok=True)
    try:
        file.write_bytes(b"\0" * RESERVE_BYTES)  # written, not allocated: not every file system can allocate
        yield
    finally:
        file.unlink(missing_ok=True)


def write_end(path: Path, reason: str, detail: str | None, started: float) -> None:
    """``end.json``; ``started`` is the monotonic time of the attempt's start. A disk that refuses it is not one more error."""
    with noted(path / "end.json"):
        end = {"ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "reason": reason, "detail": detail}
        write_json(path / "end.json", end | {"seconds": time.monotonic() - started})


@contextmanager
def noted(file: Path) -> Iterator[None]:
    """Turn a failed write at the end of an attempt into a line on stderr: the record then says that the process was killed."""
    try:
        yield
    except OSError as e:
        with suppress(OSError):  # the log may be on the same disk
            print(f"{file} could not be written ({e})", file=sys.stderr, flush=True)
