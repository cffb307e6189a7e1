"""``python -m sweeps.launch table2 --scale cpu``: freeze the runs behind a table and bring the missing ones to their end.

Local jobs are separate processes (one thread each by default), longest first, ``--jobs`` at a time. Each writes its own log;
this process shows their progress from their metrics files, so a job never depends on its launcher staying alive.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.files import iter_jsonl
from experiments.progress import Display, summary
from experiments.run_record import RunRecord
from experiments.train import check, freeze
from sweeps.cells import Cell, cells, load_spec, unique_runs

POLL_S = 0.5
BRIEF_STEPS = 10


def job_environment(threads: int) -> dict[str, str]:
    """OpenMP must be bounded before torch is imported: two 2-thread processes on 2 cores are many times slower than two of 1."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


def cost(record: RunRecord) -> int:
    """A rough size for ordering: models trained times responses per prompt. Untouched models come last."""
    recipe = record.config["recipe"]
    return 0 if recipe["method"]["name"] == "base" else len(recipe["models"]) * recipe["method"]["n"]


def brief(record: RunRecord) -> bool:
    """A run that is over about as soon as a process has imported torch; such runs share a process."""
    recipe = record.config["recipe"]
    return recipe["method"]["name"] == "base" or (recipe["training"]["max_steps"] or BRIEF_STEPS + 1) <= BRIEF_STEPS


def batches(records: Sequence[RunRecord], jobs: int) -> list[list[RunRecord]]:
    """What each process gets, largest first: a long run is alone, brief ones are dealt out to ``jobs`` processes."""
    ordered = sorted(records, key=cost, reverse=True)
    short = [r for r in ordered if brief(r)]
    return [[r] for r in ordered if not brief(r)] + [short[i::jobs] for i in range(min(jobs, len(short)))]


@dataclass
class LocalJob:
    """One ``experiments.job`` process, its runs (done in this order), and how far they were seen. The first one holds the log."""

    records: list[RunRecord]
    process: subprocess.Popen[bytes]
    log: Path
    shown: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def start(cls, records: list[RunRecord], threads: int) -> LocalJob:
        log = records[0].path / "job.log"
        with open(log, "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "experiments.job", *(str(r.path) for r in records)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=job_environment(threads),
                start_new_session=True,
            )
        return cls(records, process, log)

    def show(self, display: Display) -> None:
        """Report the newest finished step of the run in hand, or its evaluation files."""
        record = next((r for r in self.records if not r.done), None)
        if record is None:
            return
        metrics = record.path / "metrics.jsonl"
        status = record.status()
        if status["state"] == "running" and metrics.exists():
            for last in deque(iter_jsonl(metrics), maxlen=1):
                if last["step"] != self.shown.get(record.path):
                    self.shown[record.path] = last["step"]
                    display.update(record.path.name, last["step"], status["steps"], summary(last))
        else:
            e = record.config["recipe"]["evaluation"]
            total = len(record.config["recipe"]["models"]) * len(e["benchmarks"]) * len(e["seeds"])
            done = len(list(record.path.glob("eval/*/*/run*.jsonl")))
            if done:
                display.update(f"{record.path.name} evaluation", done, total)

    def last_lines(self, count: int = 8) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])


def run_local(records: Sequence[RunRecord], jobs: int, threads: int, display: Display) -> int:
    """Run every unfinished record; the worst exit code of the children (0 when all are done)."""
    missing = [r for r in records if not r.done]
    waiting = batches(missing, jobs)
    display.say(
        f"{len(records)} runs behind the table, {len(records) - len(missing)} done already, {len(missing)} to run, {jobs} at a time"
    )
    running: list[LocalJob] = []
    worst = 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(LocalJob.start(waiting.pop(0), threads))
                display.say(f"started {', '.join(r.path.name for r in running[-1].records)} (log: {running[-1].log})")
            time.sleep(POLL_S)
            for job in list(running):
                job.show(display)
                code = job.process.poll()
                if code is None:
                    continue
                running.remove(job)
                failed = [r for r in job.records if not r.done]
                for record in job.records:
                    display.say(f"{'FAILED' if record in failed else 'done'} {record.path}")
                if code != 0 or failed:
                    worst = max(worst, abs(code) or 1)
                    display.say(f"exit code {code}; the last lines of {job.log}:\n{job.last_lines()}")
    except KeyboardInterrupt:
        for job in running:
            job.process.terminate()
        display.say("interrupted; run the same command again to continue where the runs stopped")
        return 130
    return worst


@dataclass(frozen=True)
class Request:
    """Which cells of a table: ``pairs`` and ``rows`` () mean the spec's own pair and all of its rows."""

    table: str
    scale: str
    seeds: Sequence[int] = (0,)
    pairs: Sequence[str] = ()
    rows: Sequence[str] = ()

    def cells(self) -> list[Cell]:
        """In the spec's order. UserError for rows that the table does not have."""
        spec = load_spec(self.table)
        known = [row["slug"] for row in spec["rows"]]
        if unknown := sorted(set(self.rows) - set(known)):
            raise UserError(f"{self.table} has no row {', '.join(unknown)}; it has {', '.join(known)}")
        every = (
            cell
            for seed in self.seeds
            for pair in (self.pairs or [spec["pair"]])
            for cell in cells(spec, scale=self.scale, seed=seed, pair=pair)
        )
        return [cell for cell in every if not self.rows or cell.row in self.rows]


def launch(request: Request, *, jobs: int, extra: Sequence[str]) -> int:
    """Freeze first, all of it, then run: a mistake in any cell stops everything before anything starts."""
    runs, lacking = unique_runs(request.cells(), extra)
    if not runs:
        raise UserError(f"{request.table}: none of its methods exists in this version")
    for plan, options in runs.values():
        check(plan, options)
    with Display() as display:
        if lacking:
            display.say(f"not in this version, left out: {', '.join(sorted({c.method for c in lacking}))}")
        records = [freeze(plan, options) for plan, options in runs.values()]
        return run_local(records, jobs, next(iter(runs.values()))[1].threads, display)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sweeps.launch", description=__doc__)
    parser.add_argument("table")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--pairs", nargs="+", default=[])
    parser.add_argument("--rows", nargs="+", default=[], help="only these rows of the table (slugs of its spec)")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0 means one per core")
    parser.add_argument("--overrides", nargs="+", default=[], help="further Hydra overrides for every run")
    args = parser.parse_args(argv)
    try:
        request = Request(args.table, args.scale, args.seeds, args.pairs, args.rows)
        return launch(request, jobs=args.jobs or len(os.sched_getaffinity(0)), extra=args.overrides)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
