"""A table's spec -> its cells -> the unique runs behind them.

A cell is (method, deviations, pair, scale, seed). Cells are resolved by the same composition as ``experiments.train``, so one
recipe is one run whichever table asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.compose import CONF, override
from experiments.config import Options, RunPlan, resolve
from experiments.errors import UserError

SPECS = Path(__file__).resolve().parent.parent / "paper_tables" / "specs"


@dataclass(frozen=True)
class Cell:
    """One row of a table at one scale and seed, as Hydra overrides."""

    row: str
    method: str
    overrides: tuple[str, ...]

    @property
    def available(self) -> bool:
        """Whether this version can run the method: its YAML exists."""
        return (CONF / "method" / f"{self.method}.yaml").exists()


def load_spec(table: str) -> Mapping[str, Any]:
    """The spec file of a table; UserError lists the known."""
    file = SPECS / f"{table}.yaml"
    if not file.exists():
        raise UserError(f"unknown table {table!r}; known: {', '.join(sorted(p.stem for p in SPECS.glob('*.yaml')))}")
    spec: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return spec


def cells(spec: Mapping[str, Any], *, scale: str, seed: int, pair: str | None = None) -> Iterator[Cell]:
    """Cells of a spec in its order; ``pair`` replaces the spec's pair."""
    for row in spec["rows"]:
        choices = (f"method={row['method']}", f"pair={pair or spec['pair']}", f"scale={scale}", f"seed={seed}")
        deviations = tuple(override(_config_key(k), v) for k, v in (row.get("deviations") or {}).items())
        yield Cell(row["slug"], row["method"], (*choices, *deviations))


def _config_key(recipe_key: str) -> str:
    """A recipe's dotted key as a configuration key: training and evaluation live in the scale group there."""
    section = recipe_key.split(".", 1)[0]
    return f"scale.{recipe_key}" if section in ("training", "evaluation") else recipe_key


def unique_runs(wanted: Sequence[Cell], extra: Sequence[str]) -> tuple[dict[str, tuple[RunPlan, Options]], list[Cell]]:
    """(run name -> plan and options, cells whose method this version lacks). Equal fingerprints are one run."""
    runs: dict[str, tuple[RunPlan, Options]] = {}
    lacking = []
    for cell in wanted:
        if not cell.available:
            lacking.append(cell)
            continue
        plans, options = resolve([*cell.overrides, *extra])
        for plan in plans:
            runs.setdefault(plan.name, (plan, options))
    return runs, lacking
