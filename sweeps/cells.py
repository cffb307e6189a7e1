"""A table's or figure's spec -> its cells -> the unique runs behind them.

A cell is (method, deviations, pair, scale, seed). Cells are resolved by the same composition as ``experiments.train``, so one
recipe is one run whichever table asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from experiments.compose import CONF, override
from experiments.config import Options, RunPlan, resolve
from experiments.errors import UserError
from experiments.rows import expand
from experiments.works import add_runs

SPECS = Path(__file__).resolve().parent.parent / "paper_tables" / "specs"
# All of the paper: every spec that is named after a table or figure of it.
ALL = "all"
OF_THE_PAPER = re.compile(r"(table|figure)\d+\w?")


@dataclass(frozen=True)
class Cell:
    """One row of a table for one pair at one scale and seed, as Hydra overrides."""

    table: str
    row: str
    method: str
    overrides: tuple[str, ...]

    @property
    def available(self) -> bool:
        """Whether this version can run the method: its YAML exists."""
        return (CONF / "method" / f"{self.method}.yaml").exists()


def tables() -> tuple[str, ...]:
    """Names of all specs, table2 before table10."""
    return tuple(sorted((p.stem for p in SPECS.glob("*.yaml")), key=lambda n: [int(t) if t.isdigit() else t for t in _parts(n)]))


def _parts(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def load_spec(table: str) -> Mapping[str, Any]:
    """The spec file of a table; UserError lists the known."""
    file = SPECS / f"{table}.yaml"
    if not file.exists():
        raise UserError(f"unknown table {table!r}; known: {', '.join(tables())}, {ALL}")
    spec: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {"name": table, **spec, "rows": expand(spec["rows"], str(file))}


def cells(spec: Mapping[str, Any], *, scale: str, seed: int, pair: str | None = None) -> Iterator[Cell]:
    """Cells of a spec for one pair (default: the spec's first) and seed, in the spec's order."""
    chosen = pair or pairs_of(spec)[0]
    for row in spec["rows"]:
        choices = (f"method={row['method']}", override("pair", chosen), f"scale={scale}", f"seed={seed}")
        deviations = tuple(override(_config_key(k), v) for k, v in (row.get("deviations") or {}).items())
        yield Cell(spec.get("name", ""), row["slug"], row["method"], (*choices, *deviations))


def pairs_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The pairs that a spec shows: its ``pairs``, or its one ``pair``."""
    return tuple(str(p) for p in spec.get("pairs") or [spec["pair"]])


def _config_key(recipe_key: str) -> str:
    """A recipe's dotted key as a configuration key: training and evaluation live in the scale group there."""
    section = recipe_key.split(".", 1)[0]
    return f"scale.{recipe_key}" if section in ("training", "evaluation") else recipe_key


@dataclass(frozen=True)
class Request:
    """Which cells. ``table``: a spec, or ``all``. ``seeds``, ``pairs``, ``rows`` () mean what each spec says (seed 0, every row)."""

    table: str
    scale: str
    seeds: Sequence[int] = ()
    pairs: Sequence[str] = ()
    rows: Sequence[str] = ()
    extra: Sequence[str] = field(default=())

    def cells(self) -> list[Cell]:
        """In the specs' order. UserError for rows that no spec asked for has."""
        names = [t for t in tables() if OF_THE_PAPER.fullmatch(t)] if self.table == ALL else [self.table]
        specs = [load_spec(t) for t in names]
        known = [row["slug"] for spec in specs for row in spec["rows"]]
        if unknown := sorted(set(self.rows) - set(known)):
            raise UserError(f"{self.table} has no row {', '.join(unknown)}; it has {', '.join(dict.fromkeys(known))}")
        every = (
            cell
            for spec in specs
            for seed in (self.seeds or spec.get("seeds") or [0])
            for pair in (self.pairs or pairs_of(spec))
            for cell in cells(spec, scale=self.scale, seed=seed, pair=pair)
        )
        return [cell for cell in every if not self.rows or cell.row in self.rows]

    def runs(self) -> tuple[dict[str, tuple[RunPlan, Options]], list[Cell]]:
        """As ``unique_runs``; UserError when nothing of it exists in this version."""
        runs, lacking = unique_runs(self.cells(), self.extra)
        if not runs:
            raise UserError(f"{self.table}: none of its methods exists in this version")
        return runs, lacking


def unique_runs(wanted: Sequence[Cell], extra: Sequence[str]) -> tuple[dict[str, tuple[RunPlan, Options]], list[Cell]]:
    """(run name -> plan and options, cells whose method this version lacks). Equal fingerprints are one run.

    A run whose donor no cell asks for brings it along, before itself.
    """
    runs: dict[str, tuple[RunPlan, Options]] = {}

    for overrides in dict.fromkeys(cell.overrides for cell in wanted if cell.available):
        plans, options = resolve([*overrides, *extra])
        add_runs(runs, plans, options)
    lacking = [cell for cell in wanted if not cell.available]
    return runs, lacking
