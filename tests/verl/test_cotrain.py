"""Whole runs through the usual command line: real Ray, FSDP2 and vLLM, two tiny models of different tokenizers on a CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.files import read_json
from experiments.run_record import RunRecord, read_jsonl
from graft import trajectories
from graft.policies.torch_policy import TorchPolicy, TorchSettings
from tests.experiments.smoke import ROOT, only_run
from tests.graft.tiny import OPTIMISER
from tests.verl import cpu

pytestmark = pytest.mark.verl
MODELS = ("tiny-smollm3", "tiny-qwen3")
TRAIN = (
    *("method=graft", "pair=1", "scale=smoke", "evaluate=false", "checkpoint_every=1"),
    "scale.training.validation_every=3",
)


def start(root: Path, *more: str) -> subprocess.Popen:
    """The run in a session of its own, with its output beside its records."""
    log = open(root / "log.txt", "ab")
    command = [sys.executable, "-m", "experiments.train", *TRAIN, *cpu.command_line(), f"runs_root={root}", *more]
    environment = os.environ | cpu.environment() | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
    )


def finish(process: subprocess.Popen, root: Path) -> int:
    """The exit code, in time; the log's end where it is none of 0, 75, 143."""
    code = process.wait(timeout=900)
    assert code in (0, 75, 143, -9), (root / "log.txt").read_text()[-4000:]
    return code


def wait_for(reached: Callable[[], bool], process: subprocess.Popen, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)


def steps_done(root: Path) -> int:
    """Steps with a complete checkpoint."""
    done = [int(p.parent.name.removeprefix("step-")) for p in root.glob("paper/*/checkpoints/step-*/COMPLETE")]
    return max(done, default=0)


def family(process: subprocess.Popen) -> list:
    """All processes below, as psutil processes (which know a reused number from their own)."""
    import psutil

    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes: list, seconds: float = 60) -> None:
    """No process of an ended run is left."""
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=seconds)
    left = [p.cmdline() for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Three undisturbed steps."""
    root = tmp_path_factory.mktemp("whole")
    process = start(root)
    assert finish(process, root) == 0, (root / "log.txt").read_text()[-4000:]
    return RunRecord.open(only_run(root))


def test_three_steps_of_graft_exchange_in_both_directions(whole: RunRecord) -> None:
    metrics = read_jsonl(whole.path / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [1, 2, 3]
    admitted = {(d["source"], d["receiver"]): 0 for d in metrics[0]["exchange"]}
    assert set(admitted) == {MODELS, MODELS[::-1]}
    for m in metrics:
        for d in m["exchange"]:
            admitted[d["source"], d["receiver"]] += d["admitted"]
        for name in MODELS:
            mine = m["models"][name]
            assert (mine["rollouts"], mine["nonfinite_minibatches"]) == (64, 0)
            assert mine["grad_norm_mean"] > 0
            assert 0 < mine["sampler_mismatch"]["tokens"]
            assert mine["sampler_mismatch"]["max"] < 1e-4  # a stale sampler is off by whole units after one step
    assert min(admitted.values()) > 0
    trained = {name: sum(m["models"][name]["peer_tokens"] for m in metrics) for name in MODELS}
    assert min(trained.values()) > 0


def test_its_records_are_those_of_any_run(whole: RunRecord) -> None:
    assert whole.config["recipe"]["policy"]["engine"] == "verl"
    assert read_json(whole.path / "status.json")["state"] == "trained"
    # prompts x samples x models
    assert [len(trajectories.read(whole.path / "trajectories", step)) for step in (1, 2, 3)] == [8 * 8 * 2] * 3
    (attempt,) = whole.attempts()
    assert {m: sorted(v) for m, v in read_json(attempt.path / "memory.json").items() if m in MODELS} == {
        m: ["optimiser", "weights"] for m in MODELS
    }
    phases = read_jsonl(attempt.path / "steps.jsonl")[0]["seconds"]
    assert {f"{m}/{phase}" for m in MODELS for phase in ("sampling", "update", "scoring")} <= set(phases)
    assert len(read_jsonl(whole.path / "validation.jsonl")) == 2 * 6  # models x (five benchmarks and their average)


def test_the_selected_checkpoints_are_hugging_face_models(whole: RunRecord) -> None:
    for name, chosen in read_json(whole.path / "selected.json").items():
        folder = whole.path / "best" / name / f"step-{chosen['step']:06d}"
        loaded = TorchPolicy(name, folder, TorchSettings(64, 44), OPTIMISER)
        assert loaded.weights_sha256() == chosen["final_weights_sha256"]  # selected after the last step


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A run of five steps: a worker is killed in a step, later every process gets SIGTERM, then the driver SIGKILL; then the end."""
    root = tmp_path_factory.mktemp("disturbed")
    longer = "scale.training.max_steps=5"
    process = start(root, longer)
    wait_for(lambda: steps_done(root) >= 1, process)
    below = family(process)
    kill_a_worker(below)
    wait_for(lambda: steps_done(root) >= 2, process)  # the same process went on, in a new attempt
    assert_gone(below)
    below = family(process)
    for p in [*below, process]:
        p.send_signal(signal.SIGTERM)  # as a scheduler does: every process of the job
    codes = [finish(process, root)]
    assert_gone(below)
    process = start(root, longer)
    wait_for(lambda: steps_done(root) >= 3, process)
    below = family(process)
    process.kill()
    codes.append(finish(process, root))
    assert_gone(below, seconds=300)  # Ray's two agents, which hold no memory of a GPU, look for their parent now and then
    codes.append(finish(start(root, longer), root))
    return only_run(root), codes


def kill_a_worker(below: list) -> None:
    """One of the two models' training workers."""
    workers = [p for p in below if "PolicyWorker" in " ".join(p.cmdline())]
    assert len(workers) == 2
    workers[-1].kill()


def test_a_disturbed_run_ends_with_the_right_steps_and_says_what_happened(disturbed: tuple[Path, list[int]]) -> None:
    path, codes = disturbed
    assert codes == [143, -9, 0]
    assert [m["step"] for m in read_jsonl(path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    record = RunRecord.open(path)
    assert read_json(path / "status.json")["state"] == "trained"
    attempts = record.attempts()
    assert [a.reason for a in attempts] == ["interrupted", "interrupted", None, "trained"]
    assert "died" in attempts[0].end["detail"]
    assert attempts[1].end["detail"].startswith("SIGTERM")
    assert [len(trajectories.read(path / "trajectories", step)) for step in range(1, 6)] == [8 * 8 * 2] * 5


def test_evaluation_goes_through_lm_eval_and_vllm(whole: RunRecord) -> None:
    command = [sys.executable, "-m", "experiments.evaluate", f"run={whole.path}"]
    environment = os.environ | cpu.environment()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    recipe = whole.config["recipe"]
    for name in MODELS:
        for benchmark in recipe["evaluation"]["benchmarks"]:
            for run in range(2):
                rows = read_jsonl(whole.path / "eval" / name / benchmark["name"] / f"run{run}.jsonl")
                assert len(rows) == benchmark["items"] * recipe["evaluation"]["samples"]
                assert len({r["seed"] for r in rows}) == len(rows)  # vLLM takes a seed for every sample
                assert {r["finish_reason"] for r in rows} <= {"eos", "length"}
    assert (whole.path / "done.json").exists()
