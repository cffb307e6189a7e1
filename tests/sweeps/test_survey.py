"""Where a run stands, judged from its record and the scheduler's word: a table of cases, without a scheduler."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.batch_script import Batch, comment
from experiments.files import write_json
from experiments.run_record import RunRecord
from sweeps import slurm, survey
from sweeps.batches import new_batch
from sweeps.launch import to_start
from sweeps.slurm import JobState
from sweeps.survey import Standing, Tracked, judge, last_lines, last_row, standing, track
from tests.sweeps.made import made_record, work_of

BATCH = Batch(
    Path("/nowhere/.sweeps/ab"), ({"run": "/nowhere/r", "fingerprint": "f" * 64, "stage": "all"},), {"gpus": 0, "cpus": 2}, "7"
)


def status(state: str, reason: str | None = None, step: int = 4) -> dict[str, Any]:
    return {"state": state, "reason": reason, "step": step, "steps": 9, "attempt": 1}


def job(state: str, reason: str = "") -> Tracked:
    return Tracked(BATCH, 0, JobState(state, reason))


GONE = Tracked(BATCH, 0, None)  # nobody knows it any more
CASES = {
    # (status.json, jobs) -> (state, part of the reason)
    "never started": (status("prepared"), [], "missing", ""),
    "in the queue": (status("prepared"), [job("PENDING", "Priority")], "queued", "Priority"),
    "held": (status("prepared"), [job("PENDING", "JobHeldUser")], "queued", "JobHeldUser"),
    "behind another job": (status("prepared"), [job("PENDING", "Dependency")], "waiting", "Dependency"),
    "running": (status("running"), [job("RUNNING")], "running", ""),
    "being wound up": (status("running"), [job("COMPLETING")], "running", ""),
    "trains, evaluation behind it": (status("running"), [job("RUNNING"), job("PENDING", "Dependency")], "running", ""),
    "trained, evaluation in the queue": (status("trained"), [job("COMPLETED"), job("PENDING", "Resources")], "queued", ""),
    "queued again after a failure": (status("failed", "ValueError: x"), [job("PENDING", "Priority")], "queued", ""),
    "requeued by its time limit": (status("interrupted", "limit"), [job("PENDING", "BeginTime")], "queued", "BeginTime"),
    "its own error": (status("failed", "ValueError: x"), [job("FAILED", "NonZeroExitCode")], "failed", "ValueError: x"),
    "its own error, locally": (status("failed", "ValueError: x"), [], "failed", "ValueError: x"),
    "its own error, evaluation given up": (
        status("failed", "ValueError: x"),
        [job("FAILED"), job("CANCELLED", "DependencyNeverSatisfied")],
        "failed",
        "ValueError: x",
    ),
    "completed says the scheduler, not the record": (
        status("running"),
        [job("COMPLETED")],
        "failed",
        "without a complete record",
    ),
    "failed before it could write": (status("prepared"), [job("FAILED", "exit code 1:0")], "failed", "FAILED, exit code 1:0"),
    "out of memory": (status("running"), [job("OUT_OF_MEMORY")], "failed", "OUT_OF_MEMORY"),
    "killed in training": (status("running"), [job("FAILED", "JobLaunchFailure")], "interrupted", "was killed"),
    "killed in evaluation": (status("trained"), [job("FAILED", "JobLaunchFailure")], "interrupted", "was killed"),
    "cancelled in the queue": (status("prepared"), [job("CANCELLED")], "interrupted", "CANCELLED"),
    "cancelled, saved": (status("interrupted", "SIGTERM at step 4"), [job("CANCELLED")], "interrupted", "SIGTERM at step 4"),
    "time limit without a word": (status("running"), [job("TIMEOUT")], "interrupted", "TIMEOUT"),
    "node failure": (status("running"), [job("NODE_FAIL")], "interrupted", "NODE_FAIL"),
    "the disk was full": (status("interrupted", "no space left on device"), [job("FAILED")], "interrupted", "no space"),
    "its job is forgotten": (status("running"), [GONE], "interrupted", "without a word"),
    "forgotten in the queue": (status("prepared"), [GONE], "missing", ""),
    "trained only": (status("trained"), [], "interrupted", "evaluation is not complete"),
    "killed locally": (status("running"), [], "interrupted", "ended at step 4 without a word"),
}


@pytest.mark.parametrize("case", CASES)
def test_judge(case: str, tmp_path: Path) -> None:
    said, jobs, state, reason = CASES[case]
    found = judge(RunRecord(tmp_path, {"fingerprint": "f" * 64}), said, jobs)
    assert found[0] == state
    assert reason in found[1]


@pytest.mark.parametrize("jobs", [[], [job("FAILED")], [job("PENDING")], [job("COMPLETED")]])
def test_a_complete_record_wins_over_every_scheduler(jobs: list[Tracked], tmp_path: Path) -> None:
    write_json(tmp_path / "done.json", {"fingerprint": "f" * 64})
    record = RunRecord(tmp_path, {"fingerprint": "f" * 64})
    assert judge(record, status("running"), jobs) == ("done", "")
    # The completion record of another recipe is none.
    assert judge(replace(record, config={"fingerprint": "e" * 64}), status("running"), jobs)[0] != "done"


def test_a_process_that_holds_the_run_is_running(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, {"fingerprint": "f" * 64})
    with open(tmp_path / ".run.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert judge(record, status("prepared"), []) == ("running", "")
    assert judge(record, status("prepared"), []) == ("missing", "")


def test_what_a_launch_starts() -> None:
    states = ("done", "running", "queued", "waiting", "interrupted", "failed", "missing")
    standings = [Standing(s, s, s) for s in states]
    assert to_start(standings, retry=False) == ({"interrupted", "missing"}, [standings[5]])
    assert to_start(standings, retry=True) == ({"interrupted", "failed", "missing"}, [])


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> dict[str, JobState]:
    """What squeue says; accounting knows nothing."""
    states: dict[str, JobState] = {}
    monkeypatch.setattr(slurm, "queue", lambda **_: states)
    monkeypatch.setattr(slurm, "history", lambda names: {})
    return states


def test_an_id_that_was_given_out_again_is_not_ours(queue: dict[str, JobState], tmp_path: Path) -> None:
    """A controller that crashed may have forgotten a job and given its id to another one."""
    work = work_of(made_record(tmp_path))
    batch = new_batch(tmp_path, [work], work_resources()).submitted("7")
    queue["7"] = JobState("RUNNING", "", "somebody else's")
    assert track(tmp_path)[work.key].state is None
    queue["7"] = JobState("RUNNING", "", comment(batch))
    assert track(tmp_path)[work.key].state == queue["7"]


def test_a_batch_without_an_id_is_found_by_its_comment(queue: dict[str, JobState], tmp_path: Path) -> None:
    works = [work_of(made_record(tmp_path, seed=k)) for k in range(2)]
    batch = new_batch(tmp_path, works, work_resources())
    assert track(tmp_path) == {}
    queue |= {f"9_{k}": JobState("PENDING", "Priority", comment(batch)) for k in range(2)}
    assert [track(tmp_path)[w.key].task for w in works] == ["9_0", "9_1"]
    assert not (batch.folder / "job.json").exists()
    track(tmp_path, adopt=True)
    assert survey.read_batches(tmp_path)[0].job_id == "9"


def test_an_older_job_that_is_in_the_queue_counts_more_than_a_newer_that_ended(
    queue: dict[str, JobState], tmp_path: Path
) -> None:
    work = work_of(made_record(tmp_path))
    first, second = (new_batch(tmp_path, [work], work_resources()).submitted(k) for k in ("1", "2"))
    os.utime(first.folder / "batch.json", (1, 1))
    queue |= {"1": JobState("RUNNING", "", comment(first)), "2": JobState("CANCELLED", "", comment(second))}
    assert track(tmp_path)[work.key].task == "1"
    queue["1"] = JobState("COMPLETED", "", comment(first))
    assert track(tmp_path)[work.key].task == "2"


def test_local_processes_ask_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "queue", lambda **_: pytest.fail("squeue was called"))
    work = work_of(made_record(tmp_path))
    new_batch(tmp_path, [work], None)
    assert track(tmp_path)[work.key].state is None


def test_a_standing_has_the_numbers_of_the_record(tmp_path: Path) -> None:
    record = made_record(tmp_path)
    attempt = record.new_attempt()
    # 3 steps of 2 s, then 1 step of 4 s
    rows = [{"step": k, "wall": 2 if k < 4 else 4, "seconds": {"update": 1}, "tokens": {}} for k in range(1, 5)]
    write_rows(attempt / "steps.jsonl", rows)
    write_json(attempt / "devices.json", {"kind": "gpu", "count": 4})
    write_json(attempt / "evaluation.json", {"seconds": 62.0})
    write_rows(record.path / "metrics.jsonl", [{"step": 4, "models": {"a": {"reward_mean": 0.5}, "b": {"reward_mean": 0.25}}}])
    record.set_status("running", attempt=1, step=2, steps=10)
    found = standing(record, [job("RUNNING")])
    assert (found.state, found.attempt, found.step, found.steps, found.job) == ("running", 1, 4, 10, "7")
    # mean step (2+2+2+4)/4 = 2.5 s; 6 steps to go
    assert found.eta_s == pytest.approx(15.0)
    assert found.pass_rate == pytest.approx(0.375)
    # (10 + 62) s on 4 GPUs = 288 / 3600
    assert (found.hours, found.device) == (pytest.approx(0.08), "GPU")


def test_the_log_is_that_of_the_stage_that_began(tmp_path: Path) -> None:
    """An evaluation that was given up because its training failed has no log."""
    record = made_record(tmp_path)
    training, evaluation = (new_batch(tmp_path, [work_of(record, stage)], work_resources()) for stage in ("train", "evaluate"))
    training.log(0).write_text("why it failed\n")
    record.set_status("failed", reason="ValueError: x")
    jobs = [Tracked(training, 0, JobState("FAILED")), Tracked(evaluation, 0, JobState("CANCELLED", "DependencyNeverSatisfied"))]
    assert standing(record, jobs).log == str(training.log(0))
    evaluation.log(0).write_text("later\n")
    assert standing(record, jobs).log == str(evaluation.log(0))


def test_the_last_row_of_a_file_that_is_being_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert last_row(file) is None
    file.write_text("")
    assert last_row(file) is None
    file.write_text('{"step":1}\n{"step":2}\n{"st')
    assert last_row(file) == {"step": 2}
    file.write_text('{"long":"' + "x" * survey.TAIL_BYTES + '"}\n{"step":3}\n')
    assert last_row(file) == {"step": 3}


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == "(no log)"
    log.write_bytes(b"\xff" + b"\n".join(b"line %d" % k for k in range(20)))
    assert last_lines(log, 2) == "line 18\nline 19"


def work_resources() -> Any:
    from experiments.cluster import Resources

    return Resources(gpus=0, cpus=1, mem="1G", time="30")


def write_rows(file: Path, rows: list[Any]) -> None:
    import json

    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
