"""A batch (what one sbatch call submits) and the script that stands for it. Nothing here submits anything.

The script is in the open: ``make plan ... SBATCH=1`` and ``python -m experiments.train ... cluster=slurm dry_run=true`` print it, and
``sweeps.launch`` submits it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cluster import ClusterSection, Resources
from experiments.files import write_json

FOLDER = ".sweeps"
PREFIX = "graft"
# Slurm keeps a comment of any sane length; elements beyond this many are found through batch.json.
NAMED_IN_COMMENT = 100


@dataclass(frozen=True)
class Batch:
    """A batch as its folder holds it. ``job_id`` is None until the scheduler gave one. Element k of ``elements`` is array task k."""

    folder: Path
    elements: tuple[Mapping[str, Any], ...]
    resources: Mapping[str, Any] | None
    job_id: str | None = None

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def keys(self) -> tuple[str, ...]:
        """As Work.key, of each element."""
        return tuple(f"{e['fingerprint']}:{e['stage']}" for e in self.elements)

    def task(self, element: int) -> str:
        """The scheduler's name of one element: a batch of one is a plain job."""
        return f"{self.job_id}_{element}" if len(self.elements) > 1 else str(self.job_id)

    def log(self, element: int) -> Path:
        return self.folder / f"{element}.log"

    def submitted(self, job_id: str) -> Batch:
        """Remember the scheduler's id."""
        write_json(self.folder / "job.json", {"job_id": job_id})
        return Batch(self.folder, self.elements, self.resources, job_id)


@dataclass(frozen=True)
class Script:
    """What the batch script of a batch depends on besides its elements."""

    cluster: ClusterSection
    resources: Resources
    code: Path
    python: str
    dependency: tuple[str, ...] = ()


def job_name(batch: Batch) -> str:
    """A single job is named after its run, whose name ends in the fingerprint; an array after its batch."""
    if len(batch.elements) == 1:
        return f"{PREFIX}-{Path(batch.elements[0]['run']).name}"
    return f"{PREFIX}-{batch.id}"


def comment(batch: Batch) -> str:
    """``graft <batch id> <fingerprint8> ...``."""
    prints = [e["fingerprint"][:8] for e in batch.elements]
    return " ".join([PREFIX, batch.id, *prints[:NAMED_IN_COMMENT]])


def script_text(batch: Batch, script: Script) -> str:
    """The batch script. It replaces its shell by the run's process, so that the scheduler's signals reach the run itself."""
    c, r = script.cluster, script.resources
    array = len(batch.elements) > 1
    # A percent sign of the folder's own would be one of Slurm's patterns.
    log = str(batch.folder.resolve()).replace("%", "%%") + ("/%a.log" if array else "/0.log")
    options = [
        f"--job-name={job_name(batch)}",
        f"--comment={comment(batch)}",
        f"--output={log}",
        "--open-mode=append",
        "--export=NONE",
        "--requeue",
        f"--signal=B:USR2@{c.lead}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={r.cpus}",
        f"--mem={r.mem}",
        f"--time={r.time}",
        *([f"--gpus-per-node={r.gpu_type + ':' if r.gpu_type else ''}{r.gpus}"] if r.gpus else []),
        *(f"--{k}={v}" for k in ("partition", "account", "qos", "constraint") if (v := getattr(c, k)) is not None),
        *([f"--array=0-{len(batch.elements) - 1}" + (f"%{c.max_running}" if c.max_running else "")] if array else []),
        *([f"--dependency=afterok:{':'.join(script.dependency)}", "--kill-on-invalid-dep=yes"] if script.dependency else []),
        *c.extra,
    ]
    lines = ["#!/bin/bash", *(f"#SBATCH {quoted(o)}" for o in options), "set -e", "trap '' USR2", *c.setup]
    lines += [f"export {k}={shlex.quote(v)}" for k, v in variables(script).items()]
    code = shlex.quote(str(script.code.resolve()))
    lines += [f"cd {code}"]
    lines += [
        f"exec {shlex.quote(script.python)} -m experiments.job --batch {shlex.quote(str(batch.folder.resolve() / 'batch.json'))} "
        '--element "${SLURM_ARRAY_TASK_ID:-0}"'
    ]
    return "\n".join(lines) + "\n"


def quoted(option: str) -> str:
    """An option on an #SBATCH line: sbatch takes double quotes there, and a backslash before one."""
    key, equals, value = option.partition("=")
    if not equals or all(c.isalnum() or c in "-_./:,%@+" for c in value):
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}="{escaped}"'


def variables(script: Script) -> dict[str, str]:
    """Environment of the run."""
    c = script.cluster
    own = {
        "PYTHONPATH": str(script.code.resolve()),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(c.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "GRAFT_SIGNAL_LEAD": str(c.lead),
        "GRAFT_MAX_TIMEOUTS": str(c.max_timeouts),
    }
    if c.scratch:
        own["GRAFT_SCRATCH"] = c.scratch
    if c.hub_cache:
        own["HF_HOME"] = c.hub_cache
    if c.hub_offline:
        own |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return own | dict(c.environment)
