"""Whatever happens to a job, the run ends with the very files of one that nothing happened to, and says what happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.run_record import RunRecord
from tests.slurm.lab import Lab, until
from tests.slurm.sweeping import LONG, PATIENCE_S, Place, Undisturbed, ends, jobs, pid_of, science, stopped

pytestmark = pytest.mark.slurm
# Preemption empties the node n2 for a job that wants all of it; the other scenarios stay on n1.
ELSEWHERE = "cluster.extra=['--nodelist=n1']"
# An hour of warning: every SIGUSR2 within it counts as the time limit's.
LIMIT_IS_NEAR = "+cluster.environment.GRAFT_SIGNAL_LEAD='3600'"
LIMIT = "{gpus: 0, cpus: 1, mem: 300M, time: '%s'}"


def preempted(place: Place) -> RunRecord:
    """Its time limit is short and must not be counted against it: no timeout is allowed at all."""
    asked = f"cluster.independent={LIMIT % 4}"
    low = ("cluster.partition=low", "cluster.extra=['--nodelist=n2']", "cluster.max_timeouts=0", asked)
    place.launch(overrides=(*LONG, *low))
    place.at_step(2)
    place.lab.sbatch("-p", "high", "-w", "n2", "-c", "16", "-o", "/dev/null", "--wrap", "true")
    return place.done()


def warned(place: Place) -> RunRecord:
    place.launch(overrides=(*LONG, ELSEWHERE, LIMIT_IS_NEAR))
    place.at_step(2)
    place.lab.run("scancel", "--signal=USR2", "--batch", place.job())
    return place.done()


def past_its_timeouts(place: Place) -> RunRecord:
    place.launch(overrides=(*LONG, ELSEWHERE, LIMIT_IS_NEAR, "cluster.max_timeouts=1"))
    for attempt in (1, 2):
        place.at_step(2)
        until(lambda n=attempt: len(place.record().attempts()) == n, PATIENCE_S, f"attempt {attempt}")  # type: ignore[misc]
        until(lambda: place.record().status()["state"] == "running", PATIENCE_S, "it to run")
        place.lab.run("scancel", "--signal=USR2", "--batch", place.job())
        until(lambda n=attempt: place.record().attempts()[n - 1].end is not None, PATIENCE_S, "its end")  # type: ignore[misc]
    return place.record()


def at_its_limit(place: Place) -> RunRecord:
    """A real time limit; two minutes, so that a slow machine comes to its steps, too.

    The process stands still until Slurm's own warning, with which it sends SIGCONT, so that this finds work undone.
    """
    asked = f"cluster.independent={LIMIT % 2}"
    place.launch(overrides=(*LONG, ELSEWHERE, asked, "cluster.max_timeouts=20"))
    pid = pid_of(place.at_step(2))
    os.kill(pid, signal.SIGSTOP)
    until(lambda: not stopped(pid), 150, "Slurm's warning before the limit")
    return place.done()


def requeued(place: Place) -> RunRecord:
    place.launch(overrides=(*LONG, ELSEWHERE))
    place.at_step(2)
    place.lab.run("scontrol", "requeue", place.job())
    return place.done()


def relaunched(place: Place, disturb: Callable[[RunRecord], object]) -> RunRecord:
    """The same command again, after the job was ended from outside. The state in between is left in the folder."""
    overrides = (*LONG, ELSEWHERE)
    place.launch(overrides=overrides)
    disturb(place.at_step(4))
    place.lab.wait(place.job())
    (between,) = place.status(overrides)
    (place.folder / "between").write_text(f"{between['state']}: {between['reason']}")
    assert "1 to run" in place.launch("--wait", overrides=overrides)
    return place.done()


def killed(place: Place) -> RunRecord:
    return relaunched(place, lambda record: os.kill(pid_of(record), signal.SIGKILL))


def cancelled(place: Place) -> RunRecord:
    return relaunched(place, lambda _: place.lab.run("scancel", place.job()))


SCENARIOS = (at_its_limit, preempted, past_its_timeouts, requeued, killed, warned, cancelled)
Ended = Callable[[Callable[[Place], RunRecord]], RunRecord]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("surviving")


@pytest.fixture(scope="module")
def ended(slurm_lab: Lab, folder: Path) -> Iterator[Ended]:
    """The record of a scenario when it is over. All of them run side by side, because each mostly waits for Slurm."""
    pool = ThreadPoolExecutor(4)
    futures: dict[str, Future[RunRecord]] = {}
    for scenario in SCENARIOS:
        (folder / scenario.__name__).mkdir()
        futures[scenario.__name__] = pool.submit(scenario, Place(slurm_lab, folder / scenario.__name__))
    yield lambda scenario: futures[scenario.__name__].result(2 * PATIENCE_S)
    pool.shutdown(cancel_futures=True)


def test_sigkill_and_the_same_command(ended: Ended, folder: Path, undisturbed: Undisturbed) -> None:
    record = ended(killed)
    assert ends(record) == [None, "done"]
    assert (folder / "killed" / "between").read_text().startswith("interrupted: its process was killed")
    assert science(record.path) == undisturbed()


def test_scancel_and_the_same_command(ended: Ended, folder: Path, undisturbed: Undisturbed) -> None:
    record = ended(cancelled)
    assert ends(record) == ["interrupted", "done"]
    assert (folder / "cancelled" / "between").read_text().startswith("interrupted: SIGTERM at step")
    first, second = jobs(record.attempts())
    assert first != second
    assert science(record.path) == undisturbed()


def test_requeue_from_outside(ended: Ended, undisturbed: Undisturbed) -> None:
    record = ended(requeued)
    assert ends(record)[1:] == ["done"]
    assert ends(record)[0] in ("interrupted", None)  # told by SIGTERM, and killed if that took too long
    assert len(set(jobs(record.attempts()))) == 1
    assert record.attempts()[1].start["SLURM_RESTART_COUNT"] == "1"
    assert science(record.path) == undisturbed()


def test_preemption_is_no_timeout(ended: Ended, undisturbed: Undisturbed) -> None:
    record = ended(preempted)
    assert ends(record) == ["preempted", "done"]
    assert record.attempts()[1].start["SLURM_RESTART_COUNT"] == "1"
    assert science(record.path) == undisturbed()


def test_warning_before_the_time_limit(ended: Ended, undisturbed: Undisturbed) -> None:
    record = ended(warned)
    assert ends(record) == ["timeout", "done"]
    assert len(set(jobs(record.attempts()))) == 1
    assert science(record.path) == undisturbed()


def test_a_real_time_limit(ended: Ended, undisturbed: Undisturbed) -> None:
    record = ended(at_its_limit)
    assert ends(record)[0] == "timeout"
    assert ends(record)[-1] == "done"
    assert set(ends(record)) == {"timeout", "done"}
    assert science(record.path) == undisturbed()


def test_too_many_timeouts_are_a_failure(slurm_lab: Lab, ended: Ended, folder: Path) -> None:
    record = ended(past_its_timeouts)
    assert ends(record) == ["timeout", "failed"]
    place = Place(slurm_lab, folder / "past_its_timeouts")
    slurm_lab.wait(place.job())
    overrides = (*LONG, ELSEWHERE)
    (standing,) = place.status(overrides)
    assert standing["state"] == "failed"
    assert standing["reason"].startswith("time limit reached 2 times; raise")
    again = place.sweeps("launch", "table8", "--rows", "grpo_n8", overrides=overrides)
    assert again.returncode == 1
    assert "time limit reached 2 times" in again.stdout
    assert "--retry-failed" in again.stdout
    assert len(place.batches()) == 1
