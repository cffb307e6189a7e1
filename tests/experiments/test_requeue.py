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


def running(remaining_s=HOUR, lead_s=120.0, **more):
    return Facts("7", remaining_s, lead_s, **more)


def stopping(**more):
    return Facts("7", 0.0, 120.0, stopping=True, **more)


CASES = {
    "no scheduler: a warning": (USR2, Facts(None), 0, "exit", "interrupted"),
    "no scheduler: terminated": (TERM, Facts(None), 0, "exit", "interrupted"),
    "Ctrl-C": (INT, running(), 0, "exit", "interrupted"),
    "time limit, first": (USR2, running(119), 0, "requeue", "timeout"),
    "time limit, signal a minute early": (USR2, running(180), 0, "requeue", "timeout"),
    "time limit, last of the budget": (USR2, running(100), 2, "requeue", "timeout"),
    "time limit, budget used up": (USR2, running(100), 3, "exit", "failed"),
    "time limit, and past it when the step ended": (USR2, stopping(time_limit=True), 0, "requeue", "timeout"),
    "time limit without a warning": (TERM, stopping(time_limit=True), 1, "requeue", "timeout"),
    "time limit without a warning, budget used up": (TERM, stopping(time_limit=True), 3, "exit", "failed"),
    "preempted: Slurm has moved the end to the grace's end": (USR2, running(15, preempted=True), 0, "requeue", "preempted"),
    "preempted for the tenth time, timeouts used up": (USR2, running(15, preempted=True), 9, "requeue", "preempted"),
    "preempted, limit of 5 minutes": (USR2, running(280, preempted=True), 3, "requeue", "preempted"),
    "preempted, grace over when the step ended": (USR2, stopping(preempted=True), 3, "wait_for_kill", "preempted"),
    "preempted without a warning": (TERM, stopping(preempted=True), 3, "wait_for_kill", "preempted"),
    "preempted, told at the beginning of the grace": (TERM, running(15, preempted=True), 0, "wait_for_kill", "preempted"),
    "a warning by hand, far from the limit": (USR2, running(181), 3, "requeue", "preempted"),
    "cancelled": (TERM, stopping(), 0, "wait_for_kill", "interrupted"),
    "cancelled while the warning's step ended": (USR2, stopping(), 0, "wait_for_kill", "interrupted"),
    "terminated by hand, not by Slurm": (TERM, running(), 0, "exit", "interrupted"),
    "nothing known: a warning counts": (USR2, running(None, known=False), 0, "requeue", "timeout"),
    "nothing known, budget used up": (USR2, running(None, known=False), 3, "exit", "failed"),
    "nothing known: told to end": (TERM, running(None, known=False), 0, "wait_for_kill", "interrupted"),
}


@pytest.mark.parametrize("name", CASES)
def test_decision(name):
    number, facts, timeouts, action, ending = CASES[name]
    decision = after_interruption(number, facts, timeouts, 3)
    assert (decision.action, decision.ending, decision.job) == (action, ending, facts.job)


def test_the_exhausted_budget_says_what_to_do():
    decision = after_interruption(USR2, running(100), 3, 3)
    assert decision.reason == "time limit reached 4 times; raise the cluster's time or max_timeouts"


def test_names_of_jobs():
    assert job_name({}) is None
    assert job_name({"SLURM_JOB_ID": "9"}) == "9"
    assert job_name({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}) == "7_3"


# As Slurm 22.05 prints it, the comment with something misleading in it.
SHOWN = """JobId=9 ArrayJobId=7 ArrayTaskId=3 JobName=graft
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   SubmitTime=2026-01-01T00:00:00 EligibleTime=2026-01-01T00:00:00
   StartTime={start} EndTime={end} Deadline=N/A
   PreemptEligibleTime={start} PreemptTime={preempt}
   Comment=graft EndTime=2020-01-01T00:00:00 PreemptTime=2020-01-01T00:00:00
"""


def shown(end, state="RUNNING", reason="None", preempt=None, start=-3600):
    """``scontrol show job`` with times in seconds from now."""

    def stamp(seconds):
        return "None" if seconds is None else datetime.fromtimestamp(time.time() + seconds).isoformat(timespec="seconds")

    return SHOWN.format(state=state, reason=reason, start=stamp(start), end=stamp(end), preempt=stamp(preempt))


@pytest.fixture
def slurm(tmp_path):
    """scontrol that notes its calls, shows the file ``job`` and refuses to requeue as often as ``refusals`` says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    body = f"""echo "$*" >> {tmp_path}/calls
[ "$1" = show ] && exec cat {tmp_path}/job
n=$(cat {tmp_path}/refusals 2>/dev/null || echo 0)
[ "$n" = 0 ] || {{ echo $((n-1)) > {tmp_path}/refusals; cat {tmp_path}/words >&2; exit 1; }}"""
    (tmp_path / "words").write_text("Unexpected message received for job 9")
    (folder / "scontrol").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "scontrol").chmod(0o755)
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
        (lambda: shown(3600), {}, attempts(), "preempted"),
        (lambda: shown(130), {}, attempts(), "timeout"),
        (lambda: shown(15, preempt=0), {}, attempts("timeout", "timeout", "timeout"), "preempted"),
        (lambda: shown(130, preempt=-7200), {}, attempts(), "timeout"),  # preempted before this start
        (lambda: shown(130), {}, attempts("timeout", "preempted", "timeout", None, "preempted"), "timeout"),
        (lambda: shown(130), {}, attempts("timeout", "preempted", "timeout", None, "timeout"), "failed"),
        (lambda: shown(130), {}, attempts("timeout", "timeout", "timeout", job="8"), "timeout"),  # an earlier launch's own budget
        (lambda: shown(130), {"GRAFT_MAX_TIMEOUTS": "0"}, attempts(), "failed"),
        (lambda: shown(130), {"GRAFT_MAX_TIMEOUTS": "a few", "GRAFT_SIGNAL_LEAD": ""}, attempts(), "timeout"),
        (lambda: shown(130), {"GRAFT_SIGNAL_LEAD": "20"}, attempts(), "preempted"),
        (lambda: shown(0, "COMPLETING"), {}, attempts(), "interrupted"),
        (lambda: shown(0, "COMPLETING", "TimeLimit"), {}, attempts(), "timeout"),
        (lambda: shown(None), {}, attempts(), "timeout"),
        (lambda: "", {"SLURM_JOB_END_TIME": str(int(time.time()) + 7200)}, attempts(), "interrupted"),
    ],
)
def test_facts_come_from_slurm(said, environ, earlier, ending, slurm):
    (slurm / "job").write_text(said())  # now: times count from here
    surroundings = slurm_environment(slurm, SLURM_JOB_ID="9", **environ)
    assert decide(Interrupted(USR2, "step 1", time.time()), earlier, surroundings).ending == ending
    assert calls(slurm) == ["show job 9"]


def test_the_time_of_the_signal_decides_and_not_the_end_of_the_long_step(slurm):
    now = time.time()
    (slurm / "job").write_text(shown(100))
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
    (slurm / "job").write_text(shown(3600))
    ids = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    process = leave(slurm, "SIGUSR2", 60, **ids)
    while len(calls(slurm)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    # Never by the bare job id: for the element that started last it is the array's, and all elements would be requeued.
    assert calls(slurm) == ["show job 7_3", "requeue 7_3"]
    process.send_signal(signal.SIGTERM)  # Slurm's answer to the requeue, before SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_refused_requeue_is_tried_again_and_then_given_up(slurm):
    (slurm / "job").write_text(shown(None))
    (slurm / "refusals").write_text("1")
    assert leave(slurm, "SIGUSR2", 0, SLURM_JOB_ID="9").wait(timeout=30) == 140
    assert calls(slurm) == ["show job 9", *["requeue 9"] * 2]
    (slurm / "calls").unlink()
    (slurm / "refusals").write_text("99")
    assert leave(slurm, "SIGUSR2", 60, SLURM_JOB_ID="9").wait(timeout=30) == 140
    assert calls(slurm)[1:] == ["requeue 9"] * 3
    (slurm / "calls").unlink()
    (slurm / "words").write_text("Job is pending execution for job 9")  # requeued already
    assert leave(slurm, "SIGUSR2", 0, SLURM_JOB_ID="9").wait(timeout=30) == 140
    assert calls(slurm)[1:] == ["requeue 9"]


def test_a_cancelled_job_is_never_requeued(slurm):
    (slurm / "job").write_text(shown(0, "COMPLETING"))
    for name, code in (("SIGTERM", 143), ("SIGUSR2", 140)):
        assert leave(slurm, name, 0, SLURM_JOB_ID="9").wait(timeout=30) == code
    assert calls(slurm) == ["show job 9"] * 2


WARN = """
import time
from experiments import interruption, requeue
interruption.install()
requeue.warn_in_time()
deadline = time.monotonic() + 20
while time.monotonic() < deadline and not interruption.received():
    time.sleep(0.05)
print(*interruption.received())
"""


@pytest.mark.parametrize(
    ("end", "lead", "slurm_job", "warned"),
    [(67, "61", True, True), (2, "300", True, True), (3600, "61", True, False), (67, "61", False, False)],
    ids=["at the lead", "half of a short rest", "long before", "no scheduler"],
)
def test_a_lost_warning_is_made_up_for(end, lead, slurm_job, warned, slurm):
    (slurm / "job").write_text(shown(end))
    surroundings = slurm_environment(slurm, GRAFT_SIGNAL_LEAD=lead, **({"SLURM_JOB_ID": "9"} if slurm_job else {}))
    code = WARN if warned else WARN.replace("+ 20", "+ 2")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == (["12"] if warned else [])
    assert bool(calls(slurm)) == slurm_job
