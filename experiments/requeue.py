"""What an interrupted process does next: come back (requeue), wait for the kill, or exit. Standard library only.

Measured on Slurm 22.05: SIGUSR2 comes once, with ``--signal=B:USR2@lead`` before the time limit or, where the cluster says
``preempt_send_user_signal``, at a preemption; else a preemption is a SIGTERM shortly before the kill. The batch script exports
``GRAFT_SIGNAL_LEAD`` (how many seconds before the time limit it asked for SIGUSR2) and ``GRAFT_MAX_TIMEOUTS`` (how often one job
may be requeued by its time limit).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from experiments.attempts import Attempt, job_name
from experiments.errors import EXIT_OWN_ERROR
from experiments.interruption import Interrupted, exit_code, received

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
    """What is known at an interruption. ``job``: 7 or 7_3, None outside Slurm. ``remaining_s``: from the signal to the job's end,
    None if nobody says (a preemption brings the end nearer). ``stopping``: Slurm has begun to end the job (COMPLETING)."""

    job: str | None
    remaining_s: float | None = None
    lead_s: float = DEFAULT_LEAD_S
    stopping: bool = False
    time_limit: bool = False
    preempted: bool = False
    known: bool = True


@dataclass(frozen=True)
class Decision:
    """``ending`` is the attempt's reason in end.json; "failed" is the only one that a launcher must not repeat by itself."""

    action: Literal["requeue", "wait_for_kill", "exit"]
    ending: Literal["interrupted", "timeout", "preempted", "failed"]
    reason: str
    job: str | None = None


def after_interruption(number: signal.Signals, facts: Facts, timeouts: int, max_timeouts: int) -> Decision:
    """``timeouts``: earlier attempts of this job that its time limit ended.

    The time limit is counted and preemption is not. A job that Slurm has begun to end is left to it, for a requeue would bring a
    cancelled one back; only at the time limit, where nobody else requeues, does this process. A preempted one must be there to
    be killed: if it exits by itself, whatever its code, Slurm does not requeue it.
    """
    if facts.job is None:
        return Decision("exit", "interrupted", "not under a scheduler; the same command resumes")
    if number == signal.SIGINT:
        return Decision("exit", "interrupted", "stopped by hand; the same command resumes", facts.job)
    if facts.stopping and facts.time_limit:
        return _at_the_limit(facts, timeouts, max_timeouts)
    if facts.stopping or number == signal.SIGTERM:
        return _told_to_end(facts)
    # An unknown end counts as the time limit: requeueing without a count could go on for ever.
    near = facts.remaining_s is None or facts.remaining_s <= facts.lead_s + LEAD_SLACK_S
    if near and not facts.preempted:
        return _at_the_limit(facts, timeouts, max_timeouts)
    return Decision("requeue", "preempted", "preempted, requeued", facts.job)


def _told_to_end(facts: Facts) -> Decision:
    if facts.preempted:
        return Decision("wait_for_kill", "preempted", "preempted, requeued by Slurm itself", facts.job)
    if facts.known and not facts.stopping:
        return Decision("exit", "interrupted", "terminated by hand; the same command resumes", facts.job)
    return Decision("wait_for_kill", "interrupted", "cancelled; launch again to resume", facts.job)


def _at_the_limit(facts: Facts, timeouts: int, max_timeouts: int) -> Decision:
    if timeouts < max_timeouts:
        return Decision("requeue", "timeout", f"time limit reached, requeue {timeouts + 1} of {max_timeouts}", facts.job)
    reason = f"time limit reached {timeouts + 1} times; raise the cluster's time or max_timeouts"
    return Decision("exit", "failed", reason, facts.job)


def decide(interrupted: Interrupted, earlier: Sequence[Attempt], environ: Mapping[str, str] = os.environ) -> Decision:
    """The decision for this process. Asks Slurm when it runs under Slurm, and nobody otherwise.

    Earlier timeouts count within one job only: launching again is a person's decision and has a budget of its own.
    """
    job = job_name(environ)
    facts = Facts(None) if job is None else read_facts(job, interrupted.at, environ)
    timeouts = sum(a.reason == "timeout" and a.job == job for a in earlier)
    return after_interruption(interrupted.number, facts, timeouts, int(_number(environ, MAX_TIMEOUTS, DEFAULT_MAX_TIMEOUTS)))


def read_facts(job: str, at: float, environ: Mapping[str, str]) -> Facts:
    """What Slurm says of the job; ``at`` is the time of the signal. squeue cannot tell who ended a job, ``scontrol show`` can."""
    done, said = _command(["scontrol", "show", "job", job], environ)
    lead = _number(environ, LEAD, DEFAULT_LEAD_S)
    end = _time(said, "EndTime") if done else None
    end = end or _number(environ, "SLURM_JOB_END_TIME", 0.0) or None  # in the environment from Slurm 23 on
    remaining = None if end is None else end - at
    if not done:
        return Facts(job, remaining, lead, known=False)
    preempted = _time(said, "PreemptTime")
    return Facts(
        job,
        remaining,
        lead,
        stopping=_field(said, "JobState") != "RUNNING",
        time_limit=_field(said, "Reason") == "TimeLimit",
        # Not one that an earlier start of the same job remembers.
        preempted=preempted is not None and preempted >= (_time(said, "StartTime") or 0.0),
    )


def _field(said: str, name: str) -> str | None:
    """A field of ``scontrol show job``. The first one: a comment, which may say anything, stands near the end."""
    found = re.search(rf"(?:^|\s){name}=(\S+)", said)
    return found[1] if found else None


def _time(said: str, name: str) -> float | None:
    """Seconds since the epoch; None for None, Unknown and N/A."""
    try:
        return datetime.fromisoformat(_field(said, name) or "").timestamp()
    except ValueError:
        return None


def warn_in_time(environ: Mapping[str, str] = os.environ) -> None:
    """Under Slurm, send this process SIGUSR2 at the lead before the time limit, in case Slurm's own is lost.

    Slurm sends it once: during the script's setup lines nobody hears it. Started within the lead, it gets half of what is left.
    """
    job = job_name(environ)
    if job is not None:
        threading.Thread(target=_warn, args=(job, environ), daemon=True).start()


def _warn(job: str, environ: Mapping[str, str]) -> None:
    wait = None
    while True:
        facts = read_facts(job, time.time(), environ)
        if facts.remaining_s is None or facts.stopping or received():
            return
        if wait is not None and facts.remaining_s <= facts.lead_s + LEAD_SLACK_S:
            os.kill(os.getpid(), signal.SIGUSR2)
            return
        # Asked again after the wait: an administrator may have moved the limit.
        beyond = facts.remaining_s - facts.lead_s
        wait = max(1.0, beyond if beyond > 0 else facts.remaining_s / 2)
        time.sleep(wait)


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    """A malformed variable must not lose a run that has just saved itself."""
    try:
        return float(environ[name])
    except (KeyError, ValueError):
        return default


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
        if done or "pending execution" in said:  # the second: it is requeued already
            return True
        print(f"scontrol requeue {job}: {said}", file=sys.stderr, flush=True)
    return False
