"""Launching small real sweeps on the lab, watching them, disturbing them, and comparing what they leave behind."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.attempts import Attempt
from experiments.run_record import RunRecord
from tests.slurm.lab import Lab, until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
# What one job asks the lab for. The reasons for `lead` and hub_offline: short time limits; every model is packaged.
ASKED = "{gpus: 0, cpus: 1, mem: 300M, time: '%s'}"
# Seconds of work: every kind of file is written, and an interruption always finds a step to come.
SHORT = (
    "scale.training.epochs=3",
    "scale.training.prompts_per_step=4",
    "scale.training.minibatch_prompts=2",
    "data.train=arith-validation",
    "scale.training.validation_every=2",
    "scale.training.max_response_tokens=24",
    "scale.evaluation.seeds=[5]",
    "scale.evaluation.samples=1",
    "scale.evaluation.max_items=2",
    "method.n=4",
    "checkpoint_every=3",
)
# One run (GRPO of one model) that is long enough to be interrupted.
ONE = ("table8", "--rows", "grpo_n8")
LONG = (*SHORT, "model=qwen3-1.7b", "scale.training.max_steps=24")


def on_lab(time: str = "30") -> list[str]:
    """Overrides that make cluster=slurm fit the lab."""
    kinds = [f"cluster.{kind}={ASKED % time}" for kind in ("independent", "joint", "evaluation")]
    return [*kinds, "cluster.threads=1", "cluster.lead=20", "cluster.hub_offline=false"]


@dataclass(frozen=True)
class Place:
    """A folder from which sweeps are launched, with records of its own. ``code``: the project that launches."""

    lab: Lab
    folder: Path
    code: Path = ROOT

    def python(self, module: str, *args: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        """One command line; ``path`` comes before everything else on PATH."""
        environment = self.lab.environment() | {"PYTHONPATH": str(self.code), "OMP_NUM_THREADS": "1", "COLUMNS": "240"}
        if path is not None:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        return subprocess.run(
            [sys.executable, "-m", module, *args],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S * 2,
        )

    def sweeps(self, *args: str, overrides: tuple[str, ...], cluster: str = "slurm", path: Path | None = None) -> Any:
        """``python -m sweeps``. ``args``: the command, the table, options."""
        fit = on_lab() if cluster == "slurm" else []
        given = ("--scale", "smoke", "--cluster", cluster, "--overrides", *fit, *overrides)
        return self.python("sweeps", *args, *given, path=path)

    def launch(self, *args: str, overrides: tuple[str, ...] = LONG, table: tuple[str, ...] = ONE, **more: Any) -> str:
        """A launch that must succeed; what it printed."""
        done = self.sweeps("launch", *table, *args, overrides=overrides, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def status(self, overrides: tuple[str, ...] = LONG, table: tuple[str, ...] = ONE) -> list[dict[str, Any]]:
        """``status --json``."""
        done = self.sweeps("status", *table, "--json", overrides=overrides)
        assert done.returncode in (0, 1), done.stderr
        return list(json.loads(done.stdout))

    @property
    def root(self) -> Path:
        return self.folder / "runs" / "paper"

    def records(self) -> list[RunRecord]:
        return [RunRecord.open(p.parent) for p in sorted(self.root.glob("*/run.json"))]

    def record(self) -> RunRecord:
        """The only run of this place."""
        (found,) = self.records()
        return found

    def batches(self) -> list[Path]:
        return sorted(p.parent for p in self.root.glob(".sweeps/*/batch.json"))

    def job(self) -> str:
        """The id of the only job that this place submitted."""
        (found,) = (json.loads((b / "job.json").read_text())["job_id"] for b in self.batches())
        return str(found)

    def at_step(self, step: int) -> RunRecord:
        """Wait until the only run has finished a step; it must not be over by then."""
        until(lambda: rows(self.root) >= step, PATIENCE_S, f"step {step} in {self.root}")
        record = self.record()
        assert not record.done, "the run was over before it could be disturbed"
        return record

    def done(self) -> RunRecord:
        """Wait for the completion record of the only run."""
        record = self.record()
        until(lambda: record.done or record.status()["state"] == "failed", PATIENCE_S, f"{record.path} to be done")
        assert record.done, record.status()
        until(lambda: record.attempts()[-1].end is not None, 30, "the last attempt's end")
        return record


Undisturbed = Callable[[], Any]


def rows(root: Path) -> int:
    """Finished steps of the only run below a root."""
    files = list(root.glob("*/metrics.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def science(run: Path) -> dict[str, str]:
    """Hashes of everything scientific that a run leaves behind: equal for equal recipes, whatever happened on the way."""
    patterns = ("metrics.jsonl", "validation.jsonl", "selected.json", "done.json", "trajectories/*", "eval/*/*/*.jsonl")
    files = [f for p in patterns for f in sorted(run.glob(p)) if f.is_file()]
    weights = sorted(run.glob("best/*/*/weights.safetensors"))
    found = {str(f.relative_to(run)): hashlib.sha256(f.read_bytes()).hexdigest() for f in [*files, *weights]}
    kinds = {name.partition("/")[0] for name in found}
    assert kinds >= {"metrics.jsonl", "validation.jsonl", "selected.json", "done.json", "trajectories", "eval"}, kinds
    return found


def ends(record: RunRecord) -> list[str | None]:
    """How each attempt ended; None for one that was killed."""
    return [a.reason for a in record.attempts()]


def jobs(attempts: tuple[Attempt, ...]) -> list[str | None]:
    return [a.job for a in attempts]


def copy_of_project(target: Path) -> Path:
    """The parts of the project that launching needs, without git."""
    from sweeps.snapshot import files_of

    for name in files_of(ROOT):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((ROOT / name).read_bytes())
    return target


def wrapper(folder: Path, name: str, text: str) -> Path:
    """A script that stands before one of Slurm's commands on PATH; ``$REAL`` in its text is the command itself. The folder."""
    folder.mkdir(parents=True, exist_ok=True)
    real = subprocess.run(["bash", "-c", f"command -v {name}"], capture_output=True, text=True, check=True).stdout.strip()
    file = folder / name
    file.write_text(f"#!/bin/bash\nREAL={real}\n{text}\n")
    file.chmod(0o755)
    return folder


def pid_of(record: RunRecord) -> int:
    """The process of the newest attempt."""
    return int(record.attempts()[-1].start["pid"])


def stopped(pid: int) -> bool:
    """Whether the process stands still by SIGSTOP; one that is gone does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False
