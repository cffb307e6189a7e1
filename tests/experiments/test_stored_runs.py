"""Runs with a stored peer, end to end: no donor model, kill and resume, a donor from elsewhere, local launches in order."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.run_record import RunRecord, read_jsonl
from graft import trajectories
from tests.experiments.smoke import ROOT, TINY, environment, kill_when, results, run

pytestmark = pytest.mark.slow
# Long enough for answers, so that there is something to learn from the other.
SIZES = (*(o for o in TINY if "max_response_tokens" not in o), "scale.training.max_response_tokens=40")
STORED = ("method=graft_stored", "pair=1", "model=tiny-qwen3", "evaluate=false", *SIZES)
DONOR = ("method=grpo", "pair=1", "model=tiny-smollm3", "evaluate=false", *SIZES)


def the_run(root: Path, method: str) -> Path:
    (path,) = root.glob(f"*/{method}-*")
    return path


@pytest.fixture(scope="module")
def donated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a finished donor, whose weights are then deleted."""
    root = tmp_path_factory.mktemp("donated")
    done = run("experiments.train", *DONOR, f"runs_root={root}")
    assert done.returncode == 0, done.stderr
    for folder in ("checkpoints", "best"):
        shutil.rmtree(the_run(root, "grpo") / folder)
    assert not list(root.rglob("*.safetensors"))
    return root


@pytest.fixture(scope="module")
def whole(donated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted stored run, in a process that cannot build the donor's model."""
    root = tmp_path_factory.mktemp("whole")
    shutil.copytree(donated, root, dirs_exist_ok=True)
    guard = (
        "import sys\n"
        "from experiments import engine, train\n"
        "from experiments.cli import run_hydra\n"
        "built, kept = [], engine.build_policy\n"
        "def build(record, name, *rest):\n"
        "    built.append(name)\n"
        "    assert name == 'tiny-qwen3', name\n"
        "    return kept(record, name, *rest)\n"
        "engine.build_policy = build\n"
        "code = run_hydra(train.task)\n"
        "print('BUILT', built)\n"
        "sys.exit(code)\n"
    )
    arguments = [*STORED, f"runs_root={root}"]
    done = subprocess.run(
        [sys.executable, "-c", guard, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "BUILT ['tiny-qwen3']" in done.stdout
    return the_run(root, "graft_stored")


def test_it_learns_from_the_log_and_says_so(whole: Path) -> None:
    record = RunRecord.open(whole)
    steps = read_jsonl(whole / "metrics.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 8))
    assert all(list(s["models"]) == ["tiny-qwen3"] for s in steps)
    assert {(d["source"], d["receiver"]) for s in steps for d in s["exchange"]} == {("tiny-smollm3", "tiny-qwen3")}
    assert all(s["stored"]["model"] == "tiny-smollm3" and s["stored"]["responses"] == 4 * 4 for s in steps)
    assert sum(s["stored"]["disagreements"] for s in steps) == 0  # the same verifier judged both times
    assert sum(d["admitted"] for s in steps for d in s["exchange"]) > 0
    # Unbalanced: whatever is eligible moves.
    assert all(d["selected"] == d["candidates"] == d["used"] for s in steps for d in s["exchange"])
    assert {m["name"] for m in record.config["recipe"]["models"]} == {"tiny-qwen3"}
    assert trajectories.problems(whole / "trajectories") == []
    noted = json.loads((whole / "donor.json").read_text())
    assert noted["path"] == str(the_run(whole.parent.parent, "grpo") / "trajectories")


@pytest.mark.parametrize("moment", ["before the first checkpoint", "between checkpoints"])
def test_killed_and_resumed_is_byte_identical(moment: str, whole: Path, donated: Path, tmp_path: Path) -> None:
    shutil.copytree(donated, tmp_path, dirs_exist_ok=True)
    wanted = 1 if moment.startswith("before") else 3
    args = (*STORED, f"runs_root={tmp_path}")

    def reached() -> bool:
        files = list(tmp_path.glob("*/graft_stored-*/metrics.jsonl"))
        return bool(files) and files[0].read_bytes().count(b"\n") >= wanted

    assert kill_when(args, reached), "the run ended before it could be killed"
    assert not (the_run(tmp_path, "graft_stored") / "selected.json").exists()
    again = run("experiments.train", *args)
    assert again.returncode == 0, again.stderr
    mine = results(the_run(tmp_path, "graft_stored"))
    assert any(name.startswith("transfers/") for name in mine)
    assert mine == results(whole)


def test_the_same_log_from_elsewhere_teaches_the_same(whole: Path, donated: Path, tmp_path: Path) -> None:
    """Another machine's copy of the parts, without its run: other identity, same lessons."""
    log = tmp_path / "copied"
    shutil.copytree(the_run(donated, "grpo") / "trajectories", log)
    done = run("experiments.train", *STORED, f"runs_root={tmp_path}", f"donor={log}")
    assert done.returncode == 0, done.stderr
    path = the_run(tmp_path, "graft_stored")
    assert path.name != whole.name
    assert results(path) == results(whole)
    # The log is torn while the run waits to be continued.
    part = log / "step-000007.parquet"
    part.write_bytes(part.read_bytes()[:-40])
    refused = run("experiments.train", *STORED, f"runs_root={tmp_path}", f"donor={log}", "method.delta=0.5")
    assert refused.returncode == 2
    assert "step-000007.parquet is torn" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_its_donor_a_run_says_what_to_train_first(tmp_path: Path) -> None:
    refused = run("experiments.train", *STORED, f"runs_root={tmp_path}")
    assert refused.returncode == 2
    assert "Train it first: the same command with method=grpo method.n=4 model=tiny-smollm3" in refused.stderr
    assert not list(tmp_path.rglob("run.json"))


def test_a_launch_brings_the_donors_along_and_runs_them_first(tmp_path: Path) -> None:
    arguments = ("table6", "--scale", "smoke", "--pairs", "1", "--rows", "graft_stored", "--jobs", "2")
    overrides = ("--overrides", "evaluate=false", "scale.training.max_steps=1", "method.n=2")
    planned = run("sweeps", "plan", *arguments, *overrides, cwd=tmp_path)
    assert [planned.stdout.count(name) for name in ("grpo-tiny-qwen3", "grpo-tiny-smollm3", "graft_stored-1-tiny")] == [1, 1, 2]
    run("sweeps", "launch", *arguments, *overrides, cwd=tmp_path)  # evaluate=false leaves no completion record: exit code 1
    trained = sorted(p.parent.name.rsplit("-", 1)[0] for p in tmp_path.glob("runs/paper/*/selected.json"))
    assert trained == [
        *("graft_stored-1-tiny-qwen3-smoke-s0", "graft_stored-1-tiny-smollm3-smoke-s0"),
        *("grpo-tiny-qwen3-smoke-s0", "grpo-tiny-smollm3-smoke-s0"),
    ]
