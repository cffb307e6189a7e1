"""A warning, a cancellation, Ctrl-C: the run saves the finished step, says so, and resumes to the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.interruption import impatient
from experiments.run_record import RunRecord, read_jsonl
from tests.experiments.smoke import ROOT, WHOLE, command, environment, fresh_copy, only_run, results, run, start, whole_run

# A checkpoint would come every fourth step only, so one at another step is the interruption's own.
EVERY = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return whole_run(tmp_path_factory)


def rows(path):
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def signal_job(path, number, reached, *, cold=False):
    """Start experiments.job on a run, send ``number`` to its process group once ``reached()``, and return its exit code.

    The group includes the verifier's process, as a scheduler's signal does. ``cold``: from an interpreter that has yet to import.
    """
    log = path / "job.log"
    if cold:
        with open(log, "ab") as f:
            job = command("experiments.job", str(path))
            process = subprocess.Popen(job, cwd=ROOT, env=environment(), stdout=f, stderr=f, start_new_session=True)
    else:
        process = start("experiments.job", str(path), output=log, new_session=True)
    deadline = time.monotonic() + 240
    while process.poll() is None and not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert process.poll() is None, log.read_text()
    os.killpg(process.pid, number)
    return process.wait(timeout=120)


def trajectories(path):
    return {f.name: f.read_bytes() for f in sorted((path / "trajectories").iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "steps"), [(signal.SIGUSR2, (1, 3)), (signal.SIGTERM, (2, 6)), (signal.SIGINT, (4, 5))], ids=lambda v: str(v)
)
def test_interrupted_twice_and_resumed_is_byte_identical(number, steps, whole, tmp_path):
    path = fresh_copy(whole, tmp_path, checkpoint_every=EVERY)
    for k, step in enumerate(steps, 1):
        assert signal_job(path, number, lambda step=step: rows(path) >= step) == 128 + number
        record = RunRecord.open(path)
        status = record.status()
        assert status["state"] == "interrupted"
        assert status["step"] >= step
        assert status["reason"].startswith(f"{number.name} at step ")
        assert (status["step"], f"{number.name} at step {status['step']}") == (rows(path), status["reason"])
        assert [p.name for p in (path / "checkpoints").iterdir()] == [f"step-{status['step']:06d}"]
        last = record.attempts()[-1]
        assert (last.number, last.reason, last.end["detail"]) == (k, "interrupted", status["reason"])
        assert not record.alive()
    again = run("experiments.job", str(path))
    assert again.returncode == 0, again.stderr
    assert results(path) == results(whole)
    assert trajectories(path) == trajectories(whole)
    attempts = RunRecord.open(path).attempts()
    assert [a.reason for a in attempts] == ["interrupted", "interrupted", "done"]
    compute = json.loads((path / "compute.json").read_text())
    assert (compute["steps"], compute["attempts"], compute["repeated_steps_seconds"]) == (7, 3, 0)
    assert [row["step"] for a in attempts for row in read_jsonl(a.path / "steps.jsonl")] == list(range(1, 8))


@pytest.mark.slow
def test_interrupted_in_a_validation_leaves_it_to_the_next_attempt(whole, tmp_path):
    """A signal while step 2 is on disk and its validation is not: the checkpoint comes before the validation."""
    path = fresh_copy(whole, tmp_path, checkpoint_every=EVERY)
    # The trajectory part precedes the metrics row, and the validation of step 2 follows both.
    assert signal_job(path, signal.SIGUSR2, lambda: (path / "trajectories" / "step-000002.parquet").exists()) == 140
    (checkpoint,) = (path / "checkpoints").iterdir()
    state = json.loads((checkpoint / "state.json").read_text())
    if state["validation_pending"]:  # the usual case; a very quick machine may have validated already
        assert state["step"] == 2
        assert state["best"] == {}
        assert state["validation_offset"] == 0
    assert run("experiments.job", str(path)).returncode == 0
    assert results(path) == results(whole)


@pytest.mark.slow
def test_interrupted_before_the_first_step_and_in_evaluation(whole, tmp_path):
    path = fresh_copy(whole, tmp_path, checkpoint_every=EVERY)
    assert signal_job(path, signal.SIGUSR2, lambda: (path / "attempts" / "1" / "start.json").exists(), cold=True) == 140
    # The attempt is on record before the run looks for signals the first time; a little later everything is loaded.
    assert RunRecord.open(path).status()["reason"] in ("SIGUSR2 at its start", "SIGUSR2 at step 0")
    assert signal_job(path, signal.SIGUSR2, lambda: any(path.glob("eval/*/*/run0.jsonl"))) == 140
    assert "evaluation" in RunRecord.open(path).status()["reason"]
    first = next(path.glob("eval/*/*/run0.jsonl"))
    written = first.stat().st_mtime_ns
    assert run("experiments.job", str(path)).returncode == 0
    assert results(path) == results(whole)
    assert first.stat().st_mtime_ns == written, "a whole file was made again"
    evaluations = list(path.glob("attempts/*/evaluation.json"))
    compute = json.loads((path / "compute.json").read_text())
    assert len(evaluations) == 2
    assert compute["evaluation_seconds"] == sum(json.loads(f.read_text())["seconds"] for f in evaluations)


@pytest.mark.slow
def test_ctrl_c_on_the_hydra_command_line(tmp_path):
    said = tmp_path / "said"
    process = start("experiments.train", *WHOLE, f"runs_root={tmp_path}", output=said)
    while process.poll() is None and not list(tmp_path.glob("*/*/metrics.jsonl")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, stderr = process.wait(timeout=120), said.read_text()
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert RunRecord.open(only_run(tmp_path)).status()["state"] == "interrupted"


@pytest.mark.slow
def test_an_interruption_keeps_the_next_run_from_starting(whole, tmp_path):
    first, second = (
        fresh_copy(whole, tmp_path / name, checkpoint_every=EVERY) for name in ("a", "b") if not (tmp_path / name).mkdir()
    )
    process = start("experiments.job", str(first), str(second))
    while process.poll() is None and not rows(first):
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=120) == 143
    assert RunRecord.open(second).status()["state"] == "prepared"
    assert not (second / "attempts").exists()


TERM, INT, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR2


@pytest.mark.parametrize(
    ("signals", "slurm", "expected"),
    [
        ([USR2], False, False),
        ([USR2, USR2], False, False),  # a warning repeated is no order
        ([USR2, TERM], False, False),
        ([TERM], False, False),
        ([TERM, TERM], False, True),
        ([TERM, TERM], True, False),  # Slurm repeats it by itself
        ([INT, INT], True, True),
        ([INT, TERM], False, False),
    ],
)
def test_who_may_not_wait(signals, slurm, expected):
    assert impatient(signals, {"SLURM_JOB_ID": "7"} if slurm else {}) is expected


def test_a_second_ctrl_c_exits_at_once_and_a_child_is_shielded():
    """A real process: the first SIGINT is noted, a shielded child survives its group's signal, the second SIGINT ends it."""
    code = """
import subprocess, sys, time
from experiments import interruption
interruption.install()
with interruption.shielded():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print("ready", flush=True)
while not interruption.received():
    time.sleep(0.01)
print(interruption.received()[0].name, child.poll(), flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "SIGINT None\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=10) == 130
