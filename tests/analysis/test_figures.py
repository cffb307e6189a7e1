"""The data of every figure, by hand: from small run records and from the paper's printed numbers; what is missing is a point, too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis import figures
from analysis.collect import open_runs
from analysis.figures.common import HERE, PAPER, FigureData, Point, not_drawn
from analysis.figures.complementarity import MEAN, PANEL
from analysis.figures.exchange_dynamics import histogram
from analysis.spec import read_spec
from experiments.run_record import RunRecord, UserError

from .conftest import SLOTS, Runs, share
from .test_curves import validate

PROJECT = Path(__file__).resolve().parents[2]
SPECS, METHODS = PROJECT / "paper_tables" / "specs", PROJECT / "sweeps" / "conf" / "method"
REPORTED = PROJECT / "paper_tables" / "reported"
SMOLLM, QWEN = SLOTS
NAMES = ["figure1", "figure3a", "figure3b", "figure4", "figure5", "figure_ablation", "figure_exchange", "figure_clipping"]


def measured(name: str, runs: Runs, specs: Path = SPECS) -> FigureData:
    return figures.build(figures.load_spec(name, specs), figures.Query(open_runs(runs.root), "cpu", 0, METHODS))


def printed(name: str) -> FigureData:
    return figures.build(figures.load_spec(name, SPECS), None)


def values(data: FigureData, source: str = HERE) -> dict[tuple[Any, ...], tuple[float | None, ...]]:
    return {(p.panel, p.series, p.x): (p.y, p.low, p.high) for p in data.points if p.source == source}


def by_series(data: FigureData) -> dict[str, Point]:
    return {p.series: p for p in data.points}


def lines(file: str) -> list[dict[str, str]]:
    with open(REPORTED / file, encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


def alone(runs: Runs, receiver: str) -> RunRecord:
    return runs.make("grpo", share(1), models=(receiver,), pair=None)


# --- figure 1 ---


def logs(
    runs: Runs, smollm: list[Mapping[str, list[float]]], qwen: list[Mapping[str, list[float]]]
) -> tuple[RunRecord, RunRecord]:
    a, b = alone(runs, SMOLLM), alone(runs, QWEN)
    runs.trajectories(a, SLOTS[SMOLLM], list(smollm))
    runs.trajectories(b, SLOTS[QWEN], list(qwen))
    return a, b


def groups(*solved: str) -> dict[str, list[float]]:
    return {p: [0.0, 1.0] if p in solved else [0.0, 0.0] for p in ("p0", "p1", "p2", "p3")}


def test_complementarity_by_hand(runs: Runs):
    # step 1: smollm fails p1 p2 p3, of which qwen solves p1 p2: 2/3; qwen fails p0 p3, of which smollm solves p0: 1/2
    # step 2: smollm fails nothing: no share; qwen fails p1 p2 p3, smollm solves all: 3/3
    # step 3: nobody solves anything: 0/4 both ways. Means: (66.67 + 0) / 2 and (50 + 100 + 0) / 3
    a, b = logs(runs, [groups("p0"), groups("p0", "p1", "p2", "p3"), groups()], [groups("p1", "p2"), groups("p0"), groups()])
    data = measured("figure1", runs)
    got = values(data)
    assert got[PANEL, SMOLLM, 1][0] == pytest.approx(200 / 3)
    assert [got[PANEL, SMOLLM, k][0] for k in (2, 3)] == [None, 0.0]
    assert [got[PANEL, QWEN, k][0] for k in (1, 2, 3)] == [50.0, 100.0, 0.0]
    assert got[MEAN, SMOLLM, None][0] == pytest.approx(100 / 3)
    assert got[MEAN, QWEN, None][0] == 50.0
    assert {v[0] for v in values(data, PAPER).values()} == {18.7, 47.9}
    assert {p.runs for p in data.points if p.source == HERE} == {(a.path.name, b.path.name)}
    assert [p.todo for p in data.points if p.y is None] == ["no all-fail prompt in this step"]
    assert "smollm3-3b: 2 of 7 all-fail prompts solved by the peer, 2 of 3 steps." in data.notes


def test_complementarity_needs_the_same_prompts_in_every_step(runs: Runs):
    other = {("q9" if p == "p3" else p): r for p, r in groups("p0").items()}
    logs(runs, [groups("p0"), groups()], [groups("p0"), other])
    with pytest.raises(UserError, match=r"do not hold the same prompts in step 2: 2 are in one of them only, e.g. p3, q9"):
        measured("figure1", runs)


@pytest.mark.parametrize(
    ("smollm", "message"),
    [
        ([groups()], "different numbers of steps"),
        ([groups(), {"p0": [0.5, 1.0]}], "reward 0.5"),
    ],
)
def test_complementarity_refuses_odd_logs(runs: Runs, smollm: list, message: str):
    logs(runs, smollm, [groups(), groups()])
    with pytest.raises(UserError, match=message):
        measured("figure1", runs)


def test_complementarity_refuses_a_log_with_a_gap_or_a_torn_part(runs: Runs):
    a, _ = logs(runs, [groups(), groups()], [groups(), groups()])
    first = a.path / "trajectories" / "step-000001.parquet"
    first.write_bytes(first.read_bytes()[:40])
    with pytest.raises(UserError, match=r"step-000001.parquet cannot be read"):
        measured("figure1", runs)
    first.unlink()
    with pytest.raises(UserError, match=r"step 1 is missing before step-000002\.parquet"):
        measured("figure1", runs)


def test_complementarity_of_one_run_names_the_other(runs: Runs):
    runs.trajectories(alone(runs, SMOLLM), SLOTS[SMOLLM], [groups()])
    data = measured("figure1", runs)
    assert all(p.y is None for p in data.points if p.source == HERE)
    assert {p.todo for p in data.points if p.source == HERE} == {
        "python -m experiments.train method=grpo pair=1 seed=0 scale=cpu"
    }
    assert [(t.row, t.receivers) for t in data.missing] == [("grpo_n8", (QWEN,))]


# --- figures 3a, 3b, 5 ---


def uneven(model: str, benchmark: str, run: int, item: int, sample: int) -> bool:
    """tiny-smollm3: averages 37.5 and 50 % in the two evaluation runs (test_tables has the sum); tiny-qwen3: 75 and 75 %."""
    return sample < (3 if model == "tiny-qwen3" else 1 if benchmark == "arith-large" else 2 + run)


@pytest.fixture
def costly(runs: Runs) -> Runs:
    """GRPO on both models (900 s a step on 4 GPUs: 1 hour) and GRAFT (1,800 s: 2 hours; its models own 600 and 1,000 s of them)."""
    for receiver, selected in ((SMOLLM, 2), (QWEN, 3)):
        record = alone(runs, receiver)
        runs.costs(record, 3, {f"{SLOTS[receiver]}/update": 800.0, "exchange": 100.0}, {SLOTS[receiver]: selected})
    graft = runs.make("graft", uneven)
    phases = {"tiny-smollm3/update": 600.0, "tiny-qwen3/update": 1000.0, "exchange": 200.0}
    runs.costs(graft, 3, phases, {"tiny-smollm3": 1, "tiny-qwen3": 3})
    return runs


def test_pair_mean_against_cost_by_hand(costly: Runs):
    points = by_series(measured("figure3a", costly))
    grpo, graft = points["grpo_n8"], points["graft"]
    # 2 steps of one run and 3 of the other; both models everywhere 1 of 4
    assert (grpo.x, grpo.y, grpo.low, grpo.high) == (5.0, 25.0, 25.0, 25.0)
    # up to the later checkpoint, step 3; ((37.5 + 50) / 2 + 75) / 2. Drawing 2 runs of 2: both the lower one with chance 1/4, both
    # the higher with 1/4: the 2.5 and 97.5 % quantiles are (37.5 + 75) / 2 and (50 + 75) / 2
    assert (graft.x, graft.y, graft.low, graft.high) == (6.0, 59.375, 56.25, 62.5)
    assert len(graft.runs) == 1
    assert len(grpo.runs) == 2


def test_stored_peers_cost_what_their_own_runs_cost(costly: Runs):
    # One run per receiver, of a pair as the donor is, with one model: costs add up (the paper: 11.1 + 12.1 = 23.2), nothing is shared.
    for receiver, selected in ((SMOLLM, 1), (QWEN, 3)):
        record = costly.make("graft_stored", share(2), models=(receiver,))
        costly.costs(record, 3, {f"{SLOTS[receiver]}/update": 900.0}, {SLOTS[receiver]: selected})
    stored = by_series(measured("figure3a", costly))["graft_stored"]
    assert (stored.x, stored.y) == (4.0, 50.0)
    charged = {p.panel: p.x for p in measured("figure5", costly).points if p.series == "graft_stored"}
    assert charged == {"pair 1: smollm3-3b": 1.0, "pair 1: qwen3-1.7b": 3.0}
    got = values(measured("figure3b", costly))
    assert [got["device-hours", "graft_stored", f"pair 1: {x}"][0] for x in (SMOLLM, QWEN)] == [1.0, 3.0]
    assert got["gain over GRPO", "graft_stored", f"pair 1: {QWEN}"] == (25.0, 25.0, 25.0)


def test_conservative_charge_by_hand(costly: Runs):
    got = {(p.panel, p.series): (p.x, p.y, p.low, p.high) for p in measured("figure5", costly).points if p.y is not None}
    assert got == {
        ("pair 1: smollm3-3b", "grpo_n8"): (2.0, 25.0, 25.0, 25.0),
        ("pair 1: smollm3-3b", "graft"): (2.0, 43.75, 37.5, 50.0),  # the whole run up to its own step 1
        ("pair 1: qwen3-1.7b", "grpo_n8"): (3.0, 25.0, 25.0, 25.0),
        ("pair 1: qwen3-1.7b", "graft"): (6.0, 75.0, 75.0, 75.0),
    }


def test_stored_gain_by_hand_is_visibly_incomplete(costly: Runs):
    data = measured("figure3b", costly)
    got = values(data)
    assert len(got) == 6 * 2 * 2
    place = "pair 1: smollm3-3b"
    assert got["gain over GRPO", "graft", place] == (18.75, 12.5, 25.0)
    # its own 600 s and half of the 200 s that no model owns, of step 1 on 4 GPUs
    assert got["device-hours", "graft", place][0] == pytest.approx(4 * 700 / 3600)
    assert got["device-hours", "graft", "pair 1: qwen3-1.7b"][0] == pytest.approx(3 * 4 * 1100 / 3600)
    assert got["gain over GRPO", "graft_stored", place] == (None, None, None)
    assert all(p.todo for p in data.points if p.y is None)
    # one of the benchmarks has a single item: items cannot show noise, and the text does not say that they do
    assert any("noise of evaluation runs; training runs and items held fixed" in line for line in data.foot)
    assert data.unit == "GPU-hours"


def test_missing_runs_stay_in_csv_and_picture(costly: Runs):
    data = measured("figure3a", costly)
    rows = {r["series"]: r for r in csv.DictReader(io.StringIO(figures.to_csv(data)))}
    assert rows["grpo_n16"] | {"runs": ""} == {
        "panel": "pair mean", "series": "grpo_n16", "x": "", "y": "", "low": "", "high": "", "source": "runs", "runs": "",
        "todo": "python -m experiments.train method=grpo pair=1 seed=0 scale=cpu method.n=16",
    }  # fmt: skip
    expected = "Without a point (no finished run): GRPO, n = 16; GRPO, n = 32; GRPO, dynamic; HACPO; SGT; GRAFT, stored."
    assert not_drawn(data) == (expected,)


def test_the_picture_names_what_is_missing_in_part(costly: Runs):
    parts = "(gain over GRPO in part, device-hours in part)"
    (line,) = not_drawn(measured("figure3b", costly))
    assert line == f"Without a point (no finished run): GRAFT, stored peer; GRAFT, live peer {parts}."
    assert not_drawn(printed("figure3b")) == (
        "Without a point (not printed): GRAFT, live peer (device-hours in part); GRAFT, stored peer (device-hours in part).",
    )


def test_an_incomplete_evaluation_is_no_point(costly: Runs):
    record = next(r for r in open_runs(costly.root) if r.config["cell"]["method"] == "graft")
    costly.write(record, "tiny-qwen3", "arith-large", 1, costly.read(record, "tiny-qwen3", "arith-large", 1)[:-1])
    point = by_series(measured("figure3a", costly))["graft"]
    assert (point.x, point.y) == (None, None)
    assert point.todo.endswith(f"python -m experiments.evaluate run={record.path}")


GOLDEN = """\
panel,series,x,y,low,high,source,runs,todo
pair mean,grpo_n8,5.0,25.0,25.0,25.0,runs,<grpo-tiny-smollm3> <grpo-tiny-qwen3>,
pair mean,grpo_n16,,,,,runs,,python -m experiments.train method=grpo pair=1 seed=0 scale=cpu method.n=16
pair mean,grpo_n32,,,,,runs,,python -m experiments.train method=grpo pair=1 seed=0 scale=cpu method.n=32
pair mean,grpo_n8_dynamic_sampling,,,,,runs,,python -m experiments.train method=grpo_dynamic pair=1 seed=0 scale=cpu
pair mean,hacpo,,,,,runs,,python -m experiments.train method=hacpo pair=1 seed=0 scale=cpu
pair mean,sgt,,,,,runs,,python -m experiments.train method=sgt pair=1 seed=0 scale=cpu
pair mean,graft,6.0,59.375,56.25,62.5,runs,<graft-1>,
"""


def test_csv_golden(costly: Runs):
    text = figures.to_csv(measured("figure3a", costly))
    for record in open_runs(costly.root):
        name = record.path.name
        text = text.replace(name, f"<{name.split('-cpu-')[0]}>")
    # The last line is the stored row: whether this version has the method is not the figure's matter.
    assert text.startswith(GOLDEN)
    assert text.splitlines()[-1].startswith("pair mean,graft_stored,,,,,runs,,")


# --- figure 4 ---


def test_curves_star_the_selected_checkpoint(runs: Runs):
    record = runs.make("graft", share(1))
    validate(record, "tiny-smollm3", {5: 0.25, 10: 0.5, 15: 0.375})
    validate(record, "tiny-qwen3", {5: 0.125, 10: 0.75, 15: 0.5})
    # validate() writes a row of another model, too; a run's file has each model once per step
    runs.costs(record, 15, {}, {"tiny-smollm3": 10, "tiny-qwen3": 12})
    data = measured("figure4", runs)
    panel = "pair 1: smollm3-3b"
    assert [(p.x, p.y) for p in data.of(panel, "full")] == [(5, 25.0), (10, 50.0), (15, 37.5)]
    assert [(p.x, p.y) for p in data.of(f"{panel} (selected)", "full")] == [(10, 50.0)]
    # a step without validation has no place on the curve, and the CSV says so
    star = next(p for p in data.points if p.panel == "pair 1: qwen3-1.7b (selected)")
    assert (star.x, star.y, star.todo) == (12, None, "step 12, the selected one, has no validation average")
    assert sum(p.y is None and p.x is None for p in data.points) == 6 * 4 - 2


def test_curves_have_no_printed_numbers():
    with pytest.raises(UserError, match="the paper prints no number of this figure"):
        printed("figure4")


# --- our own ---


def test_ablation_by_hand(runs: Runs):
    runs.make("graft", share(1))
    runs.make("wo_floor", uneven)
    data = measured("figure_ablation", runs)
    got = values(data)
    assert got["pair 1: smollm3-3b", "wo_floor", "wo_floor"] == (18.75, 12.5, 25.0)
    assert got["pair 1: qwen3-1.7b", "wo_floor", "wo_floor"] == (50.0, 50.0, 50.0)
    assert got["pair 1: smollm3-3b", "sgt", "sgt"] == (None, None, None)
    assert values(data, PAPER)["pair 1: smollm3-3b", "wo_floor", "wo_floor"][0] == pytest.approx(-1.89)


def row(source: str, receiver: str, counts: tuple[int, int, int, int], weight: float | None) -> dict[str, Any]:
    keys = ("candidates", "selected", "offered", "admitted")
    return {"source": source, "receiver": receiver, "weight_mean": weight} | dict(zip(keys, counts, strict=True))


def test_exchange_by_hand(runs: Runs):
    record = runs.make("graft", share(1))
    a, b = "tiny-smollm3", "tiny-qwen3"
    steps = [
        [row(a, b, (3, 2, 16, 9), 0.91), row(b, a, (1, 1, 8, 8), 1.0)],
        [row(a, b, (0, 0, 0, 0), None), row(b, a, (2, 0, 0, 0), None)],
    ]
    runs.metrics(record, [{}, {}], steps)
    data = measured("figure_exchange", runs)
    got = values(data)
    panel = "smollm3-3b -> qwen3-1.7b"
    assert [got[panel, s, 1][0] for s in ("candidates", "selected", "offered", "admitted", "weight_mean")] == [3, 2, 16, 9, 0.91]
    assert [got[panel, s, 2][0] for s in ("candidates", "weight_mean")] == [0, None]
    assert got["qwen3-1.7b -> smollm3-3b", "candidates", 2][0] == 2
    assert got[panel, "histogram of weight_mean", 0.9][0] == 1
    runs.metrics(record, [{}], [[row(a, b, (0, 0, 0, 0), None)]])
    with pytest.raises(UserError, match=r"metrics.jsonl:1: 0 exchange rows tiny-qwen3 -> tiny-smollm3"):
        measured("figure_exchange", runs)


def test_histogram_bins():
    # width 0.02 from a multiple of it; 0.90 opens a bin, 1 closes the last; a weight of 1 alone is in [0.98, 1]
    got = histogram([0.9, 0.91, 0.9399999, 1.0])
    assert [round(low, 2) for low, _ in got] == [0.9, 0.92, 0.94, 0.96, 0.98]
    assert [n for _, n in got] == [2, 1, 0, 0, 1]
    assert histogram([]) == []


def test_clipping_by_hand(runs: Runs):
    record = runs.make("graft", share(1))
    # own: (1 + 3) of (100 + 100); grafted of qwen's text on smollm: 5 of 50; qwen: no peer token at all in step 2
    runs.metrics(record, [
        {"tiny-smollm3": (100, 1, 50, 5), "tiny-qwen3": (10, 0, 20, 0)},
        {"tiny-smollm3": (100, 3, 0, 0), "tiny-qwen3": (10, 0, 20, 0)},
    ])  # fmt: skip
    data = measured("figure_clipping", runs)
    got = values(data)
    assert got[SMOLLM, "self_generated", "peer_last"][0] == 2.0
    assert got[SMOLLM, "grafted_peer", "peer_last"][0] == 10.0
    assert got[QWEN, "grafted_peer", "peer_last"][0] == 0.0
    assert got["steps without a clipped peer token", "both models", "peer_last"][0] == 50.0
    assert got[SMOLLM, "self_generated", "peer_first"][0] is None


# --- the paper's numbers ---


def test_printed_pair_means_and_costs():
    table = lines("table5_compute.csv")
    for slug, point in by_series(printed("figure3a")).items():
        a, b = [r for r in table if r["method"] == slug]
        assert point.x == float(a["both_best_ckpt_gpu_h"])
        assert point.y == pytest.approx((float(a["avg_mean"]) + float(b["avg_mean"])) / 2)
    graft = by_series(printed("figure3a"))["graft"]
    # means of 5 runs with stds 0.67 and 0.23, halved and added in squares; t quantile of 4 degrees of freedom
    half = 2.776 * ((0.67**2 + 0.23**2) / 4 / 5) ** 0.5
    assert (graft.low, graft.high) == (pytest.approx(35.25 - half), pytest.approx(35.25 + half))


def test_printed_charges():
    table = {(r["model"], r["method"]): r for r in lines("table5_compute.csv")}
    points = {(p.panel.removeprefix("pair 1: "), p.series): p for p in printed("figure5").points}
    assert points.keys() == table.keys()
    for key, point in points.items():
        if key[1] in ("hacpo", "sgt"):
            assert (point.x, point.y, point.todo) == (None, None, "not printed in the paper")
        elif key[1] == "graft":
            assert point.x == {SMOLLM: 40.9, QWEN: 39.4}[key[0]]
        else:
            assert point.x == float(table[key]["best_ckpt_gpu_h"])
            assert point.y == float(table[key]["avg_mean"])


def test_printed_gains_are_the_printed_deltas():
    got = values(printed("figure3b"), PAPER)
    deltas = [r for r in lines("table6_stored.csv") if r["benchmark"] == "avg" and r["delta"]]
    assert len(deltas) == 12
    for r in deltas:
        gain = got["gain over GRPO", r["method"], f"pair {r['pair']}: {r['updated_policy']}"]
        assert gain[0] == pytest.approx(float(r["delta"]))
    hours = {key[1:]: v[0] for key, v in got.items() if key[0] == "device-hours"}
    assert {v for v in hours.values() if v is not None} == {25.3, 11.1, 15.0, 12.1}
    assert sum(v is None for v in hours.values()) == 8


def test_printed_ablation_deltas():
    got = values(printed("figure_ablation"), PAPER)
    table = [r for r in lines("table2_ablations.csv") if r["delta"]]
    for r in table:
        assert got[f"pair 1: {r['receiver']}", r["variant"], r["variant"]][0] == pytest.approx(float(r["delta"]))
    assert {key[1] for key in got} == {r["variant"] for r in table}


def test_printed_clipping():
    got = values(printed("figure_clipping"), PAPER)
    table = lines("table9_clipping.csv")
    assert len(got) == len(table)
    for r in table:
        zero = r["quantity"] != "clipped_token_fraction"
        place = ("steps without a clipped peer token", "both models") if zero else (r["receiver"], r["update"])
        assert got[*place, r["peer_position"]][0] == float(r["value"])


# --- specs ---


@pytest.mark.parametrize(
    ("figure", "table"),
    [("figure3a", "table5"), ("figure5", "table5"), ("figure_ablation", "table2"), ("figure_clipping", "table9")],
)
def test_figures_have_the_rows_of_their_table(figure: str, table: str):
    def cells(name: str) -> list[tuple]:
        rows = [r for r in read_spec(name, SPECS)[1]["rows"] if not r.get("optional")]
        return [(r["slug"], r["method"], r.get("deviations") or {}, r.get("group") or "") for r in rows]

    assert cells(figure) == cells(table)


def test_spec_errors(tmp_path: Path):
    good = yaml.safe_load((SPECS / "figure1.yaml").read_text(encoding="utf-8"))

    def load(**changed: Any) -> None:
        (tmp_path / "f.yaml").write_text(yaml.safe_dump({k: v for k, v in (good | changed).items() if v is not None}))
        figures.load_spec("f", tmp_path)

    load()
    for changed, message in (
        ({"pair": None}, "give either pair"),
        ({"pair": None, "receivers": None, "pairs": ["1"]}, "pairs map each pair to its two receivers"),
        ({"receivers": [SMOLLM]}, "pair 1 needs two different receivers"),
        ({"reference": "nobody"}, "'nobody' is not among the rows"),
        ({"colour": "red"}, "unknown keys"),
        ({"rows": [good["rows"][0] | {"group": "g"}]}, "have a group that the spec does not name"),
    ):
        with pytest.raises(UserError, match=message):
            load(**changed)


def test_clipping_figure_must_have_the_tables_rows(tmp_path: Path, runs: Runs):
    folder = tmp_path / "tables" / "specs"
    folder.mkdir(parents=True)
    (folder.parent / "reported").symlink_to(REPORTED)
    (folder / "table9.yaml").write_text((SPECS / "table9.yaml").read_text(encoding="utf-8"))
    spec = yaml.safe_load((SPECS / "figure_clipping.yaml").read_text(encoding="utf-8"))
    (folder / "figure_clipping.yaml").write_text(json.dumps(spec | {"rows": spec["rows"][:2]}))
    with pytest.raises(UserError, match="do not have the same rows"):
        measured("figure_clipping", runs, folder)
