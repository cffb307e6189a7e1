"""Running the real command lines at smoke scale in a directory of the test's own.

``run``, ``start`` and ``kill_when`` fork the command from a process that has imported everything (tests/warm.py); ``run_cold`` starts
an interpreter. ``made_once`` keeps what several test files need, whichever worker of pytest comes first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.files import read_json, write_json
from tests import warm

ROOT = Path(__file__).resolve().parents[2]
# Seven steps with a boundary between epochs after the third; every kind of file is written at least twice.
TINY = (
    "scale=smoke",
    "scale.training.max_steps=7",
    "scale.training.epochs=3",
    "scale.training.prompts_per_step=4",
    "scale.training.minibatch_prompts=2",
    "data.train=arith-validation",
    "scale.training.validation_every=2",
    "scale.training.max_response_tokens=24",
    "scale.evaluation.samples=1",
    "method.n=4",
    "checkpoint_every=2",
)


def command(module: str, *args: str) -> list[str]:
    return [sys.executable, "-m", module, *args]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run(module: str, *args: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    return warm.run(module, *args, cwd=cwd, environment=environment() | more, timeout=300)


def run_cold(module: str, *args: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(module, *args),
        cwd=cwd,
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def start(module: str, *args: str, output: Path | str = os.devnull, new_session: bool = False, **more: str) -> warm.Process:
    """A command that runs on; ``output`` is a file to which both its outputs are appended."""
    how = {"stdout": output, "stderr": output, "new_session": new_session}
    return warm.forker().start(module, *args, environment=environment() | more, **how)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` fills, once for all workers of this session. Tests read it, and copy what they change."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "made-once" / name
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "COMPLETE").exists():
            folder.mkdir()  # an earlier failure to make it is met again, as an error
            make(folder)
            (folder / "COMPLETE").touch()
    return folder


# The run that interrupted ones are compared with. How often it writes checkpoints is no part of its identity or results.
WHOLE = ("method=graft", "pair=1", *TINY)


def whole_run(factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of WHOLE, from a cold start: the hash seed of the interpreter differs from that of forked commands."""

    def make(root: Path) -> None:
        done = run_cold("experiments.train", *WHOLE, f"runs_root={root}")
        assert done.returncode == 0, done.stderr

    return only_run(made_once(factory, "whole", make))


def table8(factory: pytest.TempPathFactory) -> Path:
    """A folder in which table 8 was launched at smoke scale: runs/paper/ with runs of every kind, untouched, independent, joint."""

    def make(root: Path) -> None:
        done = run_cold("sweeps", "launch", "table8", "--scale", "smoke", "--jobs", "2", cwd=root)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once(factory, "table8", make)


def fresh_copy(whole: Path, root: Path, **options: object) -> Path:
    """The frozen run without anything that a process wrote into it; ``options`` are other ones than the whole run's."""
    path = root / whole.name
    path.mkdir()
    (path / "run.json").write_bytes((whole / "run.json").read_bytes())
    write_json(path / "options.json", read_json(whole / "options.json") | options)
    write_json(path / "status.json", {"state": "prepared", "attempt": 0, "step": 0, "steps": None, "reason": None})
    return path


def only_run(root: Path) -> Path:
    (path,) = (p.parent for p in root.glob("*/*/run.json"))
    return path


def kill_when(args: tuple[str, ...], reached, timeout: float = 240.0) -> bool:
    """Start the training command and SIGKILL it as soon as ``reached()`` is true; False if it ended before."""
    process = start("experiments.train", *args)
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        if reached():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.005)
    process.kill()
    process.wait()
    return False


def results(run_dir: Path) -> dict[str, str]:
    """Hashes of everything that must be equal between an interrupted and an uninterrupted run."""
    files = [
        run_dir / "metrics.jsonl",
        run_dir / "validation.jsonl",
        run_dir / "selected.json",
        *sorted(run_dir.glob("eval/*/*/*.jsonl")),
        *(f for folder in ("trajectories", "transfers") for f in sorted(run_dir.glob(f"{folder}/*"))),
    ]
    weights = sorted(run_dir.glob("checkpoints/*/*/*.safetensors")) + sorted(run_dir.glob("best/*/*/weights.safetensors"))
    return {str(f.relative_to(run_dir)): hashlib.sha256(f.read_bytes()).hexdigest() for f in [*files, *weights]}
