"""Table 5: scores beside device-hours, by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.collect import open_runs
from analysis.compute import from_reported, from_runs, load_spec, to_csv, to_page
from experiments.run_record import RunRecord, UserError
from tests.analysis.conftest import Runs, share

PROJECT = Path(__file__).resolve().parents[2]
SPECS = PROJECT / "paper_tables" / "specs"
METHODS = PROJECT / "sweeps" / "conf" / "method"
SMOLLM, QWEN = "smollm3-3b", "qwen3-1.7b"


def spent(record: RunRecord, seconds: list[dict[str, float]], selected: dict[str, int], gpus: int = 4) -> None:
    """Steps of 3,600 s of wall-clock time each on ``gpus`` GPUs, so that a step is ``gpus`` GPU-hours without what is apart."""
    attempt = record.path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "start.json").write_text("{}")
    (attempt / "devices.json").write_text(json.dumps({"kind": "gpu", "count": gpus}))
    rows = [{"step": k, "wall": 3600.0, "seconds": s, "tokens": {}} for k, s in enumerate(seconds, 1)]
    (attempt / "steps.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (record.path / "selected.json").write_text(json.dumps({m: {"step": s} for m, s in selected.items()}))


@pytest.fixture
def table(runs: Runs):
    joint = runs.make("graft", share(2))
    # tiny-smollm3 owns 1,800 s of each step, tiny-qwen3 900 s, nobody 900 s; step 3 has 600 s of validation more, taken from nobody.
    own = {"tiny-smollm3/update": 1800.0, "tiny-qwen3/update": 900.0}
    spent(joint, [own, own, own | {"validation": 600.0}], {"tiny-smollm3": 3, "tiny-qwen3": 2})
    alone = runs.make("grpo", share(1), models=(SMOLLM,), pair=None)
    spent(alone, [{}, {"checkpoint": 1800.0}], {"tiny-smollm3": 1})
    other = runs.make("grpo", share(3), models=(QWEN,), pair=None)
    spent(other, [{}, {}, {}], {"tiny-qwen3": 3})
    return from_runs(load_spec("table5", SPECS), open_runs(runs.root), scale="cpu", seed=0, methods=METHODS)


def test_a_joint_run_costs_its_shares_and_its_later_checkpoint(table):
    smollm, qwen = table.costs["graft", SMOLLM], table.costs["graft", QWEN]
    # smollm3: (1800 + 450) s of steps 1 and 2, 1800 + 150 of step 3, x 4 GPUs: 2.5, 2.5 and 2.1667 GPU-hours.
    assert smollm.hours["best"] == smollm.hours["full"] == pytest.approx(2.5 + 2.5 + 1950 / 900)
    # qwen3: 900 + 450 s a step: 1.5 GPU-hours each, then 900 + 150 s; selected at step 2.
    assert qwen.hours["best"] == pytest.approx(1.5 * 2)
    assert qwen.hours["full"] == pytest.approx(1.5 * 2 + 1050 / 900)
    # Both: the joint run up to step 3 = 4 + 4 + 4 x 3000 / 3600.
    for cost in (smollm, qwen):
        assert cost.hours["both_best"] == cost.hours["both_full"] == pytest.approx(8 + 10 / 3)
        assert cost.unit == "GPU-hours"
    assert smollm.hours["conservative"] == pytest.approx(8 + 10 / 3)
    assert qwen.hours["conservative"] == pytest.approx(8.0)
    # share(2): two of four samples are correct everywhere.
    assert (smollm.mean, smollm.std) == (50.0, 0.0)


def test_independent_runs_add_up(table):
    smollm, qwen = table.costs["grpo_n8", SMOLLM], table.costs["grpo_n8", QWEN]
    assert (smollm.hours["best"], smollm.hours["full"]) == (pytest.approx(4.0), pytest.approx(4 + 2))  # half of step 2 is apart
    assert (qwen.hours["best"], qwen.hours["full"]) == (pytest.approx(12.0), pytest.approx(12.0))
    for cost in (smollm, qwen):
        assert (cost.hours["both_best"], cost.hours["both_full"]) == (pytest.approx(16.0), pytest.approx(18.0))
    assert (smollm.mean, qwen.mean) == (25.0, 75.0)


def test_half_a_pair_has_no_sum(runs: Runs):
    spent(runs.make("grpo", share(1), models=(SMOLLM,), pair=None), [{}], {"tiny-smollm3": 1})
    table = from_runs(load_spec("table5", SPECS), open_runs(runs.root), scale="cpu", seed=0, methods=METHODS)
    assert set(table.costs["grpo_n8", SMOLLM].hours) == {"best", "full", "conservative"}
    assert next(t.row for t in table.missing) == "grpo_n8"


def test_the_papers_values_stand_beside(table):
    rows = {(r["row"], r["receiver"], r["quantity"]): r for r in csv.DictReader(to_csv(table).splitlines())}
    assert rows["graft", SMOLLM, "both_best"]["reported_value"] == "40.9"
    assert rows["graft", SMOLLM, "average pass@1"]["reported_value"] == "37.06"
    assert rows["graft", SMOLLM, "conservative"]["reported_value"] == ""
    assert rows["hacpo", QWEN, "best"]["value"] == ""
    assert len(rows) == 8 * 2 * 6


def test_reported_table_equals_the_file():
    spec = load_spec("table5", SPECS)
    rows = list(csv.DictReader(to_csv(from_reported(spec)).splitlines()))
    with open(SPECS.parent / "reported" / "table5_compute.csv", newline="") as f:
        printed = {(r["method"], r["model"]): r for r in csv.DictReader(f)}
    names = {
        "best": "best_ckpt_gpu_h",
        "full": "full_run_gpu_h",
        "both_best": "both_best_ckpt_gpu_h",
        "both_full": "both_full_run_gpu_h",
    }
    for r in rows:
        line = printed[r["row"], r["receiver"]]
        if r["quantity"] in names:
            assert float(r["reported_value"]) == float(line[names[r["quantity"]]])
        elif r["quantity"] == "average pass@1":
            assert (float(r["reported_value"]), float(r["reported_std"])) == (float(line["avg_mean"]), float(line["avg_std"]))


def test_every_format_prints(tmp_path: Path, runs: Runs, capsys):
    spent(runs.make("graft", share(2)), [{}], {"tiny-smollm3": 1, "tiny-qwen3": 1})
    for kind in ("term", "md", "tex", "csv"):
        assert main(["table5", "--root", str(runs.root.parent), "--format", kind]) == 0
        assert "50.00" in capsys.readouterr().out or kind == "csv"


def test_a_selected_step_beyond_the_ledger_is_an_error(runs: Runs):
    spent(runs.make("grpo", share(1), models=(SMOLLM,), pair=None), [{}], {"tiny-smollm3": 5})
    with pytest.raises(UserError, match=r"step 5, the ledger .* ends at step 1"):
        from_runs(load_spec("table5", SPECS), open_runs(runs.root), scale="cpu", seed=0, methods=METHODS)


def test_each_number_names_the_runs_that_it_rests_on(table, runs: Runs):
    def names(items) -> list[list[str]]:
        return [[Path(run).name.rsplit("-", 1)[0] for run in item.runs] for item in items]

    lines = to_page(table).parts[0].lines
    start = next(k for k, line in enumerate(lines) if line.label == "GRPO, n = 8")
    alone, both = ["grpo-tiny-smollm3-cpu-s0"], ["grpo-tiny-smollm3-cpu-s0", "grpo-tiny-qwen3-cpu-s0"]
    # score, best, full, both best, both full, charged; then the paper's five, which rest on no run of ours
    assert names(lines[start + 1].items) == [alone, alone, alone, both, both, alone, *([[]] * 5)]
    start = next(k for k, line in enumerate(lines) if line.label == "GRAFT")
    assert names(lines[start + 1].items) == [["graft-1-cpu-s0"]] * 6 + [[]] * 5
    start = next(k for k, line in enumerate(lines) if line.label == "SGT")
    assert names(lines[start + 1].items) == [[]] * 11
