"""Launching: freeze the runs, find what is in hand already, and start the rest, here or on Slurm.

Nothing is submitted twice: one launch at a time looks and submits under a lock, every batch is on disk before it is submitted, and
a run whose job is queued or running, whoever launched it, is left alone.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.batch_script import FOLDER, Batch, Script, comment
from experiments.cluster import ClusterSection
from experiments.config import Options
from experiments.donors import needs
from experiments.errors import UserError
from experiments.progress import Display
from experiments.run_record import RunRecord
from experiments.train import check, freeze
from experiments.works import Runs, Work, grouped, levels, works_of
from sweeps import slurm
from sweeps.batches import new_batch, write_script
from sweeps.local import run_local
from sweeps.snapshot import require_clean, take
from sweeps.survey import Standing, Tracked, survey, track


@dataclass(frozen=True)
class How:
    """How to launch. ``jobs``: local processes at a time (0: one per core). ``retry``: start failed runs again, too."""

    cluster: ClusterSection
    jobs: int = 0
    wait: bool = False
    retry: bool = False
    require_clean: bool = False


@contextmanager
def launch_lock(root: Path) -> Iterator[None]:
    """One launch at a time under an experiment's root."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    with open(root / FOLDER / ".lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def complete(work: Work) -> bool:
    """Whether this stage of the run has nothing left to do."""
    return work.record.done or (work.stage == "train" and (work.record.path / "selected.json").exists())


def freeze_all(runs: Runs) -> list[tuple[RunRecord, Options]]:
    """Check everything, then freeze everything: a mistake in any run stops the launch before anything is written."""
    for plan, options in runs.values():
        check(plan, options)
    return [(freeze(plan, options), options) for plan, options in runs.values()]


def to_start(standings: Sequence[Standing], *, retry: bool) -> tuple[set[str], list[Standing]]:
    """(fingerprints to start, failed runs that are left alone)."""
    wanted = {"missing", "interrupted", *(["failed"] if retry else [])}
    return {s.fingerprint for s in standings if s.state in wanted}, [s for s in standings if s.state == "failed" and not retry]


def launch(runs: Runs, how: How, display: Display) -> int:
    """Start what is missing; the worst exit code. Slurm jobs are submitted and left; ``how.wait`` follows them to their end."""
    root = next(iter(runs.values()))[1].experiment_root
    slurm_here = how.cluster.scheduler == "slurm"
    if how.require_clean:
        require_clean()
    if slurm_here:
        require_plain_name(root)
    frozen = freeze_all(runs)
    records = [r for r, _ in frozen]
    with launch_lock(root):
        tracked = track(root, adopt=True)
        standings = survey(records, tracked)
        start, failed = to_start(standings, retry=how.retry)
        works = [w for r, o in frozen if r.config["fingerprint"] in start for w in works_of(r, o, how.cluster)]
        works, held = without_donor(works, records, tracked if slurm_here else {})
        for run, donor in held:
            display.say(f"NOT STARTED {run}: it learns from the log of {donor}, which is not finished and not started here")
        say_what(standings, failed, how, display)
        code = take(root) if works else root
        if slurm_here:
            submit_all(root, [w for w in works if not complete(w)], how.cluster, code, tracked, display)
    if slurm_here:
        return max(follow(records, display) if how.wait else worst_of(failed), 1 if held else 0)
    here = run_local(root, works, how.jobs or len(os.sched_getaffinity(0)), code, display) if works else 0
    elsewhere = [s for s in standings if s.in_hand and s.job]
    if elsewhere and how.wait:
        here = max(here, follow(records, display))
    return max(here, worst_of(failed), 1 if held or (elsewhere and not how.wait) else 0)


def without_donor(
    works: Sequence[Work], records: Sequence[RunRecord], tracked: Mapping[str, Tracked]
) -> tuple[list[Work], list[tuple[str, str]]]:
    """(works to start, (run, donor) of those whose donor is not trained, not among the works, nor in a queue that can be waited for)."""
    coming = {w.key.partition(":")[0] for w in works} | {key.partition(":")[0] for key, t in tracked.items() if t.in_flight}
    trained = {r.config["fingerprint"] for r in records if (r.path / "selected.json").exists()}
    names = {r.config["fingerprint"]: r.path.name for r in records}
    lacking = {w.fingerprint: [d for d in needs(w.record.config["recipe"]) if d not in coming | trained] for w in works}
    # A donor that was given by its path is no part of the launch; its own check says whether it is there.
    held = {f: names[d[0]] for f, d in lacking.items() if d and d[0] in names}
    return [w for w in works if w.fingerprint not in held], [(names[f], donor) for f, donor in held.items()]


def require_plain_name(root: Path) -> None:
    """UserError for a folder whose name Slurm would change: it drops backslashes from a log's name, and the job cannot start."""
    if any(c in str(root.resolve()) for c in ("\\", "\n")):
        raise UserError(
            f"{root.resolve()}: Slurm cannot write logs below a name with a backslash or a line break; rename the folder"
        )


def say_what(standings: Sequence[Standing], failed: Sequence[Standing], how: How, display: Display) -> None:
    """What was found, before anything is started."""
    number = {s: sum(x.state == s for x in standings) for s in ("done", "running", "queued", "waiting")}
    hand = number["running"] + number["queued"] + number["waiting"]
    start = len(to_start(standings, retry=how.retry)[0])
    busy = f"{hand} in hand already, " if hand else ""
    display.say(f"{len(standings)} runs, {number['done']} done already, {busy}{start} to run")
    for s in failed:
        display.say(f"FAILED before, left alone: {s.name}: {s.reason} (log: {s.log}). Start it again with --retry-failed.")


def worst_of(failed: Sequence[Standing]) -> int:
    return 1 if failed else 0


def submit_all(
    root: Path, works: Sequence[Work], cluster: ClusterSection, code: Path, tracked: Mapping[str, Tracked], display: Display
) -> list[Batch]:
    """Submit works in arrays of equal resources and equal dependencies. The caller holds the launch lock."""
    tasks = {key: t.task for key, t in tracked.items() if t.in_flight}
    most = slurm.max_array_size() if works else 1
    submitted = []
    for level in levels([w for w in works if w.key not in tasks]):
        for (resources, after), group in grouped(level, cluster, tasks).items():
            for start in range(0, len(group), most):
                batch = submit(root, group[start : start + most], Script(cluster, resources, code, sys.executable, after))
                tasks |= {w.key: batch.task(k) for k, w in enumerate(group[start : start + most])}
                submitted.append(batch)
                display.say(f"submitted job {batch.job_id}: {len(batch.elements)} of {len(works)} ({batch.folder})")
    return submitted


def submit(root: Path, works: Sequence[Work], script: Script) -> Batch:
    """One sbatch call. Its folder is on disk before it; a refusal leaves no folder behind.

    Without an answer the folder stays: the job may be in the queue, where the next launch finds it.
    """
    script = replace(script, python=script.cluster.python or script.python)
    batch = new_batch(root, works, script.resources)
    file = write_script(batch, script)
    try:
        return batch.submitted(slurm.submit(file, comment(batch)))
    except slurm.NoAnswer:
        raise
    except UserError:
        file.unlink()
        (batch.folder / "batch.json").unlink()
        batch.folder.rmdir()
        raise


def follow(records: Sequence[RunRecord], display: Display) -> int:
    """Show a live table until no run is in hand; 0 if all are done."""
    from sweeps.status import watch

    return watch(records, display)
