"""The judgement: extraction, math-verify underneath, time limits that cost nobody else, recovery after a kill."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

from graft.verifier import Verifier, extract_boxed
from graft.verifier_worker import judge

HANG = "9^{9^{9^9}}"


@pytest.fixture(scope="module")
def verifier():
    with Verifier(timeout_s=5.0) as v:
        yield v


def boxed(answer):
    return f"So the answer is \\boxed{{{answer}}}."


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", None),  # the last box decides, an unterminated one is not rescued
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("no box, just 12", None),
        (r"\boxed{}", ""),
        ("", None),
    ],
)
def test_extraction(text, content):
    assert extract_boxed(text) == content


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("12", "12", True),
        ("27", "027", True),
        ("27", "27.0", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", r"\frac{1}{3}", False),
        ("12", "1", False),
        ("12", "", False),
        ("12", "None", False),
        ("(1,2)", "(2,1)", False),
        ("x+1", "1+x", True),
    ],
)
def test_verdicts(verifier, gold, answer, correct):
    assert verifier.verify(gold, boxed(answer)).correct is correct


def test_bare_number_outside_a_box_does_not_count(verifier):
    assert verifier.verify("12", "It is 12.").how == "boxed missing"


@pytest.mark.parametrize("gold", ["", "  "])
def test_empty_gold_is_an_error(verifier, gold):
    with pytest.raises(ValueError, match="gold"):
        verifier.verify(gold, boxed("1"))


# The shortcut for integers may only say what math-verify says.
@settings(max_examples=150, deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from(["", "0", "00"]))
def test_integer_shortcut_agrees_with_math_verify(a, b, zeros):
    answer = str(b) if b < 0 else zeros + str(b)
    with Verifier() as v:
        for gold in (str(a), str(b)):
            assert v.verify(gold, boxed(answer)).how == judge(gold, answer)


def test_hanging_answer_times_out_alone_and_once():
    with Verifier(timeout_s=1.0) as v:
        v.verify("x", boxed("x"))  # the worker is up
        started = time.monotonic()
        verdicts = v.verify_many([("7", boxed(HANG)), (r"\frac{1}{2}", boxed("0.5")), ("7", boxed(HANG)), ("x", boxed("y"))])
        spent = time.monotonic() - started
    assert [w.how for w in verdicts] == ["timeout", "equal", "timeout", "different"]
    assert spent < 20
    assert v.counts["timeout"] == 2
    assert verdicts[2].seconds < 0.1  # the same answer is not waited for twice


def test_killed_worker_is_replaced(verifier):
    assert verifier.verify("a", boxed("a")).correct
    os.kill(verifier._worker._process.pid, signal.SIGKILL)
    verifier._worker._process.wait()
    assert verifier.verify(r"\sqrt{4}", boxed("2")).correct


def test_worker_that_dies_while_judging_is_said_so():
    with Verifier(timeout_s=20.0) as v:
        v.verify("a", boxed("a"))
        pid = v._worker._process.pid
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        assert v.verify("7", boxed(HANG)).how == "worker died"
        assert v.verify(r"\frac{2}{4}", boxed("0.5")).correct


def test_works_from_another_thread(verifier):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(verifier.verify(r"\frac{3}{6}", boxed("0.5")).correct))
    thread.start()
    thread.join()
    assert seen == [True]


def test_works_in_a_forked_process(verifier):
    assert verifier.verify("q", boxed("q")).correct
    pid = os.fork()
    if pid == 0:
        ok = verifier.verify(r"\frac{5}{10}", boxed("0.5")).correct
        verifier._worker.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert verifier.verify(r"\frac{6}{12}", boxed("0.5")).correct


def test_close_leaves_no_process():
    v = Verifier()
    v.verify("a", boxed("b"))
    pid = v._worker._process.pid
    v.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
