"""Run records as a source of cells: every table that has a spec in paper_tables/specs, at one scale and over given training seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis import clipping, compute, pairs
from analysis.cells import Comparison, Key, Value
from analysis.clipping import BOTH, ZERO
from analysis.figures.common import Query
from analysis.records_figures import figure_cells
from analysis.spec import PASS_AT_1, RowSpec, TableSpec, load_spec, read_spec
from analysis.stats import mean_and_std
from analysis.tables import from_runs, match_row
from experiments.run_record import RunRecord

CLIPPING, COMPUTE, OF_PAIRS = "clipping", "compute", ("pairs", "stability")
# compute.HOURS -> the columns of the reported file as the claims name them
COSTS = {"best": "best_gpu_h", "full": "full_gpu_h"}


@dataclass
class Records:
    """Cells of the runs in ``records``.

    One training seed: mean and std over the evaluation runs of its checkpoint. Several: mean and std over the training runs, each the
    mean of its evaluation runs. A cell is there only if it is whole for every seed asked for. Shares of clipped tokens are pooled over
    the steps that the table counts and need one seed. A table is computed once, when a cell of it is first asked for.
    """

    records: Sequence[RunRecord]
    scale: str
    seeds: Sequence[int]
    specs: Path
    methods: Path
    complete: bool = False
    _tables: dict[str, Mapping[Key, Value]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"run records, scale {self.scale}, training seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"

    @property
    def comparison(self) -> Comparison:
        """The paper's numbers are those of its own scale."""
        return "level" if self.scale == "paper" else "direction"

    def cell(self, key: Key) -> Value | None:
        """The value of a cell of a table with a spec; None without a spec, without a run and for a run that is not whole."""
        if key.table not in self._tables:
            self._tables[key.table] = self._read(key.table)
        return self._tables[key.table].get(key)

    def _read(self, table: str) -> Mapping[Key, Value]:
        if not (self.specs / f"{table}.yaml").is_file():
            return {}
        kind = read_spec(table, self.specs)[1].get("kind", PASS_AT_1)
        if kind == PASS_AT_1:
            return self._scores(load_spec(table, self.specs), self.seeds)
        if kind in OF_PAIRS:
            spec = pairs.load_spec(table, self.specs)
            # A spread over training seeds is over those of the spec.
            return {k: v for block in spec.blocks for k, v in self._scores(block, spec.seeds or self.seeds).items()}
        if kind == COMPUTE:
            return self._costs(table)
        if len(self.seeds) != 1:  # counts and curves of one run have no mean over seeds here
            return {}
        if kind == CLIPPING:
            return self._clipping(table)
        return figure_cells(table, kind, Query(self.records, self.scale, self.seeds[0], self.methods), self.specs)

    def _costs(self, table: str) -> dict[Key, Value]:
        """Scores as anywhere; device-hours of one training seed, per model and of both."""
        spec = compute.load_spec(table, self.specs)
        found = self._scores(compute.score_spec(spec), self.seeds)
        if len(self.seeds) != 1:
            return found
        measured = compute.from_runs(spec, self.records, scale=self.scale, seed=self.seeds[0], methods=self.methods)
        rows = {row.slug: row for row in spec.rows}
        for (slug, receiver), cost in measured.costs.items():
            for name, hours in cost.hours.items():
                if column := COSTS.get(name.removeprefix("both_")):
                    whose = BOTH if name.startswith("both_") else receiver
                    models = spec.receivers if whose == BOTH else (receiver,)
                    runs = tuple(dict.fromkeys(run for x in models for run in self._runs(rows[slug], spec.pair, x, self.seeds)))
                    found[Key(table, slug, column, whose, spec.pair)] = Value(hours, counted=True, runs=runs)
        return found

    def _scores(self, spec: TableSpec, seeds: Sequence[int]) -> dict[Key, Value]:
        tables = [from_runs(spec, self.records, scale=self.scale, seed=s, methods=self.methods) for s in seeds]
        found = {}
        for rows in zip(*(_by_slug(t.rows, spec) for t in tables), strict=True):
            row = rows[0][0]
            for receiver in spec.receivers:
                runs = self._runs(row, spec.pair, receiver, seeds)
                for column in spec.columns:
                    cells = [cells.get((receiver, column)) for _, cells in rows]
                    if all(c is not None and c.state == "whole" for c in cells):
                        found[Key(spec.name, row.slug, column, receiver, spec.pair)] = self._value(
                            row, cells, runs, f"{runs} {receiver} {column}"
                        )
        return found

    def _value(self, row: RowSpec, cells: Sequence, runs: tuple[str, ...], origin: str) -> Value:
        if len(cells) == 1 or row.seed is not None:  # one run under every seed has the noise of its evaluation alone
            one = cells[0]
            return Value(one.mean, one.std, one.n, f"{one.n} evaluation runs of one checkpoint", runs=runs, origin=origin)
        mean, std = mean_and_std(np.array([c.mean for c in cells]))
        return Value(
            mean, std, len(cells), f"{len(cells)} training runs, each the mean of its evaluation runs", runs=runs, origin=origin
        )

    def _runs(self, row: RowSpec, pair: str, receiver: str, seeds: Sequence[int]) -> tuple[str, ...]:
        found = (match_row(self.records, row, pair, receiver, self.scale, seed).done for seed in seeds)
        return tuple(dict.fromkeys(str(r.path) for r in found if r))

    def _clipping(self, table: str) -> dict[Key, Value]:
        spec = clipping.load_spec(table, self.specs)
        seed = self.seeds[0]
        measured = clipping.from_runs(spec, self.records, scale=self.scale, seed=seed, methods=self.methods)
        rows = {row.slug: row for row in spec.rows}
        found = {}
        for (quantity, slug), value in measured.values.items():
            name, update, receiver, _ = quantity
            share = value.step_mean if name == ZERO else value.pooled
            if share is not None:
                column = ZERO if name == ZERO else update
                runs = self._runs(rows[slug], spec.pair, spec.receivers[0], self.seeds)
                found[Key(table, slug, column, receiver, spec.pair)] = Value(share, counted=True, runs=runs)
        return found


def _by_slug(rows: Sequence, spec: TableSpec) -> list[tuple[RowSpec, Mapping]]:
    """(row, cells) of every row of the spec, in its order; no cells for one that a seed does not show."""
    cells = {row.spec.slug: row.cells for row in rows}
    return [(row, cells.get(row.slug, {})) for row in spec.rows]
