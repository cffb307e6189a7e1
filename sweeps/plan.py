"""Before anything happens: which runs are done, in hand, failed or missing, what they lack, and what they will cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.cluster import ClusterSection
from experiments.config import RunPlan
from experiments.errors import UserError
from experiments.paper_costs import Estimate
from experiments.run_record import RunRecord, find_runs, trains
from experiments.works import Runs
from sweeps.cells import Cell
from sweeps.costs import estimate, known_costs
from sweeps.survey import Standing, survey, track


@dataclass(frozen=True)
class Line:
    """One run of a plan. ``devices``: what it will occupy. ``estimate``: device-hours of the whole run."""

    standing: Standing
    devices: int
    estimate: Estimate
    lacks: str
    trains: bool = True

    @property
    def to_pay(self) -> float:
        """Estimated device-hours still to be spent: none for a finished run, all for others (what a resumed run saves is not known)."""
        return 0.0 if self.standing.state == "done" else self.estimate.hours or 0.0


def plan(runs: Runs, cluster: ClusterSection) -> list[Line]:
    """A line for each run, in launch order. Reads records; writes nothing."""
    root = next(iter(runs.values()))[1].experiment_root
    known = known_costs(find_runs([root]))
    exist = {name: RunRecord.open(root / name) for name in runs if (root / name / "run.json").is_file()}
    standings = {s.name: s for s in survey(exist.values(), track(root))}
    lines = []
    for name, (run, _) in runs.items():
        found = standings.get(name, Standing(name, run.fingerprint, "missing"))
        cost = estimate(run.cell, run.recipe, known)
        lines.append(Line(found, devices_of(run, cluster), cost, lacks(root / name, run, found), trains(run.recipe)))
    return lines


def devices_of(run: RunPlan, cluster: ClusterSection) -> int:
    """GPUs of its job, or CPU threads where there are none."""
    kind = "evaluation" if not trains(run.recipe) else "joint" if len(run.recipe["models"]) > 1 else "independent"
    asked = getattr(cluster, kind)
    return (asked.gpus or asked.cpus) if asked else cluster.threads


def lacks(path: Path, run: RunPlan, found: Standing) -> str:
    """What is missing of one run, in words."""
    if found.state == "done":
        return ""
    training = trains(run.recipe) and not (path / "selected.json").exists()
    files = len(run.recipe["models"]) * len(run.recipe["evaluation"]["benchmarks"]) * len(run.recipe["evaluation"]["seeds"])
    there = len(list(path.glob("eval/*/*/run*.jsonl")))
    parts = [f"training from step {found.step + 1}" if training and found.step else "training" if training else ""]
    parts.append(f"{files - there} of {files} evaluation files")
    return ", ".join(p for p in parts if p)


def require_budget(lines: Sequence[Line], budget: float) -> None:
    """UserError if the runs that are to be started would pass the budget, or if nobody knows what the training of one costs.

    Runs that only sample are left out where their cost is not known: they are small, and no paper says.
    """
    missing = [x for x in lines if x.standing.state != "done" and not x.standing.in_hand]
    total = sum(x.to_pay for x in missing)
    unknown = [x.standing.name for x in missing if x.trains and x.estimate.hours is None]
    if unknown:
        raise UserError(
            f"nobody knows yet what {len(unknown)} of {len(missing)} runs cost ({unknown[0]}, ...), so no budget can hold for them. "
            "Launch one of each recipe first (its ledger is the estimate for the rest), or launch without --budget-gpu-hours."
        )
    if total > budget:
        raise UserError(
            f"{len(missing)} runs would take an estimated {total:.1f} device-hours, over the budget of {budget:g}. "
            "Raise --budget-gpu-hours, or choose fewer with --rows, --pairs or --seeds."
        )


def unit(cluster: ClusterSection) -> str:
    return "GPU" if cluster.joint is not None and cluster.joint.gpus else "core"


def totals(lines: Sequence[Line], cluster: ClusterSection) -> list[str]:
    """The sentences under the table."""
    open_ = [x for x in lines if x.standing.state != "done"]
    unknown = sum(x.estimate.hours is None for x in open_)
    states = ", ".join(f"{n} {s}" for s in STATES if (n := sum(x.standing.state == s for x in lines)))
    spent = sum(x.standing.hours for x in lines)
    said = [
        f"{len(lines)} runs: {states or 'none'}",
        f"still to spend: {sum(x.to_pay for x in open_):.1f} {unit(cluster)}-hours by estimate"
        + (f" (without {unknown} runs whose cost nobody knows yet)" if unknown else ""),
    ]
    return said + ([f"spent so far: {spent:.1f} device-hours"] if spent else [])


STATES = ("done", "running", "queued", "waiting", "interrupted", "failed", "missing")


def show(lines: Sequence[Line], lacking: Sequence[Cell], cluster: ClusterSection, console: Console) -> None:
    """The plan as a table."""
    table = Table(box=None, header_style="bold")
    for head in ("#", "run", "state", "lacks", f"{unit(cluster)}s", f"{unit(cluster)}-h", "estimate from"):
        table.add_column(
            head, justify="right" if head == "#" or head.startswith(unit(cluster)) else "left", no_wrap=head == "run"
        )
    for k, x in enumerate(lines, 1):
        hours = (
            "?"
            if x.estimate.hours is None
            else f"{x.estimate.hours:.1f}"
            if x.estimate.hours >= 0.1
            else f"{x.estimate.hours:.3f}"
        )
        reason = f"{x.standing.state}: {x.standing.reason}" if x.standing.reason else x.standing.state
        table.add_row(str(k), x.standing.name, Text(reason), x.lacks, str(x.devices), hours, x.estimate.source)
    console.print(table)
    for text in totals(lines, cluster):
        console.print(text, highlight=False, soft_wrap=True)
    if lacking:
        names = sorted({c.method for c in lacking})
        console.print(
            f"not in this version, left out: {', '.join(names)} ({len(lacking)} cells)", highlight=False, soft_wrap=True
        )


def to_json(lines: Sequence[Line]) -> str:
    """The plan for scripts."""
    return json.dumps(
        [
            {
                **asdict(x.standing),
                "devices": x.devices,
                "lacks": x.lacks,
                **{f"estimate_{k}": v for k, v in asdict(x.estimate).items()},
            }
            for x in lines
        ],
        indent=1,
    )
