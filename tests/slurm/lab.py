"""A real Slurm of one machine, started by the scripts in cluster/ and shared by all test processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CLUSTER = Path(__file__).parent / "cluster"
FINISHED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}


@dataclass(frozen=True)
class Lab:
    """A running cluster: nodes n1 and n2 (16 CPUs, 4 GPUs each), partitions cpu (default), short, low, high."""

    folder: Path
    users: IO[str]  # a lock shared by all processes that use the lab

    @property
    def ours(self) -> Path:
        """A file that stands there if a test session started the lab: the last one to use it then stops it."""
        return self.folder / "started-by-tests"

    @property
    def slurm_conf(self) -> Path:
        """The configuration that every Slurm command finds through SLURM_CONF."""
        return self.folder / "etc" / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """This process's environment with SLURM_CONF set and without what an enclosing job or a user's defaults left."""
        foreign = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_")
        kept = {k: v for k, v in os.environ.items() if k.startswith("SLURM_LAB") or not k.startswith(foreign)}
        return {**kept, "SLURM_LAB": str(self.folder), "SLURM_CONF": str(self.slurm_conf)}

    def run(self, *command: str, check: bool = True) -> str:
        """Standard output of a command, stripped. A failing one raises with its standard error in the message."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def sbatch(self, *arguments: str) -> str:
        """Submit with a clean environment and return the job id."""
        return self.run("sbatch", "--parsable", "--export=NONE", "--mem=50", *arguments)

    def states(self, job: str) -> list[str]:
        """What squeue says, one state per array element in the order of the elements; finished jobs included."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%K|%T").splitlines()
        pairs = [line.split("|") for line in lines]
        return [state for _, state in sorted(pairs, key=lambda pair: int(pair[0]) if pair[0].isdigit() else -1)]

    def wait(self, job: str, seconds: float = 60) -> list[str]:
        """Wait until every element has finished, and return the final states."""
        until(lambda: set(self.states(job)) <= FINISHED, seconds, f"job {job} to finish")
        return self.states(job)

    def sacct(self, job: str, *fields: str, duplicates: bool = False) -> list[list[str]]:
        """What the accounting database has, which is a second or two behind squeue."""
        more = ["-D"] if duplicates else []
        text = self.run("sacct", "-X", "-n", "-P", *more, "-j", job, "-o", ",".join(fields))
        return [line.split("|") for line in text.splitlines()]

    def script(self, name: str) -> str:
        """Path of a script in cluster/, to be used as self.run(self.script("restart-controller.sh"), "--kill")."""
        return str(CLUSTER / name)


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until the condition holds; TimeoutError names what was waited for."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)


def lab_folder() -> Path:
    """Where the cluster lives: SLURM_LAB, else slurm-lab in the folder for temporary files (as in cluster/common.sh)."""
    return Path(os.environ.get("SLURM_LAB") or Path(os.environ.get("TMPDIR") or "/tmp") / "slurm-lab")


def find_or_start() -> Lab | str:
    """The running lab, started if it does not run; a string says why there is none. Give it back with release()."""
    folder = lab_folder()
    try:
        with _start_lock(folder):
            lab = Lab(folder, users=_lock_file(folder / "users.lock"))
            was_up = _answers(lab)
            done = subprocess.run([CLUSTER / "up.sh"], env=lab.environment(), capture_output=True, text=True)
            if done.returncode != 0:
                subprocess.run([CLUSTER / "down.sh"], env=lab.environment(), capture_output=True)
                return (done.stderr.strip().splitlines() or [f"up.sh: exit {done.returncode}"])[-1]
            if not was_up:
                lab.ours.touch()
            fcntl.flock(lab.users, fcntl.LOCK_SH)
    except OSError as error:
        return f"no Slurm in {folder}: {error}"
    return lab


def release(lab: Lab) -> None:
    """Stop the lab if a test session started it and no other process uses it any more."""
    with _start_lock(lab.folder):
        try:
            fcntl.flock(lab.users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            lab.users.close()
        if lab.ours.exists():
            lab.ours.unlink()
            lab.run(lab.script("down.sh"))


def _answers(lab: Lab) -> bool:
    """Whether the controller runs and answers; no Slurm at all is a no."""
    if not lab.slurm_conf.exists():  # Slurm's commands wait a minute for a missing one
        return False
    try:
        return subprocess.run(["scontrol", "ping"], env=lab.environment(), capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _lock_file(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


@contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    """One process at a time starts or stops the lab."""
    with _lock_file(folder / "start.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
