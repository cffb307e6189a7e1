"""The command lines as a user types them: mistakes exit with 2 before anything is written; -m, dry_run and evaluate work alone."""

from __future__ import annotations

import json

import pytest

from tests.experiments.smoke import TINY, only_run, run, run_cold

MISTAKES = {
    "unknown key": (("method.gamma=1",), "gamma"),
    "unknown group option": (("method=unheard",), "unheard"),
    "impossible pair": (("pair.models=[qwen3-1.7b,unheard]",), "unheard"),
    "one model twice": (("pair.models=[qwen3-1.7b,qwen3-1.7b]",), "twice"),
    "n < 2": (("method.n=1",), "method.n"),
    "delta < 0": (("method.delta=-1",), "delta"),
    "missing data file": (("scale=paper", "data.root=/nowhere"), "math500.jsonl"),
    "missing data root": (("scale=paper",), "data.root"),
    "missing model directory": (("scale.models.smollm3.source=./nowhere",), "nowhere"),
    "missing relative model directory": (("scale.models.smollm3.source=runs/no/where",), "runs/no/where"),
    "group with two words": (("group=unheard",), "unheard"),
    "minibatches that do not divide": (("method=hacpo", "method.minibatches=3"), "method.minibatches=3"),
    "bad syntax": (("pair=[",), "pair"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_exit_with_2_and_write_nothing(name, tmp_path):
    overrides, says = MISTAKES[name]
    done = run("experiments.train", *overrides, f"runs_root={tmp_path / 'runs'}")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["dry_run=true", "method.n=1"])
def test_a_forked_command_says_what_a_cold_one_says(given, tmp_path):
    """Most commands here are forked from a process that has imported everything; a user's are not."""
    args = ("experiments.train", "pair=2", "scale=smoke", given, f"runs_root={tmp_path / 'runs'}")
    forked, cold = run(*args), run_cold(*args)
    assert (forked.returncode, forked.stdout, forked.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_dry_run_prints_the_recipe_and_writes_nothing(tmp_path):
    done = run("experiments.train", "method=graft", "pair=2", "scale=paper", "dry_run=true", f"runs_root={tmp_path / 'runs'}")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["recipe"]["training"]["learning_rate"] == 1e-6
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_multirun_then_evaluate_alone(tmp_path):
    args = (*TINY, "scale.training.max_steps=1", "model=tiny-qwen3", "method=grpo", "evaluate=false", f"runs_root={tmp_path}")
    done = run("experiments.train", "-m", "seed=0,1", *args)
    assert done.returncode == 0, done.stderr
    runs = sorted(p.parent for p in tmp_path.glob("paper/*/run.json"))
    assert len(runs) == 2
    assert not any(p.exists() for r in runs for p in (r / "done.json", r / "eval"))
    evaluated = run("experiments.evaluate", f"run={runs[0]}")
    assert evaluated.returncode == 0, evaluated.stderr
    assert (runs[0] / "done.json").exists()
    # Rows that got lost are noticed, kept aside, and made again; the other files stay as they are.
    file = runs[0] / "eval" / "tiny-qwen3" / "arith-aside" / "run0.jsonl"
    whole, done_json = file.read_bytes(), (runs[0] / "done.json").read_bytes()
    file.write_bytes(whole[: whole.index(b"\n") + 1])
    again = run("experiments.evaluate", f"run={runs[0]}")
    assert again.returncode == 0, again.stderr
    assert "is not whole" in again.stderr + again.stdout
    assert (file.read_bytes(), (runs[0] / "done.json").read_bytes()) == (whole, done_json)
    assert file.with_name("run0.jsonl.damaged").read_bytes() == whole[: whole.index(b"\n") + 1]


@pytest.mark.slow
def test_evaluate_a_base_model_by_name_and_by_directory(tmp_path):
    from experiments.tiny import PACKAGED

    small = ("scale=smoke", "scale.evaluation.samples=1", "scale.evaluation.seeds=[5]", f"runs_root={tmp_path}")
    assert run_cold("experiments.evaluate", "model=tiny-qwen3", *small, "experiment=a").returncode == 0
    directory = run("experiments.evaluate", f"model={PACKAGED / 'tiny-qwen3'}", *small, "experiment=b")
    assert directory.returncode == 0, directory.stderr
    by_name, by_directory = (next(tmp_path.glob(f"{e}/*/eval/tiny-qwen3/arith-heldout/run0.jsonl")).read_bytes() for e in "ab")
    assert by_name == by_directory


@pytest.mark.slow
@pytest.mark.parametrize(("args", "says"), [((), "what to evaluate"), (("run=nowhere",), "nowhere")])
def test_evaluate_without_a_subject(args, says):
    done = run("experiments.evaluate", *args)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.slow
def test_wandb_offline_mirrors_and_its_failure_fails_nothing(tmp_path):
    args = (*TINY, "scale.training.max_steps=1", "model=tiny-qwen3", "method=grpo", "evaluate=false", "logger=wandb")
    done = run("experiments.train", *args, f"runs_root={tmp_path / 'a'}", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    assert list(only_run(tmp_path / "a").glob("wandb/offline-run-*/*.wandb"))
    broken = run("experiments.train", *args, f"runs_root={tmp_path / 'b'}", WANDB_MODE="nonsense")
    assert broken.returncode == 0, broken.stderr
    assert "goes on without it" in broken.stderr
    assert (only_run(tmp_path / "b") / "metrics.jsonl").exists()
