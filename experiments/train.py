"""``python -m experiments.train method=graft pair=1 seed=0 scale=cpu [dry_run=true]``: freeze, then train and evaluate.

An independent method runs once per model of the pair. -m sweeps with any Hydra launcher. Nothing is written before the whole
configuration is valid; finished runs are reused, interrupted ones continue. ``dry_run=true`` writes nothing: it prints each run's
recipe as JSON and, for a Slurm cluster, a line that starts with ``SCRIPTS_FOLLOW`` and the batch scripts that would submit the runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import interruption
from experiments.cli import run_hydra
from experiments.cluster import ClusterSection
from experiments.config import Options, RunPlan, load_config, resolve
from experiments.donors import find_donor
from experiments.files import write_json
from experiments.job import finish, options_to_json
from experiments.progress import Display
from experiments.run_record import RunRecord
from experiments.verl_engine import require_verl
from experiments.works import Runs, add_runs, preview

# The first words of the line between the recipes and the batch scripts of a dry run; a comment, so that the rest is a script.
SCRIPTS_FOLLOW = "# --- batch script"


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

    for described in sets_of(plan):
        load_pinned(described, options.data_root)
    for model in plan.recipe["models"]:
        resolve_model_path(options.model_paths.get(model["name"], model["source"]))


def show(plans: Sequence[RunPlan], options: Options, cluster: ClusterSection) -> None:
    """Print what would run: a JSON document for each plan, then the scripts of a Slurm cluster, runs that are needed first included."""
    for plan in plans:
        shown = {k: v for k, v in plan.__dict__.items() if k != "needs"} | {"needs": [need.name for need in plan.needs]}
        print(json.dumps({"directory": str(options.experiment_root / plan.name), **shown}, indent=1, ensure_ascii=False))
    if cluster.scheduler != "slurm":
        return
    runs: dict[str, tuple[RunPlan, Options]] = {}
    add_runs(runs, plans, options)
    print(f"{SCRIPTS_FOLLOW} for cluster {cluster.name}, written nowhere; hydra/launcher=slurm submits it")
    print(preview(runs, cluster), end="")
    if unread := unread_sets(runs):
        print(
            f"note: without data.root= nothing was read of {', '.join(unread)}, so their hashes are not in the recipe and the name "
            "of the submitted run will end in another fingerprint. Submitting needs data.root=<folder of the files> (docs/data.md).",
            file=sys.stderr,
        )


def unread_sets(runs: Runs) -> list[str]:
    """Names of the file-based prompt sets that a recipe describes by their pinned counts alone."""
    described = [d for plan, _ in runs.values() for d in sets_of(plan)]
    return sorted({d["source"] for d in described if d["sha256"] is None})


def sets_of(plan: RunPlan) -> list[Mapping[str, Any]]:
    """Descriptions of all prompt sets that a run reads."""
    recipe = plan.recipe
    return [*recipe["evaluation"]["benchmarks"], *(recipe["data"][k] for k in ("train", "validation") if k in recipe["data"])]


def task(overrides: Sequence[str]) -> None:
    plans, options = resolve(overrides)
    if options.dry_run:
        show(plans, options, load_config(overrides).cluster)
        return
    for plan in plans:
        check(plan, options)
        if (
            plan.recipe["policy"]["engine"] == "verl"
        ):  # here, and not in check: who submits to a cluster need not have it installed
            require_verl()
        if "donor" in plan.recipe:
            find_donor(plan.recipe, options.donor, options.experiment_root)
    with Display() as display:
        for plan in plans:
            finish(freeze(plan, options), options, display)


if __name__ == "__main__":
    interruption.install()
    sys.exit(run_hydra(task))
