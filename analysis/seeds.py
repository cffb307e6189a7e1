"""One table over training seeds and pairs: every method of a spec on the same seeds, per-seed values beside mean and std over seeds.

Here n counts TRAINING seeds: the spread is that of whole training runs, each taken as the mean of its evaluation runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from analysis.spec import AVERAGE, TableSpec
from analysis.stats import mean_and_std
from analysis.tables import from_runs
from experiments.run_record import RunRecord


@dataclass(frozen=True)
class SeedRow:
    """One method on one receiver of one pair. ``values`` maps each seed to its mean over the evaluation runs, None if missing.

    ``seeded`` is False for a row whose one run stands under every seed (the base model): it has no spread.
    """

    pair: str
    receiver: str
    row: str
    values: dict[int, float | None]
    seeded: bool = True

    @property
    def mean_std(self) -> tuple[float, float | None] | None:
        """Mean and sample std over the seeds; None unless every seed is present (a short row is never averaged)."""
        present = [v for v in self.values.values() if v is not None]
        if not present or len(present) < len(self.values):
            return None
        return mean_and_std(np.array(present if self.seeded else present[:1]))


def pairs_of(records: Sequence[RunRecord], scale: str) -> dict[str, tuple[str, ...]]:
    """{pair: receivers} of the joint runs at a scale."""
    of_pairs = [r for r in records if r.config["cell"]["pair"] is not None and r.config["cell"]["scale"] == scale]
    # A run with a stored peer belongs to a pair, too, and knows one model of it.
    joint = [r for r in of_pairs if len(r.config["recipe"]["models"]) > 1]
    return {r.config["cell"]["pair"]: tuple(m["stands_for"] for m in r.config["recipe"]["models"]) for r in joint}


def seed_rows(spec: TableSpec, records: Sequence[RunRecord], *, scale: str, methods: Path) -> list[SeedRow]:
    """All rows of the spec that have at least one whole run, for every pair and seed on record."""
    seeds = sorted(
        {r.config["cell"]["seed"] for r in records if r.config["cell"]["scale"] == scale and r.config["cell"]["pair"] is not None}
    )
    rows = []
    for pair, receivers in sorted(pairs_of(records, scale).items()):
        here = replace(spec, pair=pair, receivers=receivers)
        tables = {seed: from_runs(here, records, scale=scale, seed=seed, methods=methods) for seed in seeds}
        means = {
            (row.spec.slug, x, seed): row.cells[x, AVERAGE].mean if row.cells[x, AVERAGE].state == "whole" else None
            for seed, table in tables.items()
            for row in table.rows
            for x in receivers
        }
        for receiver in receivers:
            for slug in dict.fromkeys(key[0] for key in means):
                values = {seed: means.get((slug, receiver, seed)) for seed in seeds}
                if any(v is not None for v in values.values()):
                    seeded = next(r.seed is None for r in spec.rows if r.slug == slug)
                    rows.append(SeedRow(pair, receiver, slug, values, seeded))
    return rows


def print_seeds(rows: Sequence[SeedRow], scale: str) -> None:
    """To the terminal, in percent points. The base model has one run, shown under every seed."""
    seeds = sorted({seed for row in rows for seed in row.values})
    grid = Grid(
        "pair", "receiver", "row", *(f"seed {s}" for s in seeds), "mean ± std over seeds", title=f"Training seeds, scale={scale}"
    )
    for row in rows:
        both = row.mean_std
        spread = "—" if both is None else f"{both[0]:.2f}" + (" ± —" if both[1] is None else f" ± {both[1]:.2f}")
        values = ("—" if v is None else f"{v:.2f}" for v in (row.values[s] for s in seeds))
        grid.add_row(row.pair, row.receiver, row.row, *values, spread)
    Console().print(grid)
