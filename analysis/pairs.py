"""Tables of several pairs (1 and 4): a TableSpec per pair, measured on one set of runs and printed as one page.

Kind "pairs" is one training seed, mean and std over the evaluation runs of a checkpoint. Kind "stability" is over training seeds
(``analysis.stability``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.evidence import gather
from analysis.footer import notes_for_reported, notes_for_runs
from analysis.spec import AVERAGE, REPORTED_AVERAGE, Reported, TableSpec, make_spec, read_spec, reported_lines
from analysis.tables import Table, build, find, from_reported as table_from_reported, marks_note
from analysis.todo import Todo
from experiments.run_record import RunRecord, UserError

# (pair, row, receiver, column); pair "" is a model trained alone, the same in every pair of its receiver.
ReportedKey = tuple[str, str, str, str]
OWN_KEYS = ("kind", "pairs", "seeds", "reported_deltas", "spread")


@dataclass(frozen=True)
class PairsSpec:
    """``blocks``: one table per pair, alike but for pair, receivers and reported values. ``seeds``: those that kind stability is over.

    ``spread``: what the paper's std is over.
    """

    name: str
    blocks: tuple[TableSpec, ...]
    spread: str
    seeds: tuple[int, ...] = ()

    @property
    def receivers(self) -> tuple[str, ...]:
        """Every receiver of some pair, in order of appearance."""
        return tuple(dict.fromkeys(x for block in self.blocks for x in block.receivers))


@dataclass(frozen=True)
class PairsTable:
    """``tables``: one per block of the spec. ``notes`` are those of the whole."""

    spec: PairsSpec
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def load_spec(name: str, folder: Path) -> PairsSpec:
    """Read and check a table of kind pairs or stability; every value of the paper must be in some block."""
    path, given = read_spec(name, folder)
    own = {key: given.pop(key, None) for key in OWN_KEYS}
    pairs = own["pairs"]
    if not isinstance(pairs, Mapping) or any(not isinstance(x, list) or len(set(x)) != 2 for x in pairs.values()):
        raise UserError(f"{path}: pairs map each pair to its two receivers, got {pairs!r}")
    seeds = tuple(own["seeds"] or ())
    if (own["kind"] == "stability") != bool(seeds) or len(set(seeds)) != len(seeds):
        raise UserError(f"{path}: kind stability, and no other, has seeds, each once; got {own['kind']} with {list(seeds)}")
    if seeds and any(row.get("optional") or row.get("seed") is not None for row in given.get("rows") or ()):
        raise UserError(f"{path}: a row that is optional or has a seed of its own has no spread over training seeds")
    if given.get("reported_file") and not own["spread"]:
        raise UserError(f"{path}: spread is not given; say what the paper's std is over")
    reported = read_reported(folder.parent / "reported", given.get("reported_file"), own["reported_deltas"])
    blocks = []
    for pair, receivers in pairs.items():
        mine = {key[1:]: v for key, v in reported.items() if key[0] in ("", str(pair)) and key[2] in receivers}
        parts = {"a": f"Pair {pair}"}
        blocks.append(make_spec(name, path, given | {"pair": pair, "receivers": receivers, "parts": parts}, mine))
    shown = {(p, *key) for block in blocks for key in block.reported for p in ("", block.pair)}
    if odd := sorted(reported.keys() - shown):
        raise UserError(f"{path}: the paper's values are of pairs and receivers that the table does not have: {odd}")
    return PairsSpec(name, tuple(blocks), own["spread"] or "", seeds)


def read_reported(folder: Path, file: str | None, deltas: str | None) -> dict[ReportedKey, Reported]:
    """The paper's values; differences come from a column of the file or, if named, from the file ``deltas``."""
    if file is None:
        return {}
    printed = _read_deltas(folder / deltas) if deltas else {}
    values: dict[ReportedKey, Reported] = {}
    for where, line in reported_lines(folder / file, {"pair", "updated_policy", "method", "benchmark", "mean", "std"}):
        column = AVERAGE if line["benchmark"] == REPORTED_AVERAGE else line["benchmark"]
        key = (line["pair"], line["method"], line["updated_policy"], column)
        if key in values:
            raise UserError(f"{where}: {', '.join(key)} is given twice; correct the file")
        try:
            own = float(line["delta"]) if line.get("delta") else None
            values[key] = Reported(float(line["mean"]), float(line["std"]), printed.pop(key, own))
        except ValueError as e:
            raise UserError(f"{where}: {e}") from e
    if printed:
        raise UserError(f"{folder / str(deltas)}: differences of cells that {file} does not have: {sorted(printed)}")
    return values


def _read_deltas(path: Path) -> dict[ReportedKey, float]:
    found = {}
    for where, line in reported_lines(path, {"pair", "updated_policy", "method", "delta_vs_grpo_n8"}):
        try:
            found[line["pair"], line["method"], line["updated_policy"], AVERAGE] = float(line["delta_vs_grpo_n8"])
        except ValueError as e:
            raise UserError(f"{where}: {e}") from e
    return found


def from_reported(spec: PairsSpec) -> PairsTable:
    """The paper's own values."""
    tables = tuple(table_from_reported(block) for block in spec.blocks)
    first = spec.blocks[0]
    return PairsTable(spec, tables, (*notes_for_reported(first, spec.spread), *marks_note(first)))


def from_runs(spec: PairsSpec, records: Sequence[RunRecord], *, scale: str, seed: int, methods: Path) -> PairsTable:
    """All blocks of the given runs at one scale and training seed; their runs must have been evaluated alike."""
    found = [find(block, records, scale, seed) for block in spec.blocks]
    evidence = gather(match for matches in found for match in matches.values())
    where: dict[str, Any] = {"scale": scale, "seed": seed, "methods": methods}
    tables = tuple(build(block, matches, evidence, **where) for block, matches in zip(spec.blocks, found, strict=True))
    first = spec.blocks[0]
    cells = [f"Pair {table.spec.pair}: {note}" for table in tables for note in table.notes]
    notes = notes_for_runs(first, evidence.used, evidence.frame, scale=scale, seed=seed)
    return PairsTable(spec, tuple(map(name_pair, tables)), (*notes, *marks_note(first), *cells))


def name_pair(table: Table) -> Table:
    """The table with its pair in every list of rows without a number."""

    def named(todos: tuple[Todo, ...]) -> tuple[Todo, ...]:
        return tuple(replace(t, row=f"{t.row}, pair {table.spec.pair}") for t in todos)

    return replace(table, missing=named(table.missing), unfinished=named(table.unfinished))
