"""The judgement: extraction, math-verify underneath, time limits that cost nobody else, recovery after a kill."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from graft import verifier as module, verifier_worker as worker_module
from graft.verifier import HOWS, Verifier, extract_boxed, verify
from graft.verifier_worker import judge, reply_to

HANG = r"\sum_{k=1}^{10^{9}} k^{k}"  # no rule refuses it
TOWER = "9^{9^{9^9}}"


@pytest.fixture(scope="module")
def verifier():
    with Verifier(timeout_s=10.0) as v:
        yield v


def boxed(answer):
    return f"So the answer is \\boxed{{{answer}}}."


def pid_of(verifier):
    return verifier._workers[0].pid


def gone(pid):
    """No process and no zombie."""
    return not Path(f"/proc/{pid}").exists()


def wait_for(condition, limit_s=15.0):
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", None),  # the last box decides, an unterminated one is not rescued
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.} {", r"\left\{ x \right."),
        (r"\boxed{a \\{b} c}", r"a \\{b} c"),  # an escaped backslash, then a brace that counts
        ("\\boxed{1\n+ {2}}", "1\n+ {2}"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed 5", None),
        (r"\fbox{5}", "5"),
        (r"\boxed{4} or \fbox{5}", "5"),
        (r"\fbox{4} or \boxed {5}", "5"),
        (r"\boxed{4} but \fbox{5", None),
        (r"Write \boxed . Then \boxed{5}", "5"),
        ("no box, just 12", None),
        (r"\boxed{}", ""),
        ("\\boxed{" * 3 + "\\", None),
        ("", None),
    ],
)
def test_extraction(text, content):
    assert extract_boxed(text) == content


@pytest.mark.parametrize(
    ("gold", "answer", "how"),
    [
        ("12", "12", "equal"),
        ("27", "027", "equal"),
        ("27", "27.0", "equal"),
        ("0", "-0", "equal"),
        (r"\frac{1}{2}", "0.5", "equal"),
        (r"\frac{1}{2}", r"\frac{1}{3}", "different"),
        ("12", "1", "different"),
        ("1", "12", "different"),
        ("12", "", "parse error"),
        ("12", " ", "parse error"),
        ("12", "None", "different"),
        ("(1,2)", "(2,1)", "different"),
        ("x+1", "1+x", "equal"),
        (r"\begin{cases}", "3", "parse error"),  # a gold that does not parse
        (r"\begin{cases}", r"\begin{cases}", "equal"),  # unless it is the same text
        (TOWER, TOWER, "equal"),
        ("1", TOWER, "too large"),
        ("\ud800", "x", "parse error"),  # a lone surrogate, as byte-level tokenizers can make it
    ],
)
def test_verdicts(verifier, gold, answer, how):
    verdict = verifier.verify(gold, boxed(answer))
    assert (verdict.how, verdict.correct, verdict.extracted) == (how, how == "equal", answer)
    assert how in HOWS


def test_gold_goes_first(verifier):
    """An assignment as the answer to a plain gold is accepted, the reverse is not: math-verify is order-sensitive."""
    pairs = [(g, a) for g, a in [("5", "x=5"), ("x=5", "5"), ("(1,2)", "1<x<2"), ("1<x<2", "(1,2)")]]
    assert [verifier.verify(g, boxed(a)).how for g, a in pairs] == [judge(g, a) for g, a in pairs]
    assert {judge(g, a) == judge(a, g) for g, a in pairs} >= {False}


def test_bare_number_outside_a_box_does_not_count(verifier):
    assert verifier.verify("12", "It is 12.").how == "boxed missing"


@pytest.mark.parametrize(
    ("golds", "answer", "how"),
    [
        (("1", "x+1"), "1+x", "equal"),  # by math-verify, after a first gold that is decided at sight
        (("x+1", "1"), "1", "equal"),
        (("1", "x+1"), "2", "different"),  # from both
        (("x+1", "x+2"), r"\frac", "parse error"),
        # an answer that one alternative cannot judge is not different, whatever the other says
        (("1", TOWER), "2", "too large"),
        ((TOWER, "1"), "2", "too large"),
        ((TOWER, "2"), "2", "equal"),
        (("x+1",), "1+x", "equal"),
    ],
)
def test_one_of_several_golds_is_enough(verifier, golds, answer, how):
    verdict = verifier.verify(golds, boxed(answer))
    assert (verdict.how, verdict.correct, verdict.extracted) == (how, how == "equal", answer)


def test_several_golds_count_as_one_judgement_and_need_a_box():
    with Verifier() as v:
        pairs = [(("1", "2"), boxed("2")), (("1", "2"), "It is 2."), ("2", boxed("2")), (("1", "2"), boxed("3"))]
        assert [w.how for w in v.verify_many(pairs)] == ["equal", "boxed missing", "equal", "different"]
        assert v.counts == {"equal": 2, "boxed missing": 1, "different": 1}


def test_of_two_golds_without_a_judgement_the_graver_word_stands(monkeypatch):
    words = {"x_1": "parse error", "x_2": "timeout", "x_3": "different", "x_4": "worker died", "x_5": "equal"}
    with Verifier() as v:
        monkeypatch.setattr(v._workers[0], "ask", lambda gold, _: words[gold])
        asked = [("x_1", "x_3"), ("x_1", "x_2"), ("x_3", "x_2", "x_3"), ("x_2", "x_4"), ("x_4", "x_5"), ("x_3", "x_3")]
        found = [v.verify(golds, boxed("y_1")).how for golds in asked]
    assert found == ["parse error", "timeout", "timeout", "worker died", "equal", "different"]


def test_what_is_remembered_is_each_alternatives_own(monkeypatch):
    asked = []

    def ask(gold, answer):
        asked.append((gold, answer))
        return "equal" if (gold, answer) in (("x_1", "y_1"), ("x_2", "y_2")) else "different"

    with Verifier() as v:
        monkeypatch.setattr(v._workers[0], "ask", ask)
        assert not v.verify("x_1", boxed("y_2")).correct
        # the same first gold and answer as above: its "different" must not stand for the second gold
        assert v.verify(("x_1", "x_2"), boxed("y_2")).correct
        assert not v.verify(("x_1", "x_3"), boxed("y_2")).correct
        assert v.verify(("x_1", "x_2"), boxed("y_1")).correct
        # the first gold is asked first, the second only where the first did not accept, and nothing twice
        assert asked == [("x_1", "y_2"), ("x_2", "y_2"), ("x_3", "y_2"), ("x_1", "y_1")]
        assert v.cache_hits == 2


@pytest.mark.parametrize("gold", ["", "  ", None, (), ("1", " "), ["1", "2"]])
def test_empty_gold_is_an_error_and_judges_nothing(gold):
    with Verifier() as v:
        with pytest.raises(ValueError, match=r"pair 1: the gold answer is empty"):
            v.verify_many([("x", boxed("x")), (gold, boxed("1"))])
        assert not v.counts
        assert pid_of(v) is None


digits = st.integers(0, 10**15 - 1) | st.integers(0, 99)


@settings(max_examples=150)
@given(digits, digits, st.sampled_from(["", "-"]), st.sampled_from(["", "-"]), st.sampled_from(["", "0", "00"]))
def test_integer_shortcut_says_what_math_verify_says(a, b, sign_a, sign_b, zeros):
    for other in (b, a, a + 1):
        gold, answer = f"{sign_a}{a}", f"{sign_b}{zeros}{other}"
        for pair in ((gold, answer), (answer, gold)):
            assert module._at_sight(pair)[0] == judge(*pair)


def test_hanging_answer_times_out_alone_and_once():
    with Verifier(timeout_s=1.0) as v:
        v.verify("x", boxed("{x}"))  # the worker is up
        verdicts = v.verify_many([("7", boxed(HANG)), ("x+1", boxed("1+x")), ("7", boxed(HANG)), ("x_1", boxed("y_1"))])
    assert [w.how for w in verdicts] == ["timeout", "equal", "timeout", "different"]
    assert not verdicts[0].correct
    assert v.counts == {"equal": 2, "timeout": 2, "different": 1}
    assert verdicts[0].seconds >= 1.0
    assert verdicts[2].seconds == 0.0  # the same answer is not waited for twice


def test_worker_that_does_not_read_is_timed_out_too():
    """The limit holds for the question as well: a long one does not fit into the pipe of a stopped worker."""
    with Verifier(timeout_s=0.3) as v:
        v.verify("x", boxed("{x}"))
        os.kill(pid_of(v), signal.SIGSTOP)
        assert v._judge_all([("x", "y" * 1_000_000)])["x", "y" * 1_000_000][0] == "timeout"
        assert v.verify("x", boxed("{x}")).correct


def test_worker_that_a_crowded_machine_kept_from_running_is_waited_for():
    with Verifier(timeout_s=0.3) as v:
        v.verify("x", boxed("{x}"))
        pid = pid_of(v)
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.9, os.kill, (pid, signal.SIGCONT)).start()
        verdict = v.verify("x+1", boxed("1+x"))
    assert verdict.correct
    assert verdict.seconds > 0.3


def test_worker_killed_between_questions_is_replaced_unseen(verifier):
    assert verifier.verify("a", boxed("{a}")).correct
    os.kill(pid_of(verifier), signal.SIGKILL)
    verifier._workers[0]._process.wait()
    assert verifier.verify(r"\sqrt{4}", boxed("2")).correct


@pytest.mark.slow
def test_worker_that_dies_while_judging_is_said_so_and_not_remembered():
    with Verifier(timeout_s=1.5) as v:
        v.verify("a", boxed("{a}"))
        threading.Timer(0.3, os.kill, (pid_of(v), signal.SIGKILL)).start()
        assert v.verify("7", boxed(HANG)).how == "worker died"
        assert v.verify("x+2", boxed("2+x")).correct
        assert v.verify("7", boxed(HANG)).how == "timeout"


def test_interrupted_caller_leaves_no_reply_for_the_next_question():
    class Stop(Exception):
        pass

    def interrupt(*_):
        raise Stop

    with Verifier(timeout_s=20.0) as v:
        v.verify("x", boxed("{x}"))
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Stop):
                v.verify("7", boxed(HANG))
        finally:
            signal.signal(signal.SIGALRM, before)
        pairs = [("x_1", "y_1"), ("a", "{a}"), ("b_1", "c_1")]
        assert [w.how for w in v.verify_many([(g, boxed(a)) for g, a in pairs])] == ["different", "equal", "different"]


def test_reply_to_another_question_is_refused(verifier):
    verifier.verify("x", boxed("{x}"))
    verifier._workers[0]._buffer = b'[999, "equal"]\n'
    with pytest.raises(RuntimeError, match="999"):
        verifier.verify("x_1", boxed("z_1"))
    assert verifier.verify("x_1", boxed("z_1")).how == "different"


def test_signals_of_the_job_do_not_reach_the_worker(verifier):
    """Batch systems signal every process of a job before its time is up; the answers in hand must not score 0 for it."""
    verifier.verify("x", boxed("{x}"))
    pid = pid_of(verifier)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    assert verifier.verify("x+7", boxed("7+x")).correct
    assert pid_of(verifier) == pid


def test_worker_is_limited_in_memory_and_time(verifier):
    verifier.verify("x_1", boxed("{x}_1"))
    limits = {
        line[:25].strip(): line[25:].split()[0] for line in Path(f"/proc/{pid_of(verifier)}/limits").read_text().splitlines()
    }
    assert limits["Max address space"] == str(2048 * 2**20)
    assert int(limits["Max cpu time"]) < 60


def test_out_of_memory_ends_the_worker(monkeypatch):
    def full(gold, answer):
        raise MemoryError

    monkeypatch.setattr("graft.verifier_worker.judge", full)
    with pytest.raises(SystemExit):
        reply_to(json.dumps([1, "x", "y"]))


def test_worker_that_cannot_start_is_an_error_and_no_verdict():
    with Verifier(memory_mb=8) as v, pytest.raises(RuntimeError, match="died while starting"):
        v.verify("x_1", boxed("y_1"))
    assert not v.counts


def test_repeated_pairs_are_judged_once_and_counted():
    with Verifier() as v:
        first, again, other = v.verify_many([("x", boxed("{x} ")), ("x", boxed("{x}")), ("x_1", boxed("y_1"))])
        assert (first.how, again.how, other.how) == ("equal", "equal", "different")
        assert (again.extracted, again.seconds, v.cache_hits) == ("{x}", 0.0, 1)
        assert v.verify("x_1", boxed("y_1")).how == "different"
        assert v.verify("7", boxed("7")).correct  # decided at sight: neither judged nor remembered
        assert v.cache_hits == 2


@pytest.mark.slow
def test_several_workers_keep_the_order():
    pairs = [(f"x_1+{i}", boxed(f"{i if i % 3 else i + 1}+x_1")) for i in range(24)]
    with Verifier(workers=2) as v:
        assert [w.correct for w in v.verify_many(pairs)] == [i % 3 != 0 for i in range(24)]
        pids = [w.pid for w in v._workers]
    assert None not in pids
    assert all(map(gone, pids))


def test_threads_get_their_own_verdicts(verifier):
    seen = {}

    def ask(i):
        seen[i] = [verifier.verify(f"k_{i}", boxed(f"{{k_{j}}}")).correct for j in range(4)]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {i: [i == j for j in range(4)] for i in range(4)}


@pytest.mark.slow
def test_hanging_answer_of_another_thread_delays_nobody_else():
    with Verifier(workers=2, timeout_s=3.0) as v:
        v.verify_many([("x_1", boxed(f"x_{i}")) for i in range(2, 9)])
        asking = threading.Thread(target=v.verify, args=("7", boxed(HANG)))
        asking.start()
        assert wait_for(lambda: any(w.lock.locked() for w in v._workers))
        assert all(w.how == "different" for w in v.verify_many([("y_0", boxed(f"y_{i}")) for i in range(1, 12)]))
        assert v.verify("z_1", boxed("z_2")).how == "different"
        assert asking.is_alive()
        asking.join()
        assert v.counts["timeout"] == 1


def test_works_under_asyncio(verifier):
    """On the event loop itself, and beside it in threads."""

    async def ask():
        here = verifier.verify("m+1", boxed("1+m"))
        beside = await asyncio.gather(*(asyncio.to_thread(verifier.verify, f"{i}+q", boxed(f"q+{i}")) for i in range(4)))
        return [here, *beside]

    assert all(w.correct for w in asyncio.run(ask()))


WORKER_OF_ANOTHER_FRAMEWORK = """
import multiprocessing, os, threading
def score(pairs, found):
    from graft.verifier import Verifier
    with Verifier(workers=2) as v:
        verdicts = []
        t = threading.Thread(target=lambda: verdicts.extend(v.verify_many(pairs))); t.start(); t.join()
    found.put([w.how for w in verdicts])
if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        found = context.Queue()
        p = context.Process(target=score, args=([("x+1", r"\\boxed{1+x}"), ("x", r"\\boxed{y}"), ("2", "2")], found))
        p.start(); print(method, found.get(timeout=60)); p.join()
"""


@pytest.mark.slow
def test_works_in_the_worker_process_of_a_framework(tmp_path):
    """As Ray and its like run rewards: in a spawned or forked process without a terminal, off the main thread."""
    script = tmp_path / "framework.py"
    script.write_text(WORKER_OF_ANOTHER_FRAMEWORK)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(root)},
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{m} ['equal', 'different', 'boxed missing']" for m in ("spawn", "forkserver", "fork")]


@pytest.mark.slow
def test_works_in_a_process_forked_while_another_thread_asks():
    with Verifier(timeout_s=2.0) as v:
        v.verify("q", boxed("{q}"))
        pid = pid_of(v)
        asking = threading.Thread(target=v.verify, args=("7", boxed(HANG)))
        asking.start()
        assert wait_for(v._workers[0].lock.locked)
        child = os.fork()
        if child == 0:
            ok = v.verify("x+1", boxed("1+x")).correct and pid_of(v) != pid
            v.close()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        asking.join()
        assert v.counts["timeout"] == 1
        assert v.verify("x+2", boxed("2+x")).correct


@pytest.mark.slow
def test_close_leaves_no_process_and_no_descriptor():
    v = Verifier()
    before = len(os.listdir("/proc/self/fd"))
    v.verify("a_1", boxed("b_1"))
    pid = pid_of(v)
    v.close()
    assert gone(pid)
    assert len(os.listdir("/proc/self/fd")) == before
    assert v.verify("a_1", boxed("c_1")).how == "different"  # and it may be used again
    v.close()


@pytest.mark.slow
def test_verifier_dropped_without_close_leaves_no_process():
    v = Verifier()
    v.verify("a_1", boxed("b_1"))
    pid = pid_of(v)
    del v
    gc.collect()
    assert gone(pid)


def test_end_of_the_program_leaves_no_process():
    code = r"from graft.verifier import Verifier; v = Verifier(); v.verify('a_1', r'\boxed{c_1}'); print(v._workers[0].pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert gone(int(done.stdout))


@pytest.mark.parametrize("answer", ["b_1", HANG])
def test_worker_ends_when_its_parent_is_killed(answer):
    """Idle it sees the end of its input; with a hanging answer in hand the kernel's CPU limit ends it."""
    code = (
        "import os, threading; from graft.verifier import Verifier; import graft.verifier_worker as m; m.CPU_MARGIN_S = 0\n"
        "v = Verifier(timeout_s=1.5); v.verify('a_1', r'\\boxed{c_1}'); print(v._workers[0].pid, flush=True)\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()\n"
        f"v.verify('a_1', {chr(92) + 'boxed{' + answer + '}'!r}); threading.Event().wait()"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    assert wait_for(lambda: gone(int(parent.stdout)))


def test_worker_needs_neither_torch_nor_the_package():
    code = "import sys, runpy; sys.argv = ['w', '2048', '9']; runpy.run_path(FILE, run_name='__main__')"
    code = code.replace("FILE", repr(worker_module.__file__)) + "; print([m for m in ('torch', 'graft') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], input="", capture_output=True, text=True, cwd="/")
    assert done.stdout.splitlines() == ['[0, "ready"]'], done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "[]"  # what is printed goes to stderr, not into the protocol


def test_process_wide_verify_and_a_given_one():
    assert verify("8", boxed("8")).correct
    with Verifier() as v:
        assert not verify("x", boxed("y"), verifier=v).correct
        assert v.counts == {"different": 1}


def test_decisions_at_sight_and_from_memory_cost_microseconds():
    with Verifier() as v:
        pairs = [("7", boxed("7")), ("x_1", boxed("y_1"))] * 2000
        v.verify_many(pairs[:2])
        started = time.process_time()
        v.verify_many(pairs)
        assert (time.process_time() - started) / len(pairs) < 1e-4
