"""Runs on this machine: separate processes, longest first, some at a time. A job never depends on its launcher staying alive."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.batch_script import Batch
from experiments.errors import EXIT_BUSY
from experiments.progress import Display, summary
from experiments.run_record import RunRecord
from experiments.works import Work, levels
from sweeps.batches import new_batch
from sweeps.survey import last_lines, last_row

POLL_S = 0.5
BRIEF_STEPS = 10


def job_environment(threads: int, code: Path) -> dict[str, str]:
    """OpenMP must be bounded before torch is imported: two 2-thread processes on 2 cores are many times slower than two of 1."""
    own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}
    return os.environ | own | {"PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1"}


def brief(record: RunRecord) -> bool:
    """A run that is over about as soon as a process has imported torch; such runs share a process."""
    return not record.trains or (record.config["recipe"]["training"]["max_steps"] or BRIEF_STEPS + 1) <= BRIEF_STEPS


def shares(works: Sequence[Work], jobs: int) -> list[list[Work]]:
    """What each process gets, largest first: a long run is alone, brief ones are dealt out to ``jobs`` processes.

    Runs that need others finished come after them, and never share a process with them.
    """
    dealt = []
    for level in levels(works):
        ordered = sorted(level, key=lambda w: w.size, reverse=True)
        short = [w for w in ordered if brief(w.record)]
        dealt += [[w] for w in ordered if not brief(w.record)] + [short[i::jobs] for i in range(min(jobs, len(short)))]
    return dealt


def next_share(waiting: Sequence[Sequence[Work]], running: Sequence[LocalJob]) -> int | None:
    """The first share that needs nothing that waits or runs; None if there is none now."""
    pending = {w.key for share in waiting for w in share} | {key for job in running for key in job.batch.keys}
    return next((k for k, share in enumerate(waiting) if not any(pending & set(w.after) for w in share)), None)


@dataclass
class LocalJob:
    """One ``experiments.job`` process, its runs (done in this order), and how far they were seen."""

    records: list[RunRecord]
    process: subprocess.Popen[bytes]
    batch: Batch
    shown: dict[Path, int] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.batch.log(0)

    @classmethod
    def start(cls, root: Path, works: Sequence[Work], code: Path) -> LocalJob:
        batch = new_batch(root, works, None)
        with open(batch.log(0), "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "experiments.job", "--batch", str(batch.folder.resolve() / "batch.json")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=job_environment(works[0].options.threads, code.resolve()),
                cwd=code,
                start_new_session=True,
            )
        return cls([w.record for w in works], process, batch)

    def show(self, display: Display) -> None:
        """Report the newest finished step of the run in hand, or its evaluation files."""
        record = next((r for r in self.records if not r.done), None)
        if record is not None:
            show_progress(record, self.shown, display)


def show_progress(record: RunRecord, shown: dict[Path, int], display: Display) -> None:
    """One line of progress of a run, if there is news. ``shown``: the newest step reported, by run."""
    status = record.status()
    last = last_row(record.path / "metrics.jsonl") if status["state"] == "running" else None
    if last is not None:
        if last["step"] != shown.get(record.path):
            shown[record.path] = last["step"]
            display.update(record.path.name, last["step"], status["steps"], summary(last))
        return
    e = record.config["recipe"]["evaluation"]
    total = len(record.config["recipe"]["models"]) * len(e["benchmarks"]) * len(e["seeds"])
    if done := len(list(record.path.glob("eval/*/*/run*.jsonl"))):
        display.update(f"{record.path.name} evaluation", done, total)


def run_local(root: Path, works: Sequence[Work], jobs: int, code: Path, display: Display) -> int:
    """Bring every run to its end, at most ``jobs`` processes at a time; the worst exit code of the children (0 when all are done).

    A run that another process has in hand is waited for, not started twice.
    """
    waiting, running, worst = shares(works, jobs), list[LocalJob](), 0
    try:
        while waiting or running:
            while len(running) < jobs and (k := next_share(waiting, running)) is not None:
                running.append(LocalJob.start(root, waiting.pop(k), code))
                display.say(f"started {', '.join(r.path.name for r in running[-1].records)} (log: {running[-1].log})")
            time.sleep(POLL_S)
            for job in list(running):
                job.show(display)
                if job.process.poll() is not None:
                    running.remove(job)
                    worst = max(worst, _ended(job, display))
    except KeyboardInterrupt:
        for job in running:
            job.process.terminate()
        display.say("interrupted; run the same command again to continue where the runs stopped")
        return 130
    return worst


def _ended(job: LocalJob, display: Display) -> int:
    """Say how a process ended; its exit code, or 1 if a run is not done although it ended well."""
    code = job.process.returncode
    if code == EXIT_BUSY:
        wait_for_others(job.records, display)
        code = 0
    failed = [r for r in job.records if not r.done]
    for record in job.records:
        display.say(f"{'FAILED' if record in failed else 'done'} {record.path}")
    if code != 0 or failed:
        display.say(f"exit code {code}; the last lines of {job.log}:\n{last_lines(job.log)}")
        return abs(code) or 1
    return 0


def wait_for_others(records: Sequence[RunRecord], display: Display) -> None:
    """Follow runs that other processes have in hand until they are done or let go."""
    shown: dict[Path, int] = {}
    for record in records:
        if record.alive():
            display.say(f"{record.path} is being run by another process; following it")
        while record.alive() and not record.done:
            show_progress(record, shown, display)
            time.sleep(POLL_S)
