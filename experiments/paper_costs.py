"""GPU-hours that the paper reports in its table 5 for a run, or for the one most like it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

REPORTED = Path(__file__).resolve().parent.parent / "paper_tables" / "reported" / "table5_compute.csv"
# Table 5 has pair 1 only. Other joint methods are charged like GRAFT: they sample and train the same groups.
IN_TABLE_5 = {"hacpo": "hacpo", "sgt": "sgt", "graft_stored": "graft_stored", "grpo_dynamic": "grpo_n8_dynamic_sampling"}
LIKE_GRAFT = "graft"
# OctoThinker-3B is not in table 5; SmolLM3-3B is the model of its size there.
SAME_SIZE = {"octothinker-3b": "smollm3-3b"}


@dataclass(frozen=True)
class Estimate:
    """Device-hours of one run, None if nobody knows, and where the number is from."""

    hours: float | None
    source: str


UNKNOWN = Estimate(None, "no finished run of this recipe yet")


@lru_cache(maxsize=1)
def table_5() -> dict[tuple[str, str], Mapping[str, str]]:
    """(method, model) -> row of the paper's table 5."""
    with open(REPORTED, encoding="utf-8", newline="") as f:
        return {(row["method"], row["model"]): row for row in csv.DictReader(f)}


def from_paper(recipe: Mapping[str, Any]) -> Estimate:
    """Full-run GPU-hours that the paper reports for the run, or for the one most like it, which the source then says."""
    method, models = recipe["method"], [m["stands_for"] for m in recipe["models"]]
    name = method["name"]
    row = f"grpo_n{method['n']}" if name == "grpo" else IN_TABLE_5.get(name, LIKE_GRAFT if len(models) > 1 else "grpo_n8")
    exact = name in ("grpo", LIKE_GRAFT, *IN_TABLE_5)
    like = "" if exact else f", like {row}"
    if len(models) > 1:
        found = table_5().get((row, "smollm3-3b"))
        if {*models} != {"smollm3-3b", "qwen3-1.7b"}:
            like += ", as for pair 1"
        return Estimate(float(found["both_full_run_gpu_h"]), f"paper, table 5{like}") if found else UNKNOWN
    model = SAME_SIZE.get(models[0], models[0])
    like += f", as for {model}" if model != models[0] else ""
    found = table_5().get((row, model))
    return Estimate(float(found["full_run_gpu_h"]), f"paper, table 5{like}") if found else UNKNOWN
