"""What an interrupted process does next: come back (requeue), wait for the kill, or exit. Standard library only.

The batch script exports ``GRAFT_SIGNAL_LEAD`` (how many seconds before the time limit it asked for SIGUSR2) and
``GRAFT_MAX_TIMEOUTS`` (how often one job may be requeued by its time limit). This process is the only owner of requeueing after
SIGUSR2; after SIGTERM it is Slurm itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from experiments.attempts import Attempt, job_name
from experiments.errors import EXIT_OWN_ERROR
from experiments.interruption import Interrupted, exit_code

LEAD, MAX_TIMEOUTS = "GRAFT_SIGNAL_LEAD", "GRAFT_MAX_TIMEOUTS"
# Without the script's word: long enough that a time limit is never taken for a preemption, which would be requeued for ever.
DEFAULT_LEAD_S = 300.0
DEFAULT_MAX_TIMEOUTS = 3
LEAD_SLACK_S = 60.0  # Slurm may send the signal up to this much early
COMMAND_LIMIT_S = 20.0
REQUEUE_PAUSES_S = (0.0, 2.0, 5.0, 10.0, 20.0)  # the controller may be restarting
# Grace times of preemption and KillWait are the cluster's; a signal that no kill follows must not hold a node for ever.
WAIT_FOR_KILL_S = 900.0


@dataclass(frozen=True)
class Facts:
    """What is known at an interruption. ``job``: 7 or 7_3, None outside Slurm. ``remaining_s``: from the signal to the job's end by
    its time limit, None if nobody says."""

    job: str | None
    remaining_s: float | None = None
    lead_s: float = DEFAULT_LEAD_S


@dataclass(frozen=True)
class Decision:
    """``ending`` is the attempt's reason in end.json; "failed" is the only one that a launcher must not repeat by itself."""

    action: Literal["requeue", "wait_for_kill", "exit"]
    ending: Literal["interrupted", "timeout", "preempted", "failed"]
    reason: str
    job: str | None = None


def after_interruption(number: signal.Signals, facts: Facts, timeouts: int, max_timeouts: int) -> Decision:
    """``timeouts``: earlier attempts of this job that its time limit ended.

    Only SIGUSR2 brings a job back: it comes near the time limit (counted) or with a preemption (never counted). SIGTERM is a
    cancellation, which must not come back, or a preemption, which Slurm requeues if the process is there to be killed.
    """
    if facts.job is None:
        return Decision("exit", "interrupted", "not under a scheduler; the same command resumes")
    if number == signal.SIGTERM:
        return Decision("wait_for_kill", "interrupted", "cancelled, or preempted and requeued by Slurm itself", facts.job)
    if number != signal.SIGUSR2:
        return Decision("exit", "interrupted", "stopped by hand; the same command resumes", facts.job)
    # An unknown end counts as the time limit: requeueing without a count could go on for ever.
    near = facts.remaining_s is None or facts.remaining_s <= facts.lead_s + LEAD_SLACK_S
    if not near:
        return Decision("requeue", "preempted", f"preempted {facts.remaining_s:.0f} s before the time limit", facts.job)
    if timeouts < max_timeouts:
        return Decision("requeue", "timeout", f"time limit reached, requeue {timeouts + 1} of {max_timeouts}", facts.job)
    return Decision(
        "exit", "failed", f"time limit reached {timeouts + 1} times; raise the cluster's time or max_timeouts", facts.job
    )


def decide(interrupted: Interrupted, earlier: Sequence[Attempt], environ: Mapping[str, str] = os.environ) -> Decision:
    """The decision for this process. Asks Slurm for the job's end after SIGUSR2 under Slurm, and nobody otherwise.

    Earlier timeouts count within one job only: launching again is a person's decision and has a budget of its own.
    """
    job = job_name(environ)
    remaining = None
    if job is not None and interrupted.number == signal.SIGUSR2:
        end = end_time(job, environ)
        remaining = None if end is None else end - interrupted.at
    facts = Facts(job, remaining, _number(environ, LEAD, DEFAULT_LEAD_S))
    timeouts = sum(a.reason == "timeout" and a.job == job for a in earlier)
    return after_interruption(interrupted.number, facts, timeouts, int(_number(environ, MAX_TIMEOUTS, DEFAULT_MAX_TIMEOUTS)))


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    """A malformed variable must not lose a run that has just saved itself."""
    try:
        return float(environ[name])
    except (KeyError, ValueError):
        return default


def end_time(job: str, environ: Mapping[str, str]) -> float | None:
    """Seconds since the epoch at which the time limit ends the job: squeue's word (an administrator may have moved it), else the
    one in the environment (Slurm 23 and later)."""
    said = _command(["squeue", "-h", "-j", job, "-o", "%e"], environ | {"SLURM_TIME_FORMAT": "standard"})
    try:
        return datetime.fromisoformat(said[1].split()[0]).timestamp()
    except (ValueError, IndexError):
        return _number(environ, "SLURM_JOB_END_TIME", 0.0) or None


def _command(command: Sequence[str], environ: Mapping[str, str]) -> tuple[bool, str]:
    """(success, output or error) of a Slurm command, which may hang while its controller is away."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, env=dict(environ), stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return False, str(e)
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr.strip()


class Leaving(BaseException):
    """Carries the decision out of a run whose record is closed; whoever owns the process calls ``leave``."""

    def __init__(self, number: signal.Signals, decision: Decision):
        super().__init__(f"{number.name}: {decision.reason}")
        self.number, self.decision = number, decision


def leave(leaving: Leaving, environ: Mapping[str, str] = os.environ) -> int:
    """Requeue or wait as decided; the exit code of the process if it is still there afterwards."""
    decision = leaving.decision
    print(f"{leaving.number.name}: {decision.action.replace('_', ' ')} ({decision.reason})", file=sys.stderr, flush=True)
    if decision.action == "requeue" and decision.job is not None and not requeue(decision.job, environ):
        return exit_code(leaving.number)
    if decision.action != "exit":
        time.sleep(WAIT_FOR_KILL_S)
    return EXIT_OWN_ERROR if decision.ending == "failed" else exit_code(leaving.number)


def requeue(job: str, environ: Mapping[str, str] = os.environ) -> bool:
    """``scontrol requeue``, repeated while it is refused."""
    for pause in REQUEUE_PAUSES_S:
        time.sleep(pause)
        done, said = _command(["scontrol", "requeue", job], environ)
        if done:
            return True
        print(f"scontrol requeue {job}: {said}", file=sys.stderr, flush=True)
    return False
