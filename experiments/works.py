"""The jobs behind runs: which there are, what they ask for, in which order, and the batch scripts that would submit them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.batch_script import FOLDER, Batch, Script, script_text
from experiments.cluster import ClusterSection, Resources
from experiments.config import Options, RunPlan
from experiments.donors import needs
from experiments.errors import UserError
from experiments.run_record import RunRecord

Runs = Mapping[str, tuple[RunPlan, Options]]


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


def add_runs(runs: dict[str, tuple[RunPlan, Options]], plans: Sequence[RunPlan], options: Options) -> None:
    """Put the runs of one selection into ``runs`` by name, each after those that it needs."""
    for plan in plans:
        for run in (*plan.needs, plan):
            runs.setdefault(run.name, (run, options))


def works_of(record: RunRecord, options: Options, cluster: ClusterSection) -> list[Work]:
    """The jobs of one run: one, or with ``stages: apart`` its training and, after it, its evaluation.

    A run that learns from another's log comes after that one's training, whichever job trains it.
    """
    donors = tuple(f"{digest}:{stage}" for digest in needs(record.config["recipe"]) for stage in ("train", "all"))
    if cluster.stages == "together" or not record.trains or not options.evaluate:
        return [Work(record, options, "all", after=donors)]
    training = Work(record, options, "train", after=donors)
    return [training, Work(record, options, "evaluate", after=(training.key,))]


def resources_of(work: Work, cluster: ClusterSection) -> Resources:
    """What the cluster section reserves for this kind of work."""
    kind = "joint" if len(work.record.config["recipe"]["models"]) > 1 else "independent"
    if not work.record.trains or work.stage == "evaluate":
        kind = "evaluation"
    found: Resources | None = getattr(cluster, kind)
    assert found is not None, "ClusterSection refuses a Slurm cluster without them"
    return found


def grouped(
    works: Sequence[Work], cluster: ClusterSection, tasks: Mapping[str, str]
) -> dict[tuple[Resources, tuple[str, ...]], list[Work]]:
    """Works by (resources, tasks that must end well first). Needs that are complete are no dependency."""
    groups: dict[tuple[Resources, tuple[str, ...]], list[Work]] = {}
    for w in sorted(works, key=lambda w: w.size, reverse=True):  # the longest first, as an array starts in order
        after = tuple(tasks[key] for key in w.after if key in tasks)
        groups.setdefault((resources_of(w, cluster), after), []).append(w)
    return groups


def preview(runs: Runs, cluster: ClusterSection) -> str:
    """The batch scripts that a launch of these runs would submit, without writing anything."""
    root = next(iter(runs.values()))[1].experiment_root
    works = [
        w
        for plan, options in runs.values()
        for w in works_of(RunRecord(root / plan.name, {"fingerprint": plan.fingerprint, "recipe": plan.recipe}), options, cluster)
    ]
    texts = []
    for level in levels(works):
        for (resources, after), group in grouped(level, cluster, {w.key: f"<{w.record.path.name}>" for w in works}).items():
            elements = tuple({"run": str(w.record.path.resolve()), "fingerprint": w.fingerprint, "stage": w.stage} for w in group)
            batch = Batch(root / FOLDER / "<batch>", elements, resources.model_dump())
            python = cluster.python or sys.executable
            texts.append(script_text(batch, Script(cluster, resources, root / ".code" / "<snapshot>", python, after)))
    return "\n".join(texts)
