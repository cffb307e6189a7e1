"""The compute ledger by hand: three attempts, a repeated step, a killed attempt, a joint run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.ledger import Devices, read_ledger, summary
from experiments.run_record import RunRecord


def attempt(run: Path, number: int, steps: list[dict], **files: dict) -> None:
    folder = run / "attempts" / str(number)
    folder.mkdir(parents=True)
    (folder / "steps.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def step(number: int, wall: float, **seconds: float) -> dict:
    """Phases "a__update" are those of model a; the rest is nobody's."""
    named = {k.replace("__", "/"): v for k, v in seconds.items()}
    return {"step": number, "wall": wall, "seconds": named, "tokens": {"a": {"sampled": 10}, "b": {"sampled": 1}}}


@pytest.fixture
def joint(tmp_path: Path) -> RunRecord:
    """Models a and b on 4 GPUs. Attempt 1 made steps 1 and 2 and was killed; attempt 2 resumed after step 1."""
    attempt(
        tmp_path,
        1,
        [step(1, 10.0, a__sampling=4.0, b__sampling=2.0, exchange=1.0, validation=2.0), step(2, 8.0, a__sampling=5.0)],
        start={},
        devices={"kind": "gpu", "count": 4},
        startup={"seconds": 3.0},
        memory={"a": {"weights": 100, "optimiser": 0}, "process": {"peak_rss": 7}},
    )
    attempt(
        tmp_path,
        2,
        [step(2, 9.0, a__sampling=3.0, b__sampling=4.0, checkpoint=1.0), step(3, 6.0, a__update=2.0, b__update=2.0)],
        start={},
        devices={"kind": "gpu", "count": 4},
        startup={"seconds": 2.0},
        evaluation={"seconds": 20.0},
        memory={"a": {"weights": 100, "optimiser": 200}, "process": {"peak_rss": 5}},
        end={"reason": "done", "detail": None, "seconds": 38.5},
    )
    return RunRecord(tmp_path, {"recipe": {"models": [{"name": "a"}, {"name": "b"}], "method": {"name": "graft"}}})


def test_a_repeated_step_counts_once_as_its_last_attempt_made_it(joint: RunRecord):
    ledger = read_ledger(joint)
    assert [(c.step, c.attempt, c.wall) for c in ledger.kept] == [(1, 1, 10.0), (2, 2, 9.0), (3, 2, 6.0)]
    assert [(c.step, c.attempt, c.wall) for c in ledger.repeated] == [(2, 1, 8.0)]
    assert (ledger.attempts, ledger.killed) == (2, 1)
    assert ledger.devices == Devices("gpu", 4)
    assert ledger.devices.unit == "GPU-hours"


def test_costs_leave_validation_and_checkpoints_out(joint: RunRecord):
    ledger = read_ledger(joint)
    # Steps: 10 - 2 = 8, 9 - 1 = 8, 6; times 4 GPUs over 3600 s.
    assert ledger.until(1) == pytest.approx(8 * 4 / 3600)
    assert ledger.until(2) == pytest.approx(16 * 4 / 3600)
    assert ledger.full == pytest.approx(22 * 4 / 3600)
    # Everything on record: 10 + 9 + 6 and the repeated 8, loading 3 + 2, evaluation 20.
    assert ledger.spent == pytest.approx((25 + 8 + 5 + 20) * 4 / 3600)
    with pytest.raises(ValueError, match="step 4 is not in the ledger, which ends at 3"):
        ledger.until(4)


def test_shares_of_a_joint_run_add_up_to_it(joint: RunRecord):
    ledger = read_ledger(joint)
    # Step 1: a 4, b 2, and 8 - 6 = 2 of nobody, half each: a 5, b 3. Step 2: 3 + .5, 4 + .5 (8 - 7 = 1). Step 3: 2 + 1 each.
    assert ledger.share("a", 3) == pytest.approx((5 + 3.5 + 3) * 4 / 3600)
    assert ledger.share("b", 3) == pytest.approx((3 + 4.5 + 3) * 4 / 3600)
    for last in (1, 2, 3):
        assert ledger.share("a", last) + ledger.share("b", last) == pytest.approx(ledger.until(last))
    assert ledger.kept[0].idle == pytest.approx(1.0)  # 10 - (4 + 2 + 1 + 2)


def test_the_sum_of_the_entries_is_the_wall_clock_of_the_attempts_that_ended(joint: RunRecord):
    ledger = read_ledger(joint)
    s = summary(ledger)
    # Attempt 2: 2 loading, 9 + 6 steps, 20 evaluation, 1.5 of nothing timed = 38.5.
    assert ledger.wall == 38.5
    assert ledger.rest == pytest.approx(1.5)
    assert sum(s["phases"].values()) == pytest.approx(10 + 9 + 6)
    assert s["training_seconds"] == pytest.approx(22.0)
    assert s["validation_and_checkpoint_seconds"] == pytest.approx(3.0)
    assert s["repeated_steps_seconds"] == pytest.approx(8.0)
    assert s["tokens"] == {"a": {"sampled": 30}, "b": {"sampled": 3}}
    assert s["peak_bytes"] == {"a": {"weights": 100, "optimiser": 200}, "process": {"peak_rss": 7}}


def test_a_run_that_never_began_costs_nothing(tmp_path: Path):
    ledger = read_ledger(RunRecord(tmp_path, {"recipe": {"models": [{"name": "a"}]}}))
    assert (ledger.full, ledger.spent, ledger.attempts, ledger.kept) == (0, 0, 0, ())


def test_rows_of_before_the_ledger_have_their_phases_as_wall_clock(tmp_path: Path):
    row = {"step": 1, "seconds": {"a/update": 2.0, "validation": 1.0}, "tokens": {}}
    attempt(tmp_path, 1, [row], start={})
    (cost,) = read_ledger(RunRecord(tmp_path, {"recipe": {"models": [{"name": "a"}]}})).kept
    assert (cost.wall, cost.training, cost.idle) == (3.0, 2.0, 0.0)
