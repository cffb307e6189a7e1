"""What runs cost: the ledger of a finished run of the same recipe first, then the paper's table 5, and the budget that rests on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.errors import UserError
from experiments.files import write_json
from experiments.paper_costs import UNKNOWN, Estimate, from_paper
from sweeps import plan
from sweeps.costs import estimate, known_costs
from sweeps.plan import Line, require_budget
from sweeps.survey import Standing
from tests.sweeps.made import made_record, recipe

SMOL, QWEN, OCTO = "smollm3-3b", "qwen3-1.7b", "octothinker-3b"

# GPU-hours as table 5 prints them: full_run_gpu_h of one model, both_full_run_gpu_h of a pair.
PAPER = {
    ("graft", (SMOL, QWEN), 8): (43.3, "paper, table 5"),
    ("graft", (SMOL, OCTO), 8): (43.3, "paper, table 5, as for pair 1"),
    ("wo_floor", (SMOL, QWEN), 8): (43.3, "paper, table 5, like graft"),
    ("hacpo", (SMOL, QWEN), 8): (47.1, "paper, table 5"),
    ("sgt", (SMOL, QWEN), 8): (53.1, "paper, table 5"),
    ("grpo", (SMOL,), 8): (17.4, "paper, table 5"),
    ("grpo", (QWEN,), 8): (12.5, "paper, table 5"),
    ("grpo", (SMOL,), 16): (34.8, "paper, table 5"),
    ("grpo", (SMOL,), 32): (99.5, "paper, table 5"),
    ("grpo", (QWEN,), 32): (45.6, "paper, table 5"),
    ("grpo", (OCTO,), 8): (17.4, "paper, table 5, as for smollm3-3b"),
    ("grpo_dynamic", (QWEN,), 8): (27.4, "paper, table 5"),
    ("gspo", (QWEN,), 8): (12.5, "paper, table 5, like grpo_n8"),
}


@pytest.mark.parametrize("case", PAPER, ids=str)
def test_table_5(case: tuple[str, tuple[str, ...], int]) -> None:
    method, models, n = case
    assert from_paper(recipe(method, models, n=n)) == Estimate(*PAPER[case])


def test_a_number_of_responses_that_the_paper_did_not_run_is_unknown() -> None:
    assert from_paper(recipe("grpo", (QWEN,), n=64)) == UNKNOWN


def cell(scale: str) -> dict[str, Any]:
    return {"scale": scale}


def test_only_training_at_paper_scale_is_charged_by_the_paper() -> None:
    assert estimate(cell("paper"), recipe("grpo", (QWEN,)), {}).hours == 12.5
    assert estimate(cell("cpu"), recipe("grpo", (QWEN,)), {}) == UNKNOWN
    assert estimate(cell("paper"), recipe("base", (QWEN,)), {}) == UNKNOWN


def test_a_finished_run_of_another_seed_is_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, open_ = made_record(tmp_path, seed=1), made_record(tmp_path, seed=2)
    assert known_costs([done, open_]) == {}
    write_json(done.path / "done.json", {"fingerprint": done.config["fingerprint"]})
    monkeypatch.setattr("sweeps.costs.ledger_hours", lambda record: 2.5)
    known = known_costs([done, open_])
    assert estimate(cell("paper"), recipe(seed=3), known) == Estimate(2.5, f"ledger of {done.path.name}")
    assert estimate(cell("cpu"), recipe(seed=3, n=16), known) == UNKNOWN


def line(state: str, hours: float | None, *, trains: bool = True) -> Line:
    return Line(Standing(f"{state}-run", state, state), 4, Estimate(hours, "x"), "", trains)


def test_the_budget_counts_what_is_to_be_started() -> None:
    lines = [line("done", 100), line("running", 100), line("queued", 100), line("missing", 43.3), line("interrupted", 12.5)]
    require_budget(lines, 55.8)  # 43.3 + 12.5
    with pytest.raises(UserError, match=r"2 runs .* 55\.8 device-hours, over the budget of 55\.7"):
        require_budget(lines, 55.7)


def test_no_budget_can_hold_for_a_training_of_unknown_cost() -> None:
    require_budget([line("missing", 1), line("missing", None, trains=False), line("done", None)], 1)
    with pytest.raises(UserError, match="what 1 of 2 runs cost"):
        require_budget([line("missing", 1), line("missing", None)], 1000)


def test_the_plan_in_words() -> None:
    lines = [line("missing", 43.3), line("missing", None), line("done", 5)]
    from experiments.config import load_config

    cluster = load_config(["cluster=slurm"]).cluster
    assert plan.totals(lines, cluster)[:2] == [
        "3 runs: 1 done, 2 missing",
        "still to spend: 43.3 GPU-hours by estimate (without 1 runs whose cost nobody knows yet)",
    ]
