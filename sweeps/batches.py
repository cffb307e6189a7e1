"""Batches: what one sbatch call submits, kept on disk so that any later process finds its jobs again.

``runs/<experiment>/.sweeps/<id>/``: ``batch.json`` (its elements and how they run) and ``script.sh`` are written before the
submission, ``job.json`` (the scheduler's id) after it, ``<element>.log`` by the jobs. A launcher that dies in between leaves a
batch without an id; the job's comment starts with the batch's id, which is how it is found.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cluster import ClusterSection, Resources
from experiments.config import Options
from experiments.errors import UserError
from experiments.files import read_json, write_atomic, write_json
from experiments.job import options_to_json
from experiments.run_record import RunRecord

FOLDER = ".sweeps"
PREFIX = "graft"
# Slurm keeps a comment of any sane length; elements beyond this many are found through batch.json.
NAMED_IN_COMMENT = 100


@dataclass(frozen=True)
class Work:
    """One element of a batch: a stage (all | train | evaluate) of a frozen run.

    ``after``: keys of the works that come before it if they are still to be done.
    """

    record: RunRecord
    options: Options
    stage: str
    after: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        return str(self.record.config["fingerprint"])

    @property
    def size(self) -> int:
        """A rough size for ordering: models trained times responses per prompt. Untouched models come last."""
        recipe = self.record.config["recipe"]
        return len(recipe["models"]) * recipe["method"]["n"] if self.record.trains else 0

    @property
    def key(self) -> str:
        return f"{self.fingerprint}:{self.stage}"


def levels(works: Sequence[Work]) -> list[list[Work]]:
    """Works whose needs are none of these, then those that need only these, and so on. UserError for a circle."""
    left, found = list(works), []
    while left:
        keys = {w.key for w in left}
        ready = [w for w in left if not keys & set(w.after)]
        if not ready:
            raise UserError(f"the runs {', '.join(sorted(w.record.path.name for w in left))} wait for each other")
        found.append(ready)
        left = [w for w in left if w not in ready]
    return found


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


def new_batch(root: Path, works: Sequence[Work], resources: Resources | None) -> Batch:
    """Create the folder and ``batch.json`` of a batch that is about to be submitted."""
    while True:
        folder = root / FOLDER / os.urandom(4).hex()
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    elements = tuple(
        {
            "run": str(w.record.path.resolve()),
            "fingerprint": w.fingerprint,
            "stage": w.stage,
            "options": options_to_json(w.options),
        }
        for w in works
    )
    asked = resources.model_dump() if resources else None
    write_json(folder / "batch.json", {"elements": list(elements), "resources": asked})
    return Batch(folder, elements, asked)


def read_batches(root: Path) -> list[Batch]:
    """All batches under an experiment's root, oldest first."""
    found = []
    folders = [p for p in (root / FOLDER).glob("*") if (p / "batch.json").is_file()]
    for folder in sorted(folders, key=lambda p: (p / "batch.json").stat().st_mtime_ns):
        content = read_json(folder / "batch.json")
        job = folder / "job.json"
        job_id = read_json(job)["job_id"] if job.is_file() else None
        found.append(Batch(folder, tuple(content["elements"]), content["resources"], job_id))
    return found


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


def write_script(batch: Batch, script: Script) -> Path:
    path = batch.folder / "script.sh"
    write_atomic(path, script_text(batch, script))
    return path
