"""Running the real command lines at smoke scale in a directory of the test's own."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    return subprocess.run(
        command(module, *args),
        cwd=cwd,
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def only_run(root: Path) -> Path:
    (path,) = (p.parent for p in root.glob("*/*/run.json"))
    return path


def kill_when(args: tuple[str, ...], reached, timeout: float = 240.0) -> bool:
    """Start the training command and SIGKILL it as soon as ``reached()`` is true; False if it ended before."""
    process = subprocess.Popen(
        command("experiments.train", *args), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
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
