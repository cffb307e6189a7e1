"""What follows an interruption: the decision as a table, and real processes that find Slurm's commands (made up here) or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest

from experiments.attempts import Attempt, job_name
from experiments.interruption import Interrupted
from experiments.requeue import Facts, after_interruption, decide
from tests.experiments.smoke import ROOT, environment

USR2, TERM, INT = signal.SIGUSR2, signal.SIGTERM, signal.SIGINT
HOUR = 3600.0

CASES = {
    "no scheduler: a warning": (USR2, Facts(None), 0, "exit", "interrupted"),
    "no scheduler: terminated": (TERM, Facts(None), 0, "exit", "interrupted"),
    "scancel, or a preemption without a signal of ours": (TERM, Facts("7", None, 120), 0, "wait_for_kill", "interrupted"),
    "scancel after timeouts": (TERM, Facts("7_3", 5, 120), 9, "wait_for_kill", "interrupted"),
    "by hand": (INT, Facts("7", HOUR, 120), 0, "exit", "interrupted"),
    "time limit, first": (USR2, Facts("7", 119, 120), 0, "requeue", "timeout"),
    "time limit, signal a minute early": (USR2, Facts("7", 180, 120), 0, "requeue", "timeout"),
    "time limit, last of the budget": (USR2, Facts("7", 100, 120), 2, "requeue", "timeout"),
    "time limit, budget used up": (USR2, Facts("7", 100, 120), 3, "exit", "failed"),
    "past the limit already": (USR2, Facts("7", -10, 120), 0, "requeue", "timeout"),
    "preempted": (USR2, Facts("7", HOUR, 120), 0, "requeue", "preempted"),
    "preempted for the tenth time, timeouts used up": (USR2, Facts("7", HOUR, 120), 9, "requeue", "preempted"),
    "preempted, limit of 5 minutes": (USR2, Facts("7", 181, 120), 0, "requeue", "preempted"),
    "preempted, limit of 2 minutes": (USR2, Facts("7", 100, 20), 3, "requeue", "preempted"),
    "end unknown: counted": (USR2, Facts("7", None, 120), 0, "requeue", "timeout"),
    "end unknown, budget used up": (USR2, Facts("7", None, 120), 3, "exit", "failed"),
}


@pytest.mark.parametrize("name", CASES)
def test_decision(name):
    number, facts, timeouts, action, ending = CASES[name]
    decision = after_interruption(number, facts, timeouts, 3)
    assert (decision.action, decision.ending, decision.job) == (action, ending, facts.job)


def test_the_exhausted_budget_says_what_to_do():
    decision = after_interruption(USR2, Facts("7", 100, 120), 3, 3)
    assert decision.reason == "time limit reached 4 times; raise the cluster's time or max_timeouts"


def test_names_of_jobs():
    assert job_name({}) is None
    assert job_name({"SLURM_JOB_ID": "9"}) == "9"
    assert job_name({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}) == "7_3"


@pytest.fixture
def slurm(tmp_path):
    """Commands that note how they were called; squeue answers with the content of ``end``, scontrol fails as often as ``refusals``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {
        "squeue": f'echo "squeue $SLURM_TIME_FORMAT $*" >> {tmp_path}/calls; cat {tmp_path}/end',
        "scontrol": f'echo "scontrol $*" >> {tmp_path}/calls; '
        f'n=$(cat {tmp_path}/refusals 2>/dev/null || echo 0); [ "$n" = 0 ] || {{ echo $((n-1)) > {tmp_path}/refusals; exit 1; }}',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return tmp_path


def slurm_environment(slurm, **more):
    return environment() | {"PATH": f"{slurm / 'bin'}:{os.environ['PATH']}", "GRAFT_SIGNAL_LEAD": "120", **more}


def attempts(*reasons, job="9"):
    return [
        Attempt(k, None, {"SLURM_JOB_ID": job}, {"reason": reason} if reason else None) for k, reason in enumerate(reasons, 1)
    ]


@pytest.mark.parametrize(
    ("said", "environ", "earlier", "ending"),
    [
        (3600, {}, attempts(), "preempted"),
        (130, {}, attempts(), "timeout"),
        (130, {}, attempts("timeout", "preempted", "timeout", None, "preempted"), "timeout"),
        (130, {}, attempts("timeout", "preempted", "timeout", None, "timeout"), "failed"),
        (130, {}, attempts("timeout", "timeout", "timeout", job="8"), "timeout"),  # an earlier launch had a budget of its own
        (130, {"GRAFT_MAX_TIMEOUTS": "0"}, attempts(), "failed"),
        (130, {"GRAFT_MAX_TIMEOUTS": "a few", "GRAFT_SIGNAL_LEAD": ""}, attempts(), "timeout"),
        (130, {"GRAFT_SIGNAL_LEAD": "20"}, attempts(), "preempted"),
        (None, {}, attempts(), "timeout"),
        (None, {"SLURM_JOB_END_TIME": str(int(time.time()) + 7200)}, attempts(), "preempted"),
    ],
)
def test_facts_come_from_slurm(said, environ, earlier, ending, slurm):
    now = time.time()
    (slurm / "end").write_text("" if said is None else datetime.fromtimestamp(now + said).isoformat(timespec="seconds") + "\n")
    surroundings = slurm_environment(slurm, SLURM_JOB_ID="9", **environ)
    # 100 s passed between the signal and the end of the step: the signal's time decides.
    decision = decide(Interrupted(USR2, "step 1", now), earlier, surroundings)
    assert decision.ending == ending
    assert (slurm / "calls").read_text() == "squeue standard -h -j 9 -o %e\n"


def test_the_time_of_the_signal_decides_and_not_the_end_of_the_long_step(slurm):
    now = time.time()
    (slurm / "end").write_text(datetime.fromtimestamp(now + 100).isoformat(timespec="seconds"))
    surroundings = slurm_environment(slurm, SLURM_JOB_ID="9")
    assert decide(Interrupted(USR2, "step 1", now - 600), (), surroundings).ending == "preempted"
    assert decide(Interrupted(USR2, "step 1", now - 10), (), surroundings).ending == "timeout"


LEAVE = """
import sys, signal
from experiments.interruption import Interrupted, install
from experiments import requeue
install()
requeue.REQUEUE_PAUSES_S = (0, 0, 0)
requeue.WAIT_FOR_KILL_S = float(sys.argv[2])
interrupted = Interrupted(signal.Signals[sys.argv[1]], "step 1", __import__("time").time())
sys.exit(requeue.leave(requeue.Leaving(interrupted.number, requeue.decide(interrupted, ()))))
"""


def leave(slurm, name, wait_s, **environ):
    return subprocess.Popen(
        [sys.executable, "-c", LEAVE, name, str(wait_s)],
        cwd=ROOT,
        env=slurm_environment(slurm, **environ),
        stderr=subprocess.PIPE,
    )


def calls(slurm):
    return (slurm / "calls").read_text().splitlines() if (slurm / "calls").exists() else []


@pytest.mark.parametrize(("name", "code"), [("SIGUSR2", 140), ("SIGTERM", 143), ("SIGINT", 130)])
def test_without_a_scheduler_nothing_is_called(name, code, slurm):
    process = leave(slurm, name, 60)
    assert process.wait(timeout=30) == code
    assert calls(slurm) == []


def test_an_element_is_requeued_and_waits_for_its_kill(slurm):
    (slurm / "end").write_text(datetime.fromtimestamp(time.time() + 3600).isoformat(timespec="seconds"))
    ids = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    process = leave(slurm, "SIGUSR2", 60, **ids)
    while len(calls(slurm)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    assert calls(slurm) == ["squeue standard -h -j 7_3 -o %e", "scontrol requeue 7_3"]
    process.send_signal(signal.SIGTERM)  # Slurm sends it again before SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_refused_requeue_is_tried_again_and_then_given_up(slurm):
    (slurm / "end").write_text("N/A\n")
    (slurm / "refusals").write_text("1")
    assert leave(slurm, "SIGUSR2", 0, SLURM_JOB_ID="9").wait(timeout=30) == 140
    assert calls(slurm) == ["squeue standard -h -j 9 -o %e", *["scontrol requeue 9"] * 2]
    (slurm / "calls").unlink()
    (slurm / "refusals").write_text("99")
    assert leave(slurm, "SIGUSR2", 60, SLURM_JOB_ID="9").wait(timeout=30) == 140
    assert calls(slurm)[1:] == ["scontrol requeue 9"] * 3


def test_a_cancelled_job_is_never_requeued(slurm):
    assert leave(slurm, "SIGTERM", 0, SLURM_JOB_ID="9").wait(timeout=30) == 143
    assert calls(slurm) == []
