"""Both ends of the pipe to a process that runs math-verify; it may be killed at any moment, and nothing else lives in it.

``Worker`` is the parent's end. ``main`` is the process, started by file name without any import of the package:
``verifier_worker.py MEMORY_MB CPU_SECONDS_PER_ANSWER``. A request is the JSON line ``[number, gold, answer]``, its reply
``[number, word]`` with a word of equal, different, parse error; the first line out is ``[0, "ready"]``. The process ends when its
input ends. A parent that vanishes during a hanging answer cannot kill it any more, so the kernel's CPU limit does, which also works
while one long integer operation keeps the interpreter from running anything else.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

# Sent by terminals and batch systems to every process of a job, so that the job can write a checkpoint. The worker has nothing
# to save, and its death would be an answer that scores 0; it leaves by end of input or SIGKILL.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
EXIT_OUT_OF_MEMORY = 3
START_LIMIT_S = 30.0
CROWDED = 12.0
CPU_MARGIN_S = 5  # beyond the limit of one answer: the worker's own end is for the case that no parent is left


class Worker:
    """The parent's end: one math-verify process, started by the first question. Any failure leaves it dead; the next question starts a fresh one.

    The caller holds ``lock`` around everything but ``abandon``.
    """

    def __init__(self, timeout_s: float, memory_mb: int):
        self.lock = threading.Lock()
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._number = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(self, gold: str, answer: str) -> str:
        """A word of HOWS."""
        try:
            process = self._running()
            self._number += 1
            clock = _Clock(process.pid, self._timeout_s)
            self._send(process, json.dumps([self._number, gold, answer]).encode() + b"\n", clock)
            return self._receive(process, self._number, clock)
        except TimeoutError:
            how = "timeout"
        except (BrokenPipeError, EOFError):
            how = "worker died"
        except BaseException:  # an interrupt: the reply of this question must never be read as that of the next
            self.stop()
            raise
        self.stop()
        return how

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        limits = [str(self._memory_mb), str(math.ceil(self._timeout_s) + CPU_MARGIN_S)]
        # Blocked signals stay blocked in the worker, which so survives those that come before it can ignore them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", __file__, *limits],  # -P: this folder's types.py must not shadow the standard one
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # A fixed hash seed: sympy's order of terms follows it. One thread: each one reserves address space.
                env=os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)  # a long answer must not wait for a worker that does not read
        try:
            self._receive(process, 0, _Clock(process.pid, START_LIMIT_S))
        except (TimeoutError, EOFError) as e:
            self.stop()
            reason = "did not start within its limit" if isinstance(e, TimeoutError) else "died while starting"
            command = f"{sys.executable} -P {__file__} {' '.join(limits)}"
            raise RuntimeError(f"the verification worker {reason}; no answer can be judged. See why with: {command}") from e
        self._number = 0
        return process

    def _send(self, process: subprocess.Popen[bytes], data: bytes, clock: _Clock) -> None:
        assert process.stdin is not None
        fd = process.stdin.fileno()
        while data:
            _wait(fd, select.POLLOUT, clock)
            data = data[os.write(fd, data[: select.PIPE_BUF]) :]  # poll promises room for this much, not for all

    def _receive(self, process: subprocess.Popen[bytes], number: int, clock: _Clock) -> str:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        while b"\n" not in self._buffer:
            _wait(fd, select.POLLIN, clock)
            chunk = os.read(fd, 65536)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        replied, word = json.loads(line)
        if replied != number:
            raise RuntimeError(f"verification worker: the reply to question {replied} came for question {number}")
        return str(word)

    def stop(self) -> None:
        """Kill the process and wait for its end: no zombie is left."""
        process, self._process, self._buffer = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            _close_pipes(process)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's process without touching it, so that it still sees the parent's end."""
        process, self._process, self._buffer = self._process, None, b""
        self.lock = threading.Lock()  # the old one may have been held by a thread that does not exist here
        if process is not None:
            _close_pipes(process)
            process.returncode = 0  # not this process's child: nothing to wait for


class _Clock:
    """The time left for one question: wall-clock time, and beyond the limit as long as the worker was kept from running.

    A hanging answer on a free machine costs its limit. On a crowded one wall-clock time alone would turn right answers into
    timeouts, and a reward would depend on what else runs; so the worker gets the limit as processor time, within
    ``CROWDED`` times the limit of wall-clock time (which also ends a worker that is stopped and will never use any).
    """

    def __init__(self, pid: int, limit_s: float):
        self._pid, self._limit_s = pid, limit_s
        self._started, self._used = time.monotonic(), _cpu_seconds(pid)

    def left(self) -> float:
        spent = time.monotonic() - self._started
        if spent < self._limit_s:
            return self._limit_s - spent
        return min(self._limit_s - (_cpu_seconds(self._pid) - self._used), CROWDED * self._limit_s - spent)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; of one that has ended, infinity."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(fd: int, event: int, clock: _Clock) -> None:
    poll = select.poll()  # unlike select.select, good for descriptors above 1023, which a large job has
    poll.register(fd, event)
    while (left := clock.left()) > 0:
        if poll.poll(math.ceil(left * 1000)):
            return
    raise TimeoutError


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def judge(gold: str, answer: str) -> str:
    """math-verify on ``\\boxed{gold}`` and ``\\boxed{answer}``; gold first, since its verify is order-sensitive.

    "parse error": not equal, and one side has no expression. math-verify then compares strings, so a gold that does not parse
    still equals its own text. Its own time limits are off (they need the main thread and signals): the parent owns the clock.
    """
    from math_verify import verify
    from sympy.core.random import seed

    seed(0)  # sympy tests equality at random points: a verdict must not depend on the answers before it
    reference, given = _parsed(gold), _parsed(answer)
    with _guarded_numbers():
        equal = verify(reference, given, timeout_seconds=None)
    if equal and (reference[-1:] == given[-1:] or (reads_whole(gold) and reads_whole(answer))):
        return "equal"
    parsed = all(any(not isinstance(value, str) for value in side) for side in (reference, given))
    return "different" if parsed else "parse error"


@lru_cache(maxsize=64)  # the gold comes again with every other answer of its group
def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    return list(parse(f"\\boxed{{{text}}}", parsing_timeout=None))


@contextmanager
def _guarded_numbers() -> Iterator[None]:
    """math-verify's numeric comparison with ``close`` behind it, wherever it is used: in sets, tuples, equations, matrices."""
    from math_verify import grader
    from sympy import Expr

    original = grader.sympy_numeric_eq

    def guarded(a: Any, b: Any, *settings: Any, **more: Any) -> bool:
        equal = bool(original(a, b, *settings, **more))
        return equal and (not isinstance(a, Expr) or not isinstance(b, Expr) or close(a, b))

    grader.sympy_numeric_eq = guarded
    try:
        yield
    finally:
        grader.sympy_numeric_eq = original


def close(a: Any, b: Any) -> bool:
    """Whether two expressions that agree to 6 decimals (floats) or 15 (others) also agree in proportion, at one point of their
    symbols: to a thousandth with floats, to 1e-12 without. True where they have no values there."""
    from sympy import Float, Rational, simplify

    point = {s: Rational(7919 + 104 * i, 5701) for i, s in enumerate(sorted(a.free_symbols | b.free_symbols, key=str))}
    try:
        x, y = (side.doit().subs(point).evalf(30) for side in (a, b))
        tolerance = 1e-3 if a.has(Float) or b.has(Float) else 1e-12
        if bool(abs(x - y) <= tolerance * max(abs(x), abs(y))):
            return True
        return simplify(a - b) == 0  # a zero that only cancellation shows has no proportion
    except Exception:
        return True


def reads_whole(text: str) -> bool:
    """Whether math-verify's LaTeX parser reads all of ``text``; where it does not, math-verify falls back to the first number or
    fraction that it finds in it."""
    from dataclasses import replace

    from latex2sympy2_extended.latex2sympy2 import normalize_latex
    from math_verify.parser import LatexExtractionConfig, parse_latex_cached

    config = replace(LatexExtractionConfig().normalization_config, boxed="last")
    try:
        return parse_latex_cached(normalize_latex(f"\\boxed{{{text}}}", config=config)) is not None
    except Exception:
        return False


def reply_to(line: str) -> str:
    """The reply to one request line."""
    number, gold, answer = json.loads(line)
    try:
        word = judge(gold, answer)
    except MemoryError:
        raise SystemExit(EXIT_OUT_OF_MEMORY) from None  # the parent reports a dead worker and starts a fresh one
    except Exception:  # math-verify returns its own errors as "no"; what escapes is an input that it cannot read
        word = "parse error"
    return json.dumps([number, word])


def limit_process(memory_mb: int) -> None:
    """Address space limited, no core files, deaf to the job's signals."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu(seconds: int) -> None:
    """The kernel kills this process after ``seconds`` more of CPU time."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def main() -> None:
    """Answer questions from stdin until it ends. Arguments: address-space limit in MB, CPU limit in seconds."""
    memory_mb, cpu_seconds = map(int, sys.argv[1:])
    limit_process(memory_mb)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may reach the protocol
    logging.disable(logging.CRITICAL)
    judge(r"\frac{x}{2}", r"\sqrt{2} + (1, 2)")  # import and warm up before the first answer's clock starts
    print(json.dumps([0, "ready"]), file=replies, flush=True)
    for line in sys.stdin:
        limit_cpu(cpu_seconds)
        print(reply_to(line), file=replies, flush=True)


if __name__ == "__main__":
    main()
