"""experiments.job: frozen elements of a batch, stages, exit codes; the code's version in a snapshot; who is alive."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest

from experiments import interruption
from experiments.config import Options
from experiments.errors import EXIT_ENVIRONMENT, UserError
from experiments.files import write_json
from experiments.job import Element, attempt, options_to_json, read_element, stages
from experiments.progress import Display
from experiments.requeue import Leaving
from experiments.run_record import RunRecord, code_version
from graft.policies.base import EngineFailure
from tests.experiments.smoke import ROOT, TINY, environment, run, run_cold


def options(tmp_path, **changes):
    values = {
        "experiment_root": tmp_path,
        "data_root": None,
        "model_paths": {"a": "a"},
        "device": "cpu",
        "threads": 1,
        "resume": "auto",
        "evaluate": True,
        "logger": "none",
        "checkpoint_every": 1,
        "dry_run": False,
    }
    return Options(**values | changes)


def make(root, method="graft"):
    cell = {"method": method, "pair": "1", "models": ["a"], "scale": "cpu", "seed": 0}
    return RunRecord.create(root, cell=cell, recipe={"seed": 0, "method": {"name": method}}, deviations={})


def batch_file(tmp_path, *elements):
    file = tmp_path / "batch.json"
    write_json(file, {"elements": list(elements)})
    return file


def test_an_element_carries_its_own_options(tmp_path):
    wanted = options(tmp_path, checkpoint_every=7)
    element = {"run": str(tmp_path / "x"), "options": options_to_json(wanted), "stage": "train"}
    read = read_element(batch_file(tmp_path, {}, element), 1)
    assert (read.run, read.options, read.stage) == (tmp_path / "x", wanted, "train")


@pytest.mark.parametrize(
    ("index", "stage", "says"),
    [(1, "all", "elements 0 to 0"), (-1, "all", "elements 0 to 0"), (0, "sleep", "all, train, evaluate")],
)
def test_wrong_elements_are_the_users_mistakes(index, stage, says, tmp_path):
    element = {"run": "x", "options": options_to_json(options(tmp_path)), "stage": stage}
    with pytest.raises(UserError, match=says):
        read_element(batch_file(tmp_path, element), index)
    with pytest.raises(UserError, match="no such file"):
        read_element(tmp_path / "none.json", 0)


class Failing:
    """Training that comes to the next of ``steps`` and then loses its engine; at None it is through."""

    def __init__(self, *steps: int | None, error: type[Exception] = EngineFailure):
        self.steps, self.error, self.resumes = list(steps), error, []

    def __call__(self, record, attempt, options, on_step):
        step = self.steps.pop(0)
        self.resumes.append(options.resume)
        if step is None:
            write_json(record.path / "selected.json", {})
            record.set_status("trained")
            return
        folder = record.path / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "state.json", {"step": step})
        (folder / "COMPLETE").touch()
        raise self.error("sampling 8 responses: the server died")


@pytest.fixture
def element(tmp_path):
    """A fresh run as a job gets it."""
    return Element(make(tmp_path).path, options(tmp_path, evaluate=False, resume="never"))


def ends(element):
    return [a.reason for a in RunRecord.open(element.run).attempts()]


def test_a_failed_engine_is_started_again_while_the_run_gets_on(element, monkeypatch, capsys):
    training = Failing(0, 2, None)  # it failed before the first checkpoint, after the second, and then came through
    monkeypatch.setattr("experiments.training.train", training)
    assert attempt(lambda: element, Display()) == 0
    assert ends(element) == ["interrupted", "interrupted", "trained"]
    assert training.resumes == ["never", "auto", "auto"]  # what an attempt of this job made is not thrown away by the next
    assert capsys.readouterr().out.count("the server died; starting the engine again") == 2


def test_evaluation_files_are_progress_too(element, monkeypatch):
    """The engine fails before the first file, and after each of two: it got on every time."""
    training = Failing(4, 4, 4, None)
    calls = []

    def evaluating(record, *rest):
        """A file more at each go."""
        for k in range(len(calls)):
            file = record.path / "eval" / "a" / "b" / f"run{k}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        calls.append(None)
        training(record, *rest)

    monkeypatch.setattr("experiments.training.train", evaluating)
    assert attempt(lambda: element, Display()) == 0
    assert ends(element) == ["interrupted"] * 3 + ["trained"]


def test_a_signal_from_before_the_start_ends_the_attempt_before_anything_is_loaded(element, monkeypatch):
    training = Failing(None)
    monkeypatch.setattr("experiments.training.train", training)
    monkeypatch.setattr(interruption, "_received", [(signal.SIGUSR2, 0.0)])
    with pytest.raises(Leaving):
        attempt(lambda: element, Display())
    assert training.resumes == []
    (only,) = RunRecord.open(element.run).attempts()
    assert only.end["detail"].startswith("SIGUSR2 at its start")


def test_an_engine_that_fails_twice_at_one_place_leaves_the_run_to_be_resumed(element, monkeypatch, capsys):
    training = Failing(3, 3, None)
    monkeypatch.setattr("experiments.training.train", training)
    assert attempt(lambda: element, Display()) == EXIT_ENVIRONMENT == 75
    assert ends(element) == ["interrupted", "interrupted"]
    assert training.steps == [None]
    assert "error: sampling 8 responses: the server died; run the same command again to resume" in capsys.readouterr().err


def test_an_engine_lost_to_a_signal_is_an_interruption_by_it(element, monkeypatch):
    training = Failing(1, None)
    monkeypatch.setattr(interruption, "_received", [])

    def signalled(*args):
        """The signal comes while the engine works."""
        interruption._received.append((signal.SIGTERM, 0.0))
        training(*args)

    monkeypatch.setattr("experiments.training.train", signalled)
    with pytest.raises(Leaving) as left:
        attempt(lambda: element, Display())
    assert left.value.number == signal.SIGTERM
    (only,) = RunRecord.open(element.run).attempts()
    assert (only.reason, only.end["detail"].split(":")[0]) == (
        "interrupted",
        "SIGTERM at the loss of its engine (sampling 8 responses",
    )


def test_a_runs_own_error_is_not_tried_again(element, monkeypatch):
    training = Failing(1, None, error=RuntimeError)
    monkeypatch.setattr("experiments.training.train", training)
    assert attempt(lambda: element, Display()) == 1
    assert ends(element) == ["failed"]
    assert training.steps == [None]


def test_stages(tmp_path):
    fresh, base = make(tmp_path), make(tmp_path, "base")
    both, without = options(tmp_path), options(tmp_path, evaluate=False)
    assert stages(fresh, both, "all") == ("train", "evaluate")
    assert stages(fresh, without, "all") == ("train",)
    assert stages(fresh, both, "train") == ("train",)
    assert stages(base, both, "all") == stages(base, without, "evaluate") == ("evaluate",)
    assert stages(base, both, "train") == ()
    with pytest.raises(UserError, match="not finished training"):
        stages(fresh, both, "evaluate")
    write_json(fresh.path / "selected.json", {})
    assert stages(fresh, both, "all") == stages(fresh, without, "evaluate") == ("evaluate",)
    assert stages(fresh, both, "train") == stages(fresh, without, "all") == ()


@pytest.mark.slow
def test_a_queued_element_runs_as_it_was_frozen_stage_by_stage(tmp_path):
    args = (*TINY, "method=grpo", "model=tiny-qwen3", "scale.training.max_steps=1", "evaluate=false", f"runs_root={tmp_path}")
    assert run("experiments.train", *args).returncode == 0
    (trained,) = (RunRecord.open(f.parent) for f in tmp_path.glob("*/*/run.json"))
    frozen = json.loads((trained.path / "options.json").read_text())
    copy = tmp_path / "queued" / trained.path.name
    copy.mkdir(parents=True)
    (copy / "run.json").write_bytes((trained.path / "run.json").read_bytes())
    (copy / "status.json").write_text(json.dumps({"state": "prepared", "attempt": 0, "step": 0, "steps": None, "reason": None}))
    write_json(copy / "options.json", {"broken": "by a later launch"})
    elements = [{"run": str(copy), "options": frozen, "stage": stage} for stage in ("evaluate", "train", "evaluate", "all")]
    batch = ("--batch", str(batch_file(tmp_path, *elements)), "--element")
    record = RunRecord.open(copy)
    refused = run("experiments.job", *batch, "0")
    assert (refused.returncode, record.attempts()) == (2, ())
    assert run("experiments.job", *batch, "1").returncode == 0
    assert record.status()["state"] == "trained"
    assert not (copy / "eval").exists()
    assert run("experiments.job", *batch, "1").returncode == 0  # nothing to do: no attempt
    assert run("experiments.job", *batch, "2").returncode == 0
    assert record.done
    assert [a.reason for a in record.attempts()] == ["trained", "done"]
    assert (copy / "metrics.jsonl").read_bytes() == (trained.path / "metrics.jsonl").read_bytes()
    assert run("experiments.job", str(copy)).returncode == 1  # its options.json is broken: an error of its own


@pytest.mark.parametrize("args", [(), ("x", "--batch", "b", "--element", "0"), ("x", "--element", "0"), ("--element", "1")])
def test_impossible_calls(args):
    done = run_cold("experiments.job", *args)
    assert done.returncode == 2
    assert "give run directories, or --batch" in done.stderr


def test_the_worst_code_of_several_runs(tmp_path):
    """A mistake and an error of its own, in both orders; the first does not keep the second from being tried."""
    broken = make(tmp_path)
    (broken.path / "options.json").write_text("{")
    for order in ((tmp_path / "none", broken.path), (broken.path, tmp_path / "none")):
        done = run_cold("experiments.job", *map(str, order))
        assert done.returncode == 2
        assert "not a run directory" in done.stderr
        assert "options.json: not JSON" in done.stderr


def test_version_of_a_snapshot(tmp_path):
    assert code_version(ROOT)["commit"]
    assert code_version(tmp_path) == {"commit": None, "dirty": False, "diff": None}
    write_json(tmp_path / "CODE.json", {"commit": "abc", "dirty": True, "diff": "+1"})
    assert code_version(tmp_path) == {"commit": "abc", "dirty": True, "diff": "+1"}


def test_a_snapshot_inside_a_checkout_does_not_take_the_checkouts_commit(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "snapshot").mkdir()
    write_json(tmp_path / "snapshot" / "CODE.json", {"commit": "abc", "dirty": False})
    assert code_version(tmp_path / "snapshot") == {"commit": "abc", "dirty": False, "diff": None}


HOLD = """
import sys, time
from pathlib import Path
from experiments.run_record import RunRecord
with RunRecord.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_alive_is_the_holder_of_the_lock_until_its_death(tmp_path):
    record = make(tmp_path)
    assert not record.alive()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(record.path)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    assert record.alive()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not record.alive()


def test_asking_who_is_alive_never_refuses_a_start(tmp_path):
    record = make(tmp_path)
    stop = threading.Event()
    askers = [threading.Thread(target=lambda: [record.alive() for _ in iter(stop.is_set, True)]) for _ in range(3)]
    for asker in askers:
        asker.start()
    held = 0
    try:
        for _ in range(200):
            with record.lock():
                held += record.alive()
    finally:
        stop.set()
        for asker in askers:
            asker.join()
    assert held == 200


def test_attempts_carry_the_schedulers_ids(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    record = make(tmp_path)
    record.new_attempt()
    (attempt,) = record.attempts()
    assert (attempt.job, attempt.start["SLURM_RESTART_COUNT"], attempt.start["SLURMD_NODENAME"]) == ("7_3", "2", "n1")
    assert (attempt.reason, attempt.end) == (None, None)
