"""``make bench-sweeps``: seconds that planning 300 cells and the status of 300 runs take, without a scheduler.

    python -m benchmarks.sweeps [--runs 300] [--steps 174] [--repeat 5]

The runs are frozen by the launcher's own code and have the files of a half-done paper run: metrics and timings of every step, two
attempts. What Slurm itself adds is one squeue call (tests/slurm/test_many.py). Composition is measured from cold caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import compose
from experiments.config import load_config
from experiments.run_record import RunRecord
from experiments.works import Runs, Work
from sweeps import plan, status
from sweeps.batches import new_batch
from sweeps.cells import Request
from sweeps.launch import freeze_all

SCALE = "smoke"


def cells(root: Path, number: int) -> Runs:
    """``number`` runs: GRPO of the two models of a pair, for half as many seeds."""
    runs, _ = Request("table8", SCALE, range((number + 1) // 2), (), ["grpo_n8"], [f"runs_root={root}"]).runs()
    return dict(list(runs.items())[:number])


def half_done(record: RunRecord, steps: int) -> None:
    """The files of a run in the middle of its second attempt."""
    model = {"reward_mean": 0.25, "all_fail_share": 0.5, "clipped_own_tokens": 12, "own_tokens": 34567}
    rows = [json.dumps({"step": k, "models": {"m": model}, "exchange": []}) for k in range(1, steps + 1)]
    (record.path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    seconds = {f"m/{phase}": 12.345678901234 for phase in ("sampling", "update", "verification", "other")}
    times = [json.dumps({"step": k, "seconds": seconds, "tokens": {"m": {"sampled": 34567}}}) for k in range(1, steps + 1)]
    for part in (times[: steps // 2], times[steps // 2 :]):
        attempt = record.new_attempt()
        (attempt / "steps.jsonl").write_text("".join(f"{line}\n" for line in part))
    record.set_status("running", attempt=2, step=steps, steps=2 * steps)


def made(root: Path, number: int, steps: int) -> tuple[Runs, list[RunRecord]]:
    """Runs and their records, with a batch of local processes that has them all."""
    runs = cells(root, number)
    frozen = freeze_all(runs)
    for record, _ in frozen:
        half_done(record, steps)
    new_batch(frozen[0][0].path.parent, [Work(record, options, "all") for record, options in frozen], None)
    return runs, [record for record, _ in frozen]


def timed(action: Callable[[], object], repeat: int) -> list[float]:
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return seconds


def cold_cells(root: Path, number: int) -> Runs:
    """``cells`` as a new process composes them."""
    for cached in (compose._whole, compose._alone):
        cached.cache_clear()
    return cells(root, number)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=174)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args(argv)
    cluster = load_config(["cluster=slurm"]).cluster
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs, records = made(root, args.runs, args.steps)
        measured = {
            f"compose {args.runs} cells": timed(lambda: cold_cells(root, args.runs), args.repeat),
            f"plan {args.runs} composed cells": timed(lambda: plan.plan(runs, cluster), args.repeat),
            f"status of {args.runs} runs of {args.steps} steps": timed(lambda: status.look(records), args.repeat),
        }
    for name, seconds in measured.items():
        print(f"{name}: median {statistics.median(seconds):.2f} s (of {args.repeat}: {min(seconds):.2f} to {max(seconds):.2f})")


if __name__ == "__main__":
    main()
