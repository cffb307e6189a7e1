"""``python -m experiments.train method=graft pair=1 seed=0 scale=cpu [dry_run=true]``: freeze, then train and evaluate.

An independent method runs once per model of the pair. -m sweeps with any Hydra launcher. Nothing is written before the whole
configuration is valid; finished runs are reused, interrupted ones continue.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from experiments import interruption
from experiments.cli import run_hydra
from experiments.config import Options, RunPlan, resolve
from experiments.donors import find_donor
from experiments.files import write_json
from experiments.job import finish, options_to_json
from experiments.progress import Display
from experiments.run_record import RunRecord


def freeze(plan: RunPlan, options: Options) -> RunRecord:
    """Write (or open) the run's directory. ``options.json`` is how the last caller asked to execute it."""
    check(plan, options)
    record = RunRecord.create(options.experiment_root, cell=plan.cell, recipe=plan.recipe, deviations=plan.deviations)
    write_json(record.path / "options.json", options_to_json(options))
    return record


def check(plan: RunPlan, options: Options) -> None:
    """Open everything the run will read, so that what is missing is said before anything is written."""
    from experiments.tasks import load_pinned
    from experiments.tiny import resolve_model_path

    recipe = plan.recipe
    sets = [*recipe["evaluation"]["benchmarks"], *(recipe["data"][k] for k in ("train", "validation") if k in recipe["data"])]
    for described in sets:
        load_pinned(described, options.data_root)
    for model in recipe["models"]:
        resolve_model_path(options.model_paths.get(model["name"], model["source"]))


def task(overrides: Sequence[str]) -> None:
    plans, options = resolve(overrides)
    if options.dry_run:
        for plan in plans:
            shown = {k: v for k, v in plan.__dict__.items() if k != "needs"} | {"needs": [need.name for need in plan.needs]}
            print(json.dumps({"directory": str(options.experiment_root / plan.name), **shown}, indent=1, ensure_ascii=False))
        return
    for plan in plans:
        check(plan, options)
        if "donor" in plan.recipe:
            find_donor(plan.recipe, options.donor, options.experiment_root)
    with Display() as display:
        for plan in plans:
            finish(freeze(plan, options), options, display)


if __name__ == "__main__":
    interruption.install()
    sys.exit(run_hydra(task))
