"""Where every run stands, from its records and the scheduler together. A record's word is stronger than the scheduler's.

States: ``done`` (its completion record is there), ``running``, ``queued``, ``waiting`` (for another job), ``interrupted`` (goes on
when launched again), ``failed`` (by its own error; goes on only when told to), ``missing`` (never started).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.batch_script import Batch, comment, job_name
from experiments.ledger import read_ledger
from experiments.run_record import RunRecord
from sweeps import slurm
from sweeps.batches import read_batches
from sweeps.slurm import JobState

IN_HAND = ("running", "queued", "waiting")
# Ends that say nothing against the run itself: it goes on from its newest checkpoint.
OUTSIDE = ("CANCELLED", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "BOOT_FAIL", "REVOKED", "DEADLINE")
TAIL_BYTES = 1 << 16
RECENT_STEPS = 10


@dataclass(frozen=True)
class Tracked:
    """The newest job of a work (``fingerprint:stage``); ``state`` is None for a local process or when nobody knows it any more."""

    batch: Batch
    element: int
    state: JobState | None

    @property
    def task(self) -> str:
        return self.batch.task(self.element)

    @property
    def in_flight(self) -> bool:
        return self.state is not None and self.state.in_flight


def track(root: Path, *, adopt: bool = False) -> dict[str, Tracked]:
    """work key -> its newest job under an experiment's root. Slurm is asked only if something was submitted to it.

    ``adopt``: batches whose launcher died after the submission get their job's id back (the caller holds the launch lock).
    """
    batches = read_batches(root)
    states: dict[str, JobState] = {}
    if any(b.resources is not None for b in batches):
        states = slurm.queue(retry_s=slurm.RETRY_S if adopt else 0.0)
        batches = _with_ids(batches, slurm.arrays(states), adopt)
    # An id alone is no proof: a controller that lost its newest state gives ids out again.
    known = {b.task(k): s for b in batches for k, _ in enumerate(b.elements) if (s := _state(states, b, k))}
    works = [(f"{e['fingerprint']}:{e['stage']}", b, k) for b in batches for k, e in enumerate(b.elements)]
    newest = {key: (b, k) for key, b, k in works}
    unknown = {
        b.job_id: job_name(b) for b, k in newest.values() if b.job_id and b.task(k) not in known and not _done(b.elements[k])
    }
    known = slurm.history(unknown) | known
    # A job that is still in the queue matters more than a younger one that ended.
    newest |= {key: (b, k) for key, b, k in works if b.job_id and (state := known.get(b.task(k))) and state.in_flight}
    return {key: Tracked(b, k, known.get(b.task(k)) if b.job_id else None) for key, (b, k) in newest.items()}


def _state(states: Mapping[str, JobState], batch: Batch, element: int) -> JobState | None:
    """The queue's word about an element, if the job of that id is the batch's."""
    found = states.get(batch.task(element)) if batch.job_id else None
    return found if found is not None and found.comment == comment(batch) else None


def _with_ids(batches: Sequence[Batch], ids: Mapping[str, str], adopt: bool) -> list[Batch]:
    """Batches that were submitted, or are local; those whose launcher died before it noted the id are found by their comment."""
    orphans = [b for b in batches if b.resources is not None and b.job_id is None and comment(b) in ids]
    found = {b.id: b.submitted(ids[comment(b)]) if adopt else replace(b, job_id=ids[comment(b)]) for b in orphans}
    named = [found.get(b.id, b) for b in batches]
    return [b for b in named if b.resources is None or b.job_id is not None]


def _done(element: Mapping[str, Any]) -> bool:
    return (Path(element["run"]) / "done.json").exists()


@dataclass(frozen=True)
class Standing:
    """One run's line. ``eta_s``, ``pass_rate``: None where unknown. ``hours``: device-hours so far, of ``device``."""

    name: str
    fingerprint: str
    state: str
    attempt: int = 0
    step: int = 0
    steps: int | None = None
    eta_s: float | None = None
    pass_rate: float | None = None
    hours: float = 0.0
    device: str = "CPU"
    reason: str = ""
    job: str = ""
    log: str = ""

    @property
    def in_hand(self) -> bool:
        return self.state in IN_HAND


def survey(records: Iterable[RunRecord], tracked: Mapping[str, Tracked]) -> list[Standing]:
    """The standing of each run, in their order."""
    by_print: dict[str, list[Tracked]] = {}
    for key, t in tracked.items():
        by_print.setdefault(key.partition(":")[0], []).append(t)
    return [standing(r, by_print.get(r.config["fingerprint"], [])) for r in records]


def standing(record: RunRecord, jobs: Sequence[Tracked]) -> Standing:
    """One run. ``jobs``: the newest one of each of its stages."""
    status = record.status()
    state, reason = judge(record, status, jobs)
    shown = _telling(jobs, state)
    ledger = read_ledger(record)
    seconds = [c.wall for c in ledger.kept]
    steps, step = status["steps"], status["step"]
    last = last_row(record.path / "metrics.jsonl") if state != "missing" else None
    if last is not None:
        step = max(step, last["step"]) if state in ("running", "done") else step
    recent = seconds[-RECENT_STEPS:]
    return Standing(
        name=record.path.name,
        fingerprint=record.config["fingerprint"],
        state=state,
        attempt=status["attempt"],
        step=step,
        steps=steps,
        eta_s=(steps - step) * sum(recent) / len(recent) if state == "running" and steps and recent else None,
        pass_rate=_pass_rate(last),
        hours=ledger.spent,
        device=ledger.devices.kind.upper(),
        reason=reason,
        job=shown.task if shown and shown.batch.job_id else "",
        log=str(log_of(record, shown)),
    )


def judge(record: RunRecord, status: Mapping[str, Any], jobs: Sequence[Tracked]) -> tuple[str, str]:
    """(state, reason). A job that ended is no evidence of a finished run; only the completion record is."""
    if record.done:
        return "done", ""
    flying = [t.state for t in jobs if t.in_flight and t.state]
    if any(s.state != "PENDING" for s in flying):
        return "running", ""
    queued = [s for s in flying if not s.waiting]
    if queued:
        return "queued", queued[0].reason
    if flying:
        return "waiting", flying[0].reason
    if record.alive():
        return "running", ""
    said = status["reason"] or ""
    if status["state"] == "failed":
        return "failed", said
    ended = [t.state for t in jobs if t.state is not None]
    if ended and status["state"] != "interrupted":
        return _after_job(status, ended[-1])
    if status["state"] == "prepared":
        return "missing", ""
    if status["state"] == "trained":
        return "interrupted", said or "trained; its evaluation is not complete"
    return "interrupted", said or f"its process ended at step {status['step']} without a word (killed?)"


def _after_job(status: Mapping[str, Any], ended: JobState) -> tuple[str, str]:
    words = ended.state + (f", {ended.reason}" if ended.reason else "")
    if ended.state in OUTSIDE:
        return "interrupted", f"its job ended as {words}"
    # A run that ends by itself says so in its record, in training ("running") as in evaluation ("trained").
    killed = ended.state == "FAILED" and status["state"] in ("running", "trained")
    if killed:
        return "interrupted", f"its process was killed (job {words})"
    return "failed", f"its job ended as {words}, without a complete record"


def _telling(jobs: Sequence[Tracked], state: str) -> Tracked | None:
    """The job whose log says most: the running one, else the last stage that began (an evaluation that was given up never did)."""
    running = [t for t in jobs if t.in_flight and t.state and t.state.state != "PENDING"]
    began = [t for t in jobs if t.batch.log(t.element).exists()]
    return (running or began or list(jobs) or [None])[-1] if state != "missing" or jobs else None


def log_of(record: RunRecord, job: Tracked | None) -> Path:
    return job.batch.log(job.element) if job else record.path / "job.log"


def last_row(path: Path) -> Any:
    """The last complete row of a JSONL file, read from its end; None if there is none."""
    try:
        with open(path, "rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - TAIL_BYTES))
            lines = f.read().split(b"\n")
    except FileNotFoundError:
        return None
    for line in reversed(lines[:-1]):
        try:
            return json.loads(line)
        except ValueError:  # the tail began inside this one
            return None
    return None


def _pass_rate(row: Mapping[str, Any] | None) -> float | None:
    if row is None:
        return None
    rates = [m["reward_mean"] for m in row["models"].values()]
    return sum(rates) / len(rates)


def last_lines(log: Path, count: int = 8) -> str:
    """The end of a job's log, for a person."""
    try:
        with open(log, "rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - TAIL_BYTES))
            return "\n".join(f.read().decode("utf-8", "replace").splitlines()[-count:])
    except FileNotFoundError:
        return "(no log)"


def clock() -> str:
    return time.strftime("%H:%M:%S")
