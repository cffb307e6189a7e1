"""Run records as a source of cells for the claims: tables of pairs and of seeds, costs, and what the text reads off figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.cells import Key
from analysis.collect import open_runs
from analysis.figures import load_spec
from analysis.figures.common import PAPER, FigureData, Point
from analysis.figures.complementarity import MEAN
from analysis.figures.stored import COST
from analysis.records_cells import Records
from analysis.records_figures import compute_saved, least_margin, solved_by_peer

from .conftest import Runs, share, write_spec
from .test_compute import spent
from .test_pairs import DUO, SPREAD

SPECS = Path(__file__).resolve().parents[2] / "paper_tables" / "specs"
A, B, C = "smollm3-3b", "qwen3-1.7b", "octothinker-3b"


def source(runs: Runs, specs: Path, methods: Path, seeds: tuple[int, ...] = (0,)) -> Records:
    return Records(open_runs(runs.root), "cpu", seeds, specs, methods)


def test_a_table_of_pairs_has_cells_of_each_pair(runs: Runs, specs: Path, methods: Path):
    write_spec(specs, "duo", DUO)
    runs.make("graft", share(3))
    runs.make("grpo", share(2), models=(A,), pair=None)
    found = source(runs, specs, methods)
    graft = found.cell(Key("duo", "graft", "average", A, "1"))
    assert (graft.mean, graft.std, graft.n) == (75.0, 0.0, 2)
    # GRPO trains the model alone: one measurement in both pairs of its receiver. GRAFT has no run of pair 3.
    first, third = (found.cell(Key("duo", "grpo_n8", "math500", A, pair)) for pair in ("1", "3"))
    assert (first.mean, first.origin) == (third.mean, third.origin) == (50.0, first.origin)
    assert found.cell(Key("duo", "graft", "average", A, "3")) is None
    assert found.cell(Key("duo", "grpo_n16", "average", A, "1")) is None


def test_a_spread_over_seeds_is_over_those_of_the_spec(runs: Runs, specs: Path, methods: Path):
    write_spec(specs, "spread", SPREAD)
    for seed, k in enumerate((1, 2, 3)):
        runs.make("graft", share(k), cell={"seed": seed})
    cell = source(runs, specs, methods).cell(Key("spread", "graft", "average", B, "1"))
    # Means 25, 50, 75 of three training runs: mean 50, sample std 25.
    assert (cell.mean, cell.std, cell.n, len(cell.runs)) == (50.0, 25.0, 3, 3)
    assert source(runs, specs, methods).cell(Key("spread", "grpo_n8", "average", B, "1")) is None


def test_costs_are_cells_of_each_model_and_of_both(runs: Runs, methods: Path):
    spent(runs.make("graft", share(2)), [{}, {}], {"tiny-smollm3": 1, "tiny-qwen3": 2})
    found = source(runs, SPECS, methods)
    # 4 GPUs for an hour a step, nobody's phases: half to each model.
    assert found.cell(Key("table5", "graft", "best_gpu_h", A, "1")).mean == pytest.approx(2.0)
    assert found.cell(Key("table5", "graft", "full_gpu_h", A, "1")).mean == pytest.approx(4.0)
    both = found.cell(Key("table5", "graft", "best_gpu_h", "both", "1"))
    assert (both.mean, both.counted, len(both.runs)) == (pytest.approx(8.0), True, 1)
    assert found.cell(Key("table5", "graft", "average", B, "1")).mean == 50.0
    assert found.cell(Key("table5", "hacpo", "best_gpu_h", A, "1")) is None
    # Over several seeds a cost has no mean here.
    assert source(runs, SPECS, methods, (0, 1)).cell(Key("table5", "graft", "best_gpu_h", A, "1")) is None


def figure(name: str, points: list[Point]) -> FigureData:
    return FigureData(load_spec(name, SPECS), "cpu", tuple(points), ())


def test_means_of_figure_1():
    points = [Point(MEAN, A, None, 12.5, runs=("x",)), Point(MEAN, B, None, None), Point(MEAN, A, None, 18.7, source=PAPER)]
    found = solved_by_peer(load_spec("figure1", SPECS), figure("figure1", points))
    assert {(k.receiver, k.column): v.mean for k, v in found.items()} == {(A, "solved_by_peer"): 12.5}


def test_what_a_stored_peer_saves():
    points = [
        Point(COST, "graft", f"pair 1: {A}", 8.0, runs=("live",)),
        Point(COST, "graft_stored", f"pair 1: {A}", 2.0, runs=("stored",)),
        Point(COST, "graft", f"pair 1: {B}", 8.0),
    ]
    found = compute_saved(load_spec("figure3b", SPECS), figure("figure3b", points))
    # 1 - 2 / 8 = 75 %; qwen3 has no stored run.
    assert {(k.pair, k.receiver): v.mean for k, v in found.items()} == {("1", A): 75.0}
    assert next(iter(found.values())).runs == ("stored", "live")


def curve(slug: str, values: dict[int, float], pair: str = "1", receiver: str = A) -> list[Point]:
    return [Point(f"pair {pair}: {receiver}", slug, step, y) for step, y in values.items()]


def test_the_least_margin_over_the_best_baseline():
    spec = load_spec("figure4", SPECS)
    ours = next(row.slug for row in spec.rows if row.method == "graft")
    # Steps 5 to 40: a quarter is 10, so step 5 (where GRAFT is behind) does not count. Margins: 60 - 55 = 5, then 58 - 57 = 1.
    points = [
        *curve("grpo_n8", {5: 50, 10: 50, 40: 57}),
        *curve("hacpo", {5: 10, 10: 55, 40: 20}),
        *curve("sgt", {5: 10, 10: 20, 40: 20}),
        *curve(ours, {5: 40, 10: 60, 40: 58}),
        # The other receiver lacks one curve.
        *curve("grpo_n8", {10: 1}, receiver=B),
        *curve(ours, {10: 9}, receiver=B),
    ]
    found = least_margin(spec, figure("figure4", points))
    assert {(k.row, k.receiver, k.pair): v.mean for k, v in found.items()} == {("graft", A, "1"): 1.0}
