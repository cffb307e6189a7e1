"""A sweep as one array through both doors, and in two stages; a run that fails is told from those that do not."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.files import read_json
from tests.slurm.lab import Lab
from tests.slurm.sweeping import SHORT, Place, on_lab, science

pytestmark = pytest.mark.slurm
FOUR = ("table8", "--rows", "full", "grpo_n8", "wo_balancing")  # GRPO is one run for each of the two models
QUICK = (*SHORT, "scale.training.max_steps=3")
# One of the two cannot train: no prompt is that short.
TOO_SHORT, ENOUGH = "scale.training.max_prompt_tokens=3", "scale.training.max_prompt_tokens=64"
APART = ("model=qwen3-1.7b", "cluster.stages=apart")


def through_hydra(place: Place, *args: str) -> subprocess.CompletedProcess[str]:
    """The multirun door: ``python -m experiments.train -m ... hydra/launcher=slurm``."""
    given = ("scale=smoke", "hydra/launcher=slurm", "hydra.launcher.wait=true", *on_lab(), *QUICK, *args)
    return place.python("experiments.train", "-m", *given)


@pytest.fixture(scope="module")
def places(slurm_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """The same four runs by ``sweeps launch`` on Slurm, by Hydra on Slurm, and by local processes, at the same time."""
    made = {name: Place(slurm_lab, tmp_path_factory.mktemp(name)) for name in ("sweeps", "hydra", "local")}
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(made["sweeps"].launch, "--wait", overrides=QUICK, table=FOUR)
        second = pool.submit(through_hydra, made["hydra"], "method=graft,grpo,wo_balancing", "pair=1")
        third = pool.submit(made["local"].launch, "--jobs", "1", overrides=QUICK, table=FOUR, cluster="local")
        first.result()
        third.result()
        assert second.result().returncode == 0, second.result().stdout + second.result().stderr
    return made


@pytest.mark.parametrize("door", ["sweeps", "hydra"])
def test_four_runs_are_one_array_and_complete(places: dict[str, Place], slurm_lab: Lab, door: str) -> None:
    place = places[door]
    (batch,) = place.batches()
    assert len(read_json(batch / "batch.json")["elements"]) == 4
    assert slurm_lab.states(place.job()) == ["COMPLETED"] * 4
    assert [r.done for r in place.records()] == [True] * 4
    # Each run was an element of that array.
    elements = {a.job for r in place.records() for a in r.attempts()}
    assert elements == {f"{place.job()}_{k}" for k in range(4)}


@pytest.mark.parametrize("door", ["sweeps", "hydra"])
def test_doors_leave_what_local_processes_leave(places: dict[str, Place], door: str) -> None:
    here = {r.path.name: science(r.path) for r in places["local"].records()}
    assert len(here) == 4
    assert {r.path.name: science(r.path) for r in places[door].records()} == here


def test_the_scheduler_shows_which_runs_an_array_holds(places: dict[str, Place], slurm_lab: Lab) -> None:
    place = places["sweeps"]
    (batch,) = place.batches()
    comment = slurm_lab.run("squeue", "-h", "-t", "all", "-j", place.job(), "-o", "%k").splitlines()[0].split()
    assert comment[:2] == ["graft", batch.name]
    assert sorted(comment[2:]) == sorted(r.config["fingerprint"][:8] for r in place.records())


@pytest.fixture(scope="module")
def mixed(slurm_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, subprocess.CompletedProcess[str]]:
    """Two runs, training and evaluation apart, of which one fails in training."""
    place = Place(slurm_lab, tmp_path_factory.mktemp("mixed"))
    return place, through_hydra(place, "method=grpo", "pair=1", f"{TOO_SHORT},64", *APART)


def test_evaluation_follows_training(mixed: tuple[Place, subprocess.CompletedProcess[str]], slurm_lab: Lab) -> None:
    place, _ = mixed
    batches = [(read_json(b / "batch.json")["elements"], read_json(b / "job.json")["job_id"], b) for b in place.batches()]
    (training, array, _), *rest = sorted(batches, key=lambda x: x[0][0]["stage"], reverse=True)
    assert [e["stage"] for e in training] == ["train", "train"]
    assert [[e["stage"] for e in elements] for elements, _, _ in rest] == [["evaluate"], ["evaluate"]]
    for (element,), _, folder in rest:
        task = [e["run"] for e in training].index(element["run"])
        assert f"#SBATCH --dependency=afterok:{array}_{task}\n" in (folder / "script.sh").read_text()
    ended = {Path(e[0]["run"]).name: slurm_lab.states(job) for e, job, _ in rest}
    assert sorted(ended.values()) == [["CANCELLED"], ["COMPLETED"]]
    (good,) = (r for r in place.records() if r.done)
    assert ended[good.path.name] == ["COMPLETED"]
    assert [a.reason for a in good.attempts()] == ["trained", "done"]


def test_a_failing_run_is_shown_and_leaves_the_other_alone(mixed: tuple[Place, subprocess.CompletedProcess[str]]) -> None:
    place, launched = mixed
    assert launched.returncode == 1
    assert sorted(r.done for r in place.records()) == [False, True]
    shown = place.sweeps("status", "table8", "--rows", "grpo_n8", overrides=(*QUICK, *APART, TOO_SHORT))
    assert shown.returncode == 1
    assert "max_prompt_tokens" in shown.stdout
    assert "Error: " in shown.stdout.partition("the last lines of")[2]  # the end of the training's log, not an empty one's
    (standing,) = place.status((*QUICK, *APART, TOO_SHORT))
    assert standing["state"] == "failed"
    assert "max_prompt_tokens" in standing["reason"]
    assert "max_prompt_tokens" in Path(standing["log"]).read_text()


def test_a_failed_run_is_started_again_only_when_told(mixed: tuple[Place, subprocess.CompletedProcess[str]]) -> None:
    place, _ = mixed
    overrides = (*QUICK, *APART, TOO_SHORT)
    before = len(place.batches())
    alone = place.sweeps("launch", "table8", "--rows", "grpo_n8", "--wait", overrides=overrides)
    assert alone.returncode == 1
    assert "left alone" in alone.stdout
    assert len(place.batches()) == before
    again = place.sweeps("launch", "table8", "--rows", "grpo_n8", "--wait", "--retry-failed", overrides=overrides)
    assert again.returncode == 1
    (failed,) = (r for r in place.records() if not r.done)
    assert [a.reason for a in failed.attempts()] == ["failed", "failed"]
    assert json.loads((failed.path / "status.json").read_text())["attempt"] == 2
