"""Batches: what one sbatch call submits, kept on disk so that any later process finds its jobs again.

``runs/<experiment>/.sweeps/<id>/``: ``batch.json`` (its elements and how they run) and ``script.sh`` are written before the
submission, ``job.json`` (the scheduler's id) after it, ``<element>.log`` by the jobs. A launcher that dies in between leaves a
batch without an id; the job's comment starts with the batch's id, which is how it is found.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from experiments.batch_script import FOLDER, Batch, Script, script_text
from experiments.cluster import Resources
from experiments.files import read_json, write_atomic, write_json
from experiments.job import options_to_json
from experiments.works import Work


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


def write_script(batch: Batch, script: Script) -> Path:
    path = batch.folder / "script.sh"
    write_atomic(path, script_text(batch, script))
    return path
