"""What the notebooks call: the records at hand, and tables, figures and costs of them as objects that a notebook shows.

``GRAFT_RUNS`` names the folder of the experiments (default: runs/ of the repository), ``GRAFT_EXPERIMENT`` the one among them (paper),
``GRAFT_SCALE`` the scale (default: the largest with a finished run).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis import figures
from analysis.collect import open_runs
from analysis.footer import SCALES
from analysis.kinds import Asked, build_table
from analysis.report.appendix import COSTS, hours
from analysis.report.gather import read_run
from analysis.writers import to_markdown
from experiments.run_record import RunRecord, UserError

PROJECT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Here:
    """The run records that a notebook is about; shown as one sentence. ``records``: of this scale, finished or not."""

    root: Path
    scale: str
    records: tuple[RunRecord, ...]
    seed: int = 0

    @property
    def asked(self) -> Asked:
        return Asked(self.scale, self.seed, PROJECT / "paper_tables/specs", PROJECT / "sweeps/conf/method")

    @property
    def done(self) -> tuple[RunRecord, ...]:
        return tuple(r for r in self.records if r.done)

    def _repr_markdown_(self) -> str:
        if not self.done:
            return (
                f"**No finished run at scale {self.scale} under `{self.root}`, so everything below is empty.** Make some with "
                "`make reproduce-table2 SCALE=smoke`, or set the environment variable `GRAFT_RUNS` to a folder that holds an experiment."
            )
        return f"{len(self.done)} finished runs of {len(self.records)} at scale {self.scale} under `{self.root}`. {SCALES[self.scale][0]}"


@dataclass(frozen=True)
class Markdown:
    text: str

    def _repr_markdown_(self) -> str:
        return self.text


@dataclass(frozen=True)
class Picture:
    """A figure: ``png`` is shown; ``points`` is what it shows."""

    png: bytes = field(repr=False)
    points: pd.DataFrame

    def _repr_png_(self) -> bytes:
        return self.png


def here(environ: Mapping[str, str] = os.environ) -> Here:
    """The records that the environment names. UserError for a scale that is not known."""
    root = Path(environ.get("GRAFT_RUNS", PROJECT / "runs")) / environ.get("GRAFT_EXPERIMENT", "paper")
    records = open_runs(root)
    done = {r.config["cell"]["scale"] for r in records if r.done}
    scale = environ.get("GRAFT_SCALE") or next((s for s in reversed(SCALES) if s in done), "cpu")
    if scale not in SCALES:
        raise UserError(f"GRAFT_SCALE is {scale!r}; known are {', '.join(SCALES)}")
    return Here(root, scale, tuple(r for r in records if r.config["cell"]["scale"] == scale))


def table(name: str, at: Here) -> Markdown:
    """A table of paper_tables/specs with its notes and what it lacks."""
    page, _ = build_table(name, lambda: at.records, at.asked)
    return Markdown(to_markdown(page))


def figure(name: str, at: Here) -> Picture:
    """A figure of paper_tables/specs; its points say why one has no value."""
    data = figures.build(figures.load_spec(name, at.asked.specs), figures.Query(at.records, at.scale, at.seed, at.asked.methods))
    points = pd.DataFrame([vars(p) for p in data.points], columns=list(figures.POINT_COLUMNS))
    return Picture(figures.to_png(data), points)


def costs(at: Here) -> pd.DataFrame:
    """Device-hours of every run that spent any, one row per run."""
    rows = [
        {"run": run.path.name, "unit": run.ledger.devices.unit, **dict(zip(COSTS, hours(run.ledger), strict=True))}
        for run in map(read_run, at.records)
        if run.ledger
    ]
    return pd.DataFrame(rows, columns=["run", "unit", *COSTS]).set_index("run")
