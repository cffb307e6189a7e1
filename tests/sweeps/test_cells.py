"""A table's spec to unique runs, and the launcher's promises that need no training."""

from __future__ import annotations

from collections import Counter

import pytest

from experiments.errors import UserError
from sweeps.cells import SPECS, cells, load_spec, unique_runs


def methods_of(*tables: str, pairs: str = "1") -> Counter[tuple[str, str]]:
    """(method, deviations) -> unique runs behind the tables, for the methods that this version has."""
    wanted = [c for t in tables for pair in pairs for c in cells(load_spec(t), scale="cpu", seed=0, pair=pair)]
    runs, lacking = unique_runs(wanted, [])
    available = Counter((plan.cell["method"], str(dict(plan.deviations) or "")) for plan, _ in runs.values())
    assert not {c.method for c in lacking} & {method for method, _ in available}
    assert {c.method for c in wanted} == {method for method, _ in available} | {c.method for c in lacking}
    return available


@pytest.mark.parametrize("table", sorted(p.stem for p in SPECS.glob("*.yaml")))
def test_every_spec_becomes_runs(table: str):
    spec = load_spec(table)
    made = list(cells(spec, scale="cpu", seed=3))
    assert [c.row for c in made] == [row["slug"] for row in spec["rows"]]
    runs, lacking = unique_runs(made, [])
    assert runs
    # A joint run serves both receivers; any other method, also one with a stored peer, has one run for each.
    per_row = Counter()
    for plan, _ in runs.values():
        per_row[plan.cell["method"], str(dict(plan.deviations))] += 1 if len(plan.cell["models"]) > 1 else 1 / 2
    assert set(per_row.values()) == {1}
    assert len(per_row) == len({(c.method, c.overrides) for c in made if c not in lacking})
    for plan, _ in runs.values():
        assert plan.cell["seed"] == (0 if plan.cell["method"] == "base" else 3)


def test_deviations_of_the_specs_are_those_that_the_analysis_looks_for():
    for table in ("table7", "extra_baselines"):
        rows = {row["slug"]: row for row in load_spec(table)["rows"]}
        for cell in cells(load_spec(table), scale="cpu", seed=0):
            if cell.available:
                runs, _ = unique_runs([cell], [])
                assert all(plan.deviations == (rows[cell.row].get("deviations") or {}) for plan, _ in runs.values())


@pytest.mark.slow
def test_tables_share_their_runs():
    together, seven, eight, nine = (
        methods_of(*t) for t in (("table2", "table7", "table8", "table9"), ("table7",), ("table8",), ("table9",))
    )
    two = methods_of("table2")
    # Nothing is counted twice: the union of methods, each as often as in a table of its own.
    assert together == two | seven | eight | nine
    assert together["graft", ""] == 1
    assert together["grpo", ""] == together["base", ""] == 2
    # Table 8 and table 9 need no run that table 2 does not have; table 7 adds the two thresholds.
    assert eight <= two
    assert nine <= two
    assert set(seven) - set(two) == {("graft", "{'method.delta': 0.7}"), ("graft", "{'method.delta': 0.9}")}


@pytest.mark.slow
def test_pairs_share_their_independent_runs():
    methods = methods_of("table2", pairs="123")
    assert (methods["grpo", ""], methods["graft", ""], methods["base", ""]) == (3, 3, 3)


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
