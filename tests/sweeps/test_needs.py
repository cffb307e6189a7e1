"""Runs that learn from others' logs, in the launcher: what is brought along, what waits for what, what is not started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.cluster import ClusterSection
from experiments.config import Options, RunPlan, resolve
from experiments.run_record import RunRecord
from experiments.works import Work, add_runs, levels, works_of
from sweeps.cells import Request
from sweeps.costs import recipe_key
from sweeps.launch import without_donor
from sweeps.local import next_share, shares

LOCAL = ClusterSection(name="local", scheduler="local", threads=1)
APART = SimpleNamespace(stages="apart")


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[RunPlan, Options]]:
    found, lacking = Request("table6", "smoke", pairs=("1",), rows=("graft_stored",)).runs()
    assert lacking == []
    return found


def records(runs: dict[str, tuple[RunPlan, Options]], root: Path) -> list[RunRecord]:
    return [RunRecord.create(root, cell=p.cell, recipe=p.recipe, deviations={}) for p, _ in runs.values()]


def works(runs: dict[str, tuple[RunPlan, Options]], root: Path, cluster: object = LOCAL) -> list[Work]:
    options = next(iter(runs.values()))[1]
    return [w for r in records(runs, root) for w in works_of(r, options, cluster)]  # type: ignore[arg-type]


def methods(found: list[Work]) -> list[str]:
    return [w.record.config["cell"]["method"] for w in found]


def test_donors_that_no_row_asks_for_come_along_before_their_receivers(runs: dict[str, tuple[RunPlan, Options]]) -> None:
    names = [p.cell["method"] for p, _ in runs.values()]
    assert names == ["grpo", "graft_stored", "grpo", "graft_stored"]
    whole, _ = Request("table6", "smoke", pairs=("1",)).runs()
    assert len(whole) == 2 + 2 + 1  # and where the table asks for them, they are the same runs
    assert set(runs) < set(whole)


def test_needs_are_added_once() -> None:
    into: dict[str, tuple[RunPlan, Options]] = {}
    for pair in ("1", "2"):  # smollm3 and octothinker both learn from qwen3
        add_runs(into, *resolve(["method=graft_stored", f"pair={pair}", "scale=smoke"]))
    assert sorted(p.cell["method"] for p, _ in into.values()) == ["graft_stored"] * 4 + ["grpo"] * 3


def test_a_receiver_waits_for_its_donors_training(runs: dict[str, tuple[RunPlan, Options]], tmp_path: Path) -> None:
    made = works(runs, tmp_path)
    assert [methods(level) for level in levels(made)] == [["grpo", "grpo"], ["graft_stored", "graft_stored"]]
    apart = works(runs, tmp_path, APART)
    by_key = {w.key: w for w in apart}
    for w in (w for w in apart if w.stage == "train" and w.record.config["cell"]["method"] == "graft_stored"):
        (donor,) = [by_key[k] for k in w.after if k in by_key]
        assert donor.stage == "train"  # not its evaluation
        assert donor.record.config["cell"]["models"] == [w.record.config["recipe"]["donor"]["model"]]


def test_local_shares_hold_no_run_with_its_donor_and_start_in_order(
    runs: dict[str, tuple[RunPlan, Options]], tmp_path: Path
) -> None:
    dealt = shares(works(runs, tmp_path), 1)
    assert [methods(share) for share in dealt] == [["grpo", "grpo"], ["graft_stored", "graft_stored"]]
    assert next_share(dealt, []) == 0
    busy = SimpleNamespace(batch=SimpleNamespace(keys=tuple(w.key for w in dealt[0])))
    assert next_share(dealt[1:], [busy]) is None  # type: ignore[list-item]
    assert next_share(dealt[1:], []) == 0


def test_a_receiver_whose_donor_failed_is_held_back(runs: dict[str, tuple[RunPlan, Options]], tmp_path: Path) -> None:
    made, known = works(runs, tmp_path), records(runs, tmp_path)
    gone = next(w for w in made if w.record.config["cell"]["method"] == "grpo")
    left = [w for w in made if w is not gone]
    start, held = without_donor(left, known, {})
    assert [donor for _, donor in held] == [gone.record.path.name]
    assert len(start) == 2
    # In a queue it is waited for, and trained it is ready.
    assert without_donor(left, known, {gone.key: SimpleNamespace(in_flight=True)})[1] == []  # type: ignore[dict-item]
    (gone.record.path / "selected.json").write_text("{}")
    assert without_donor(left, known, {})[1] == []


def test_another_seeds_donor_is_no_other_cost() -> None:
    one, other = (resolve(["method=graft_stored", "scale=smoke", "model=qwen3-1.7b", f"seed={k}"])[0][0] for k in (0, 1))
    assert one.recipe["donor"] != other.recipe["donor"]
    assert recipe_key(one.recipe) == recipe_key(other.recipe)
