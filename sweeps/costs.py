"""What a run costs before it runs: from the ledger of a finished run of the same recipe, else from the paper's table 5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.files import canonical_json
from experiments.ledger import read_ledger
from experiments.paper_costs import UNKNOWN, Estimate, from_paper
from experiments.run_record import RunRecord, trains

PAPER_SCALE = "paper"


def recipe_key(recipe: Mapping[str, Any]) -> str:
    """Recipes that differ only in their seed cost the same, and so do those that read another log."""
    return canonical_json({k: v for k, v in recipe.items() if k not in ("seed", "donor")})


def ledger_hours(record: RunRecord) -> float:
    """Device-hours of a finished run by its ledger: training, validation, checkpoints and evaluation."""
    ledger = read_ledger(record)
    return (sum(c.wall for c in ledger.kept) + ledger.evaluation) * ledger.devices.count / 3600


def known_costs(records: Iterable[RunRecord]) -> dict[str, tuple[float, str]]:
    """recipe key -> (hours, run), of the finished runs."""
    return {recipe_key(r.config["recipe"]): (ledger_hours(r), r.path.name) for r in records if r.done}


def estimate(cell: Mapping[str, Any], recipe: Mapping[str, Any], known: Mapping[str, tuple[float, str]]) -> Estimate:
    """The cost of one run that is not done yet."""
    if found := known.get(recipe_key(recipe)):
        return Estimate(found[0], f"ledger of {found[1]}")
    if cell["scale"] == PAPER_SCALE and trains(recipe):
        return from_paper(recipe)
    return UNKNOWN
