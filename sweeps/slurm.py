"""Slurm's commands: submit, ask, cancel. Every refusal of theirs becomes one UserError that says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import UserError

TIMEOUT_S = 60
RETRY_S = 30.0  # a controller that is restarted is back by then
OF_SLURM = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_")
SEPARATOR = "\x1f"
# States after which a job does not run again by itself (man squeue, "JOB STATE CODES").
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)


@dataclass(frozen=True)
class JobState:
    """What the scheduler says of one task: its state in full (RUNNING, PENDING ...), the reason it gives, and the job's comment."""

    state: str
    reason: str = ""
    comment: str = ""

    @property
    def in_flight(self) -> bool:
        """Queued, running, or on its way between the two."""
        return self.state not in ENDED

    @property
    def waiting(self) -> bool:
        return self.state == "PENDING" and self.reason.startswith("Dependency")


class NoAnswer(UserError):
    """The controller may or may not have done what it was asked."""


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change the commands: variables override the lines of a batch script
    (SBATCH_TIMELIMIT), hide jobs (SQUEUE_PARTITION), and a job that launches carries the SLURM_* of its own."""
    return {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith(OF_SLURM)}


def call(command: Sequence[str], *, retry_s: float = 0.0) -> str:
    """stdout of one of Slurm's commands. UserError with what Slurm said when it refuses.

    ``retry_s``: for how long a controller that does not answer is asked again (it may just be restarting).
    """
    deadline = time.monotonic() + retry_s
    while True:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment())
        except FileNotFoundError:
            raise UserError(
                f"{command[0]} is not on PATH, so there is no Slurm here. Use CLUSTER=local, or a login node of the cluster."
            ) from None
        except subprocess.TimeoutExpired:
            raise NoAnswer(
                f"{command[0]} did not answer within {TIMEOUT_S} s; is the Slurm controller up (scontrol ping)?"
            ) from None
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        if not unreachable(said):
            raise UserError(f"{command[0]}: {said}")
        if time.monotonic() >= deadline:
            raise NoAnswer(f"{command[0]}: {said}")
        time.sleep(2)


def unreachable(said: str) -> bool:
    """Whether the message is that of a controller that is down, not of a refusal."""
    return any(t in said for t in ("Unable to contact", "Connection refused", "Socket timed out", "Zero Bytes were transmitted"))


def submit(script: Path, comment: str) -> str:
    """The id of the job that ``script`` became; ``comment`` is the script's own and no other job's.

    "Socket timed out" may mean that the job is in the queue and only the answer was lost. So before sbatch is called again the
    queue is searched for the comment. NoAnswer if the controller is away for longer than that.
    """
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            return call(["sbatch", "--parsable", str(script)]).strip().split(";")[0]
        except NoAnswer:
            if (found := arrays(queue(retry_s=RETRY_S)).get(comment)) is not None:
                return found
            if time.monotonic() >= deadline:
                raise


def max_array_size() -> int:
    """How many elements one array may have."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", call(["scontrol", "show", "config"]), re.MULTILINE)
    return int(match[1]) if match else 1000


def queue(*, retry_s: float = 0.0) -> dict[str, JobState]:
    """task (``id`` or ``id_element``) -> state, of all jobs of this user that the controller still knows."""
    fields = SEPARATOR.join(["%i", "%T", "%r", "%k"])
    states = {}
    for line in call(["squeue", "--me", "-h", "-r", "-t", "all", "-o", fields], retry_s=retry_s).splitlines():
        task, separator, rest = line.partition(SEPARATOR)
        if not separator:  # the second line of somebody's comment
            continue
        state, reason, comment = (field.strip() for field in rest.split(SEPARATOR, 2))
        states[task.strip()] = JobState(state, "" if reason == "None" else reason, comment)
    return states


def arrays(states: Mapping[str, JobState]) -> dict[str, str]:
    """comment -> id of the job, of an array the array's."""
    return {s.comment: task.partition("_")[0] for task, s in states.items() if s.comment}


def history(names: Mapping[str, str]) -> dict[str, JobState]:
    """task -> its last state, from the accounting database; {} where there is none. ``names``: of each job id, the job's name,
    because a controller that lost its newest state gives ids out again."""
    if not names:
        return {}
    try:
        said = call(["sacct", "-X", "-n", "-P", "-o", "JobID,State,ExitCode,JobName%500", "-j", ",".join(sorted(names))])
    except UserError:
        return {}
    states = {}
    for line in said.splitlines():
        task, state, code, name = line.split("|", 3)
        if name == names.get(task.partition("_")[0]):
            states[task] = JobState(state.split()[0], "" if code == "0:0" else f"exit code {code}")
    return states


def cancel(tasks: Sequence[str]) -> None:
    """Cancel exactly these tasks."""
    for start in range(0, len(tasks), 500):
        call(["scancel", *tasks[start : start + 500]])
