"""Rows of a spec that stand for several."""

from __future__ import annotations

import pytest

from experiments.compose import override
from experiments.config import load_config, resolve
from experiments.errors import UserError
from experiments.rows import expand
from sweeps.cells import cells, unique_runs


def test_nest_gives_every_combination_and_zip_goes_side_by_side():
    row = {
        "slug": "d{method.delta}_n{method.n}_m{method.minibatches}",
        "label": "delta {method.delta} {kept}",
        "method": "graft",
        "deviations": {"training.beta2": 0.9},
        "nest": {"method.delta": [0.7, 0.9]},
        "zip": {"method.n": [4, 16], "method.minibatches": [2, 8]},
    }
    made = expand([row], "spec")
    assert [r["slug"] for r in made] == ["d0.7_n4_m2", "d0.7_n16_m8", "d0.9_n4_m2", "d0.9_n16_m8"]
    assert made[1]["label"] == "delta 0.7 {kept}"
    assert made[1]["deviations"] == {"training.beta2": 0.9, "method.delta": 0.7, "method.n": 16, "method.minibatches": 8}
    assert not {"nest", "zip"} & made[1].keys()


def test_rows_without_a_sweep_and_what_is_no_row_stay():
    assert expand([{"slug": "a"}, "odd"], "spec") == [{"slug": "a"}, "odd"]


VALUES = [
    "a,b",
    "k=v",
    "{x: 1}",
    "two words",
    "über ≥ √2",
    "it's",
    'say "so"',
    "back\\slash",
    "[1,2]",
    "${not.this}",
    "#no",
    "100%",
]


def test_every_value_survives_the_way_into_the_recipe():
    rows = expand([{"slug": "s{data.prompt_suffix}", "method": "grpo", "nest": {"data.prompt_suffix": VALUES}}], "spec")
    assert [r["slug"] for r in rows] == [f"s{v}" for v in VALUES]
    for cell, value in zip(cells({"pair": "1", "rows": rows}, scale="smoke", seed=0), VALUES, strict=True):
        runs, _ = unique_runs([cell], [])
        assert {plan.recipe["data"]["prompt_suffix"] for plan, _ in runs.values()} == {value}
        assert {plan.deviations["data.prompt_suffix"] for plan, _ in runs.values()} == {value}


def test_a_list_is_one_value():
    rows = [{"slug": "e", "method": "grpo", "deviations": {"evaluation.seeds": [7, 8, 9]}}]
    (cell,) = cells({"pair": "1", "rows": rows}, scale="smoke", seed=0)
    plans, _ = resolve(cell.overrides)
    assert [p.recipe["evaluation"]["seeds"] for p in plans] == [[7, 8, 9]] * 2


def test_values_inside_lists_and_mappings_survive_too():
    given = override("cluster.setup", VALUES)
    assert list(load_config(["cluster=slurm", given]).cluster.setup) == VALUES
    named = {f"V{k}": v for k, v in enumerate(VALUES)}
    assert load_config(["cluster=slurm", "++" + override("cluster.environment", named)]).cluster.environment == named


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"slug": "a", "nest": {"method.n": [1, 2]}}, "need different slugs; .* such as {method.n}"),
        ({"slug": "{a}{b}", "zip": {"a": [1, 2], "b": [1]}}, "a has 2, b has 1"),
        ({"slug": "{a}", "nest": {"a": [1]}, "deviations": {"a": 2}}, "a is given twice"),
        ({"slug": "{a}", "nest": {"a": [1]}, "zip": {"a": [2]}}, "a is given twice"),
        ({"slug": "{a}", "nest": {"a": 3}}, "nest maps keys to lists"),
        ({"slug": "{a}", "nest": {"a": []}}, "nest maps keys to lists"),
    ],
)
def test_what_cannot_be_written_out_is_said(row: dict, message: str):
    with pytest.raises(UserError, match=message):
        expand([row], "spec")
