"""Tables of kind "stability" (table 4): mean and std over training runs, each taken as the mean of its evaluation runs.

n/N counts training seeds. A seed without a whole run is left out and the cell marked; it is then neither ranked nor subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.evidence import gather
from analysis.footer import notes_for_runs
from analysis.pairs import PairsSpec, PairsTable, name_pair
from analysis.spec import TableSpec
from analysis.stats import mean_and_std
from analysis.tables import Cell, Cells, Row, Table, build, find, marks_note, rank, with_deltas
from analysis.todo import SHORT, Todo
from experiments.run_record import RunRecord


def from_runs(spec: PairsSpec, records: Sequence[RunRecord], *, scale: str, seed: int, methods: Path) -> PairsTable:
    """All blocks over the spec's training seeds (``seed`` is not looked at: a spread over one seed is none)."""
    found = {(block.pair, s): find(block, records, scale, s) for block in spec.blocks for s in spec.seeds}
    evidence = gather(match for matches in found.values() for match in matches.values())
    tables, notes = [], []
    for block in spec.blocks:
        per_seed = [build(block, found[block.pair, s], evidence, scale=scale, seed=s, methods=methods) for s in spec.seeds]
        tables.append(name_pair(over_seeds(block, per_seed, spec.seeds)))
        notes += [
            f"Pair {block.pair}, seed {s}: {note}" for s, table in zip(spec.seeds, per_seed, strict=True) for note in table.notes
        ]
    seeds = ", ".join(map(str, spec.seeds))
    spread = (
        f"± is the sample std (n-1) over {len(spec.seeds)} TRAINING runs (seeds {seeds}), each taken as the mean of its evaluation "
        f"runs: it shows the noise between training runs. n/N = training runs complete / asked for. {SHORT} = fewer than asked for, "
        "neither bold nor subtracted. — = no value."
    )
    head = notes_for_runs(spec.blocks[0], evidence.used, evidence.frame, scale=scale, seed=seeds, spread=spread)
    return PairsTable(spec, tuple(tables), (*head, *marks_note(spec.blocks[0]), *notes))


def over_seeds(spec: TableSpec, per_seed: Sequence[Table], seeds: Sequence[int]) -> Table:
    """One table out of one per seed."""
    cells: Cells = {}
    for rows in zip(*(table.rows for table in per_seed), strict=True):
        for place in rows[0].cells:
            cells[rows[0].spec.slug, *place] = _over_seeds([row.cells[place] for row in rows])
    shown = [row.spec for row in per_seed[0].rows]
    cells = rank(with_deltas(cells, spec.reference), spec, shown)
    rows = tuple(Row(row, {key[1:]: cell for key, cell in cells.items() if key[0] == row.slug}) for row in shown)
    return replace(
        per_seed[0],
        rows=rows,
        notes=(),
        missing=_by_seed([table.missing for table in per_seed], seeds),
        unfinished=_by_seed([table.unfinished for table in per_seed], seeds),
    )


def _over_seeds(cells: Sequence[Cell]) -> Cell:
    """Whole with every seed whole, short with some; without any as the first seed that has something to say."""
    whole = [cell.mean for cell in cells if cell.state == "whole"]
    plain = replace(cells[0], N=len(cells), delta=None, best=False, mark="", runs=_runs(cells, "whole"))
    if not whole:
        state = next((c.state for c in cells if c.state != "missing"), "missing")
        return replace(plain, state=state, mean=None, std=None, n=0, runs=_runs(cells, state))
    mean, std = mean_and_std(np.array(whole))
    state = "whole" if len(whole) == len(cells) else "short"
    return replace(plain, state=state, mean=mean, std=std, n=len(whole))


def _runs(cells: Sequence[Cell], state: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run for cell in cells if cell.state == state for run in cell.runs))


def _by_seed(todos: Sequence[tuple[Todo, ...]], seeds: Sequence[int]) -> tuple[Todo, ...]:
    return tuple(replace(t, row=f"{t.row}, seed {seed}") for seed, mine in zip(seeds, todos, strict=True) for t in mine)
