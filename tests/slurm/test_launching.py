"""Nothing is submitted twice or lost, whoever dies; refusals change nothing; only what was launched is cancelled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.files import read_json
from tests.slurm.lab import Lab
from tests.slurm.sweeping import LONG, ONE, ROOT, SHORT, Place, Undisturbed, copy_of_project, on_lab, science, wrapper

pytestmark = pytest.mark.slurm
HELD = (*SHORT, "cluster.extra=['--hold']")
TWO = ("table8", "--rows", "grpo_n8")
# 16 processes that launch at the same moment; they share the imports of the one that forks them.
FORK = """
import os, sys
import sweeps.__main__ as sweeps
children = []
for k in range(16):
    child = os.fork()
    if child == 0:
        os._exit(sweeps.main(sys.argv[1:]))
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children))
"""


@pytest.fixture
def place(slurm_lab: Lab, tmp_path: Path) -> Iterator[Place]:
    """A folder whose jobs are cancelled at the end."""
    made = Place(slurm_lab, tmp_path)
    yield made
    for batch in made.batches():
        if (batch / "job.json").is_file():
            slurm_lab.run("scancel", read_json(batch / "job.json")["job_id"])


def ours(place: Place) -> list[str]:
    """Job ids of everything in the queue whose comment names a batch of this place, noted or not."""
    names = {b.name for b in place.batches()}
    lines = place.lab.run("squeue", "-h", "-o", "%F %k").splitlines()
    return sorted({words[0] for line in lines if len(words := line.split()) > 2 and words[2] in names})


def pending(place: Place) -> int:
    return place.lab.states(place.job()).count("PENDING")


def test_launching_twice_submits_once(place: Place) -> None:
    place.launch(overrides=HELD, table=TWO)
    assert "2 in hand already, 0 to run" in place.launch(overrides=HELD, table=TWO)
    assert len(ours(place)) == len(place.batches()) == 1
    assert [s["state"] for s in place.status(HELD, TWO)] == ["queued", "queued"]


def test_sixteen_launches_at_once_submit_once(place: Place) -> None:
    environment = place.lab.environment() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = ("launch", *TWO, "--scale", "smoke", "--cluster", "slurm", "--overrides", *on_lab(), *HELD)
    command = [sys.executable, "-c", FORK, *argv]
    done = subprocess.run(command, cwd=place.folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 to run") == 1
    assert done.stdout.count("2 in hand already, 0 to run") == 15
    assert len(ours(place)) == len(place.batches()) == 1
    elements = read_json(place.batches()[0] / "batch.json")["elements"]
    assert len({e["fingerprint"] for e in elements}) == len(elements) == 2
    assert place.lab.states(place.job()) == ["PENDING", "PENDING"]


def test_a_launcher_killed_after_sbatch_finds_its_job_again(place: Place, tmp_path: Path) -> None:
    """It dies with the job in the queue and the job's id noted nowhere."""
    killing = wrapper(tmp_path / "bin", "sbatch", '$REAL "$@"\nkill -KILL $PPID')
    dead = place.sweeps("launch", *TWO, overrides=HELD, path=killing)
    assert dead.returncode == -9
    (batch,) = place.batches()
    assert not (batch / "job.json").exists()
    assert len(ours(place)) == 1
    assert [s["state"] for s in place.status(HELD, TWO)] == ["queued", "queued"]  # seen without being adopted
    assert not (batch / "job.json").exists()
    assert "2 in hand already, 0 to run" in place.launch(overrides=HELD, table=TWO)
    assert [place.job()] == ours(place)


def test_a_submission_whose_answer_was_lost_is_not_repeated(place: Place, tmp_path: Path) -> None:
    """A busy controller takes a job and its answer comes too late: sbatch then says that it failed."""
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    losing = wrapper(tmp_path / "bin", "sbatch", f'$REAL "$@" >/dev/null\necho "{said}" >&2\nexit 1')
    place.launch(overrides=HELD, table=TWO, path=losing)
    assert [place.job()] == ours(place)
    assert len(place.batches()) == 1


def test_a_submission_that_never_arrived_is_repeated(place: Place, tmp_path: Path) -> None:
    said = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    once = f'[ -e {tmp_path}/tried ] && exec $REAL "$@"\ntouch {tmp_path}/tried\necho "{said}" >&2\nexit 1'
    place.launch(overrides=HELD, table=TWO, path=wrapper(tmp_path / "bin", "sbatch", once))
    assert [place.job()] == ours(place)


def test_the_controller_is_restarted_in_mid_sweep(place: Place, undisturbed: Undisturbed) -> None:
    """It is away for some seconds while a run trains and a launcher waits for it."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(place.sweeps, "launch", *ONE, "--wait", overrides=LONG)
        place.at_step(2)
        place.lab.run(place.lab.script("restart-controller.sh"), "--down", "5")
        launched = waiting.result()
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert [a.reason for a in place.record().attempts()] == ["done"]
    assert science(place.record().path) == undisturbed()
    assert place.lab.wait(place.job()) == ["COMPLETED"]


def test_cancel_stops_its_own_jobs_only(place: Place, tmp_path: Path) -> None:
    foreign = place.lab.sbatch("--hold", "-J", "graft-of-somebody", "-o", "/dev/null", "--wrap", "true")
    (tmp_path / "other").mkdir()
    other = Place(place.lab, tmp_path / "other")
    other.launch(overrides=HELD, table=TWO)
    place.launch(overrides=HELD, table=TWO)
    one_model = (*HELD, "model=qwen3-1.7b")
    try:
        done = place.sweeps("cancel", *TWO, overrides=one_model)
        assert done.returncode == 0
        assert done.stdout.count("cancelled job") == 1
        # squeue forgets elements that never started; the run is not in hand any more.
        assert pending(place) == 1
        assert sorted(s["state"] for s in place.status(HELD, TWO)) in (["interrupted", "queued"], ["missing", "queued"])
        place.sweeps("cancel", *TWO, overrides=HELD)
        assert pending(place) == 0
        assert place.lab.states(other.job()) == ["PENDING", "PENDING"]
        assert place.lab.states(foreign) == ["PENDING"]
        assert "nothing of this is queued or running" in place.sweeps("cancel", *TWO, overrides=HELD).stdout
    finally:
        place.lab.run("scancel", foreign, other.job())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("cluster.partition=nowhere", ["partition"]),
        ("cluster.independent={gpus: 99, cpus: 1, mem: 300M, time: '30'}", ["node configuration", "not available"]),
    ],
)
def test_what_slurm_refuses_leaves_no_batch(place: Place, override: str, words: list[str]) -> None:
    refused = place.sweeps("launch", *TWO, overrides=(*SHORT, override))
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: sbatch: ")
    assert all(w in line for w in words)
    assert place.batches() == []
    assert [p.name for p in (place.root / ".sweeps").iterdir()] == [".lock"]
    # Corrected, the same runs go.
    place.launch(overrides=HELD, table=TWO)


def test_a_tree_that_differs_from_its_commit_is_refused_when_asked(place: Place, tmp_path: Path) -> None:
    code = copy_of_project(tmp_path / "code")
    git = ("git", "-C", str(code), "-c", "user.name=t", "-c", "user.email=t@localhost")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        subprocess.run([*git, *command], check=True)
    there = Place(place.lab, place.folder, code)
    (code / "experiments" / "new_module.py").write_text("# not in the commit\n")
    refused = there.sweeps("launch", *TWO, "--require-clean", overrides=HELD)
    assert refused.returncode == 2
    assert "differs from its commit" in refused.stderr
    assert there.batches() == []
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "more"], check=True)
    there.launch("--require-clean", overrides=HELD, table=TWO)
    assert len(ours(there)) == 1


def test_a_budget_refuses_before_anything_is_written(place: Place) -> None:
    refused = place.sweeps("launch", *TWO, "--budget-gpu-hours", "1", overrides=HELD)
    assert refused.returncode == 2
    assert "nobody knows yet what 2 of 2 runs cost" in refused.stderr
    assert not (place.folder / "runs").exists()


def test_a_sweep_over_the_place_is_refused(place: Place) -> None:
    """All jobs of a launch go to one cluster and one folder; the first job's would be taken for all in silence."""
    given = ("method=grpo", "scale=smoke", "hydra/launcher=slurm", *on_lab(), *HELD)
    for over in ("cluster.partition=cpu,short", "experiment=a,b"):
        refused = place.python("experiments.train", "-m", *given, over)
        assert refused.returncode == 2
        assert "must be the same for all jobs of a sweep" in refused.stderr
        assert not list(place.folder.glob("runs/*/grpo*"))
