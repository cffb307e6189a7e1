"""A table's spec to unique runs, and the launcher's promises that need no training."""

from __future__ import annotations

import pytest

from experiments.errors import UserError
from sweeps.cells import cells, load_spec, unique_runs


def plans_of(**kwargs):
    return unique_runs(list(cells(load_spec("table2"), scale="cpu", seed=0, **kwargs)), [])


def test_table2_stands_on_unique_runs():
    runs, lacking = plans_of()
    available = {plan.cell["method"] for plan, _ in runs.values()}
    assert available == {"base", "grpo", "graft"}
    assert {c.method for c in lacking} & available == set()
    # `full` and `grpo_n8` occur in both parts of the table but are one run each: base x 2, grpo x 2, graft x 1.
    assert len(runs) == 5


def test_pairs_share_their_independent_runs():
    wanted = [c for pair in "123" for c in cells(load_spec("table2"), scale="cpu", seed=0, pair=pair)]
    runs, _ = unique_runs(wanted, [])
    methods = [plan.cell["method"] for plan, _ in runs.values()]
    assert (methods.count("grpo"), methods.count("graft"), methods.count("base")) == (3, 3, 3)


def test_deviations_of_a_row_reach_the_recipe():
    spec = {
        "pair": "1",
        "rows": [{"slug": "delta_0.7", "method": "graft", "deviations": {"method.delta": 0.7, "training.beta2": 0.9}}],
    }
    runs, _ = unique_runs(list(cells(spec, scale="cpu", seed=0)), [])
    ((plan, _),) = runs.values()
    assert plan.deviations == {"method.delta": 0.7, "training.beta2": 0.9}


def test_unknown_table_lists_the_known():
    with pytest.raises(UserError, match="table2"):
        load_spec("table99")
