"""Rows that have no number yet: why, for whom, and the command that makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from analysis.collect import Match
from analysis.spec import RowSpec
from experiments.run_record import UserError

# Stands behind a number of fewer runs than asked for. Not a dagger: table 1 has those for something else.
SHORT = "§"


@dataclass(frozen=True)
class Todo:
    """A row without (whole) runs, for whom, and the command that makes them or how far they are."""

    row: str
    receivers: tuple[str, ...]
    text: str


def config_key(recipe_key: str) -> str:
    """A recipe's dotted key as the command line names it: training and evaluation live in the scale group there."""
    section = recipe_key.split(".", 1)[0]
    return f"scale.{recipe_key}" if section in ("training", "evaluation") else recipe_key


def _override(key: str, value: Any) -> str:
    return shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")


def train_command(row: RowSpec, *, pair: str, seed: int, scale: str) -> str:
    """The command that produces the row's runs; an independent method runs once per model of the pair."""
    deviations = {config_key(key): value for key, value in row.deviations.items()}
    overrides = {"method": row.method, "pair": pair, "seed": seed, "scale": scale, **deviations}
    return " ".join(["python -m experiments.train", *(_override(k, v) for k, v in overrides.items())])


def why_no_run(row: RowSpec, methods: Path) -> Literal["missing", "unavailable"]:
    """ "missing" if this version can run the method (its YAML exists), "unavailable" if not."""
    if not methods.is_dir():
        raise UserError(f"{methods} is not a folder, so it cannot be said which methods this version has; give --methods")
    return "missing" if (methods / f"{row.method}.yaml").is_file() else "unavailable"


def progress(found: Sequence[Match]) -> str:
    """How far the unfinished runs are, one clause per run directory."""
    parts = []
    for record in {r.path: r for m in found for r in m.unfinished}.values():
        status = record.status()
        steps = f"step {status.get('step')} of {status.get('steps')}"
        # One line, whatever the reason holds: it is a list entry and, in LaTeX, a comment.
        reason = " ".join((status.get("reason") or "").split())
        parts.append(f"{record.path}: {status['state']}, {steps}" + (f", {reason}" if reason else ""))
    return "; ".join(parts)
