"""Stopping what was launched, and nothing else: the tasks of the named runs that this experiment's batches submitted."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Sequence

from experiments.run_record import RunRecord
from sweeps import slurm
from sweeps.survey import track


def cancel(records: Sequence[RunRecord]) -> list[str]:
    """Cancel the Slurm tasks of these runs, and tell local processes of theirs to save and stop. What was done, a line each."""
    if not records:
        return []
    prints = {r.config["fingerprint"] for r in records}
    flying = [t for key, t in track(records[0].path.parent).items() if key.partition(":")[0] in prints and t.in_flight]
    slurm.cancel([t.task for t in flying])
    said = [f"cancelled job {t.task} ({t.batch.elements[t.element]['run']})" for t in flying]
    for record in records:
        if record.alive() and (pid := local_pid(record)):
            os.kill(pid, signal.SIGTERM)
            said.append(f"told process {pid} to save and stop ({record.path})")
    return said


def local_pid(record: RunRecord) -> int | None:
    """The process that has the run in hand, if it is one of this machine and no Slurm job's."""
    last = record.attempts()[-1:]
    mine = [a for a in last if a.end is None and a.job is None and a.start.get("host") == platform.node()]
    return int(mine[0].start["pid"]) if mine else None
