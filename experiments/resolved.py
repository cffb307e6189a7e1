"""``python -m experiments.resolved method=graft pair=1 scale=paper cluster=h200x4``: a whole configuration in the open, as YAML.

What Hydra composes and the types accept, every default written out, and what follows from it for each run: its name, its training
steps and the fingerprint of its recipe. docs/configs holds the paper's setting so (``make paper-config`` writes it); a test composes
it anew, so that a change to any of its values, wherever it is made, shows as a difference of that file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.config import RunPlan, load_config, resolve
from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.run_record import RunRecord, trains


def steps_of(plan: RunPlan) -> int:
    """Training steps of a run: what the loop makes of its settings and of the number of its training prompts."""
    from experiments.engine import loop_settings

    record = RunRecord(Path(plan.name), {"recipe": plan.recipe})
    return loop_settings(record).steps(plan.recipe["data"]["train"]["items"])


def resolved(overrides: Sequence[str]) -> dict[str, Any]:
    """``config``: the validated sections in plain types; ``runs``: what each run is called, how long it is, its fingerprint."""
    plans, _ = resolve(overrides)
    runs = [
        {
            "name": plan.name,
            "models": list(plan.cell["models"]),
            "steps": steps_of(plan) if trains(plan.recipe) else 0,
            "fingerprint": plan.fingerprint,
        }
        for plan in plans
    ]
    return {"config": load_config(overrides).model_dump(mode="json"), "runs": runs}


def text(overrides: Sequence[str]) -> str:
    """The YAML document with the command that wrote it in its first line."""
    head = f"# Written by: python -m experiments.resolved {' '.join(overrides)}\n"
    return head + yaml.safe_dump(resolved(overrides), sort_keys=False, allow_unicode=True, width=120)


def main(argv: Sequence[str]) -> int:
    try:
        print(text(argv), end="")
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
