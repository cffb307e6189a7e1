"""kill -9 anywhere and the same command again: byte-identical metrics, rows and weights; finished runs are reused."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from experiments.run_record import RunRecord, read_jsonl
from graft import trajectories
from tests.experiments.smoke import TINY, WHOLE, kill_when, only_run, results, run, run_cold, whole_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return whole_run(tmp_path_factory)


def metrics_rows(root):
    files = list(root.glob("*/*/metrics.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def test_run_is_complete(whole):
    record = RunRecord.open(whole)
    assert record.done
    assert [row["step"] for row in read_jsonl(whole / "metrics.jsonl")] == list(range(1, 8))
    assert record.status()["state"] == "done"
    steps = sorted(p.stem for p in (whole / "trajectories").glob("*.parquet"))
    assert steps == [f"step-{k:06d}" for k in range(1, 8)]
    for folder in ("trajectories", "transfers"):
        assert trajectories.steps(whole / folder) == tuple(range(1, 8))
    assert trajectories.problems(whole / "trajectories") == []
    table = pq.read_table(whole / "trajectories" / "step-000001.parquet")
    assert table.num_rows == 2 * 4 * 4  # models x prompts x n
    compute = json.loads((whole / "compute.json").read_text())
    assert compute["steps"] == 7
    assert compute["repeated_steps_seconds"] == 0


KILLS = {
    "before the first checkpoint": lambda root: metrics_rows(root) >= 1,
    "between checkpoints": lambda root: metrics_rows(root) >= 3,
    "in the middle of a checkpoint": lambda root: any(root.glob("*/*/checkpoints/.step-000004.tmp")),
    "after a best checkpoint was written": lambda root: any(root.glob("*/*/best/*/step-000002/COMPLETE")),
    "at the end of training": lambda root: any(root.glob("*/*/selected.json")),
    "during evaluation": lambda root: any(root.glob("*/*/eval/*/*/run0.jsonl")),
}


@pytest.mark.parametrize("moment", KILLS)
def test_killed_and_resumed_is_byte_identical(moment, whole, tmp_path):
    args = (*WHOLE, f"runs_root={tmp_path}")
    assert kill_when(args, lambda: KILLS[moment](tmp_path)), "the run ended before it could be killed"
    killed = RunRecord.open(only_run(tmp_path))
    assert not killed.done
    assert not killed.alive()
    assert [a.reason for a in killed.attempts()] == [None]  # a process that died without a word is recognisable
    again = run("experiments.train", *args)
    assert again.returncode == 0, again.stderr
    assert results(only_run(tmp_path)) == results(whole)


def test_two_kills_in_a_row_across_the_epoch_boundary(whole, tmp_path):
    args = (*WHOLE, "checkpoint_every=3", f"runs_root={tmp_path}")  # a checkpoint every 3 steps, killed again after it
    for rows in (3, 6):
        assert kill_when(args, lambda rows=rows: metrics_rows(tmp_path) >= rows)
    assert run("experiments.train", *args).returncode == 0
    mine, theirs = results(only_run(tmp_path)), results(whole)
    state_free = {k: v for k, v in theirs.items() if "state.json" not in k}
    assert {k: mine[k] for k in state_free} == state_free


def test_a_window_over_past_steps_survives_a_kill(tmp_path):
    """HACPO compares capabilities over five steps and holds a frozen reference policy: both must come back after a kill."""
    args = ("method=hacpo", "pair=1", *TINY, "method.minibatches=2", "scale.evaluation.seeds=[5]")
    once = run_cold("experiments.train", *args, f"runs_root={tmp_path / 'once'}")
    assert once.returncode == 0, once.stderr
    killed = tmp_path / "killed"
    assert kill_when((*args, f"runs_root={killed}"), lambda: metrics_rows(killed) >= 5)
    assert run("experiments.train", *args, f"runs_root={killed}").returncode == 0
    assert results(only_run(killed)) == results(only_run(tmp_path / "once"))
    capability = [row["models"]["tiny-qwen3"]["capability"] for row in read_jsonl(only_run(killed) / "metrics.jsonl")]
    rewards = [row["models"]["tiny-qwen3"]["reward_mean"] for row in read_jsonl(only_run(killed) / "metrics.jsonl")]
    assert capability == pytest.approx([sum(rewards[max(0, i - 4) : i + 1]) / min(i + 1, 5) for i in range(7)])


def test_torn_tail_and_rows_after_the_checkpoint_are_repeated(whole, tmp_path):
    args = (*WHOLE, f"runs_root={tmp_path}")
    assert kill_when(args, lambda: metrics_rows(tmp_path) >= 3)
    with open(only_run(tmp_path) / "metrics.jsonl", "ab") as f:
        f.write(b'{"step": 99, "mod')
    assert run("experiments.train", *args).returncode == 0
    assert results(only_run(tmp_path)) == results(whole)


def test_finished_run_is_reused(whole, tmp_path):
    before = results(whole)
    path = tmp_path / whole.parent.name / whole.name
    shutil.copytree(whole, path)
    again = run("experiments.train", *WHOLE, f"runs_root={tmp_path}")
    assert again.returncode == 0
    assert "reused" in again.stdout
    assert results(path) == before
    (attempt,) = RunRecord.open(path).attempts()  # training and evaluation of the first call; none was added
    assert attempt.reason == "done"
    names = {"start", "devices", "startup", "memory", "evaluation", "end"}
    assert {f.name for f in attempt.path.iterdir()} == {"steps.jsonl", *(f"{n}.json" for n in names)}
    # The ledger adds up: loading, steps and evaluation are the attempt's wall-clock time, but for what closing takes.
    ledger = json.loads((path / "compute.json").read_text())
    timed = ledger["startup_seconds"] + sum(ledger["phases"].values()) + ledger["evaluation_seconds"]
    wall = json.loads((attempt.path / "end.json").read_text())["seconds"]
    assert timed == pytest.approx(wall, rel=0.02, abs=0.5)
    assert ledger["peak_bytes"]["tiny-smollm3"]["optimiser"] > ledger["peak_bytes"]["tiny-smollm3"]["weights"] > 2e6


def test_missing_sample_is_never_done(whole, tmp_path):
    from experiments.evaluation import count_complete

    copy = tmp_path / whole.name
    shutil.copytree(whole, copy)
    file = next(copy.glob("eval/*/*/run1.jsonl"))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="rows present"):
        count_complete(RunRecord.open(copy))


def test_resume_must_needs_a_checkpoint(tmp_path):
    refused = run("experiments.train", *WHOLE, "resume=must", f"runs_root={tmp_path}")
    assert refused.returncode == 2
    assert "complete checkpoint" in refused.stderr
    assert "Traceback" not in refused.stderr
