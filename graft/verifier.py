"""Answer extraction and verification in killable worker processes.

The reward and the score are one judgement: the last ``\\boxed{}`` of a response against the gold answer, by math-verify.

Why processes. math-verify may run for ever or fill the memory on an answer that a model made up, and its own time limit is a
signal, which works in the main thread only. So it runs in a subprocess (``verifier_worker.py``) that speaks JSON lines over pipes:
no pickle, no signals, no import of the caller's main module; it works from any thread and after a fork. The parent owns the clock.
An answer past its limit is ``timeout``, one whose worker dies is ``worker died``; both score 0, are counted apart from wrong
answers, and cost nobody else: the worker is killed and the next answer gets a fresh one. The worker's address space is limited.
A worker is also killed when its caller is interrupted by an exception, for its late reply would answer the next question.

What is decided without math-verify: a response without a box, and two plain decimal integers, compared as integers; a test
holds this shortcut against math-verify, accept and reject. A gold that does not parse is ``parse error`` and not correct, unless
the answer is the same text.

Identical (gold, answer) pairs are judged once per verifier. A timeout is remembered too: a hanging answer repeated in a group
costs its limit once. A worker's death is not: it may come from outside (the system's memory killer) and say nothing of the answer.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from graft.types import Verdict

HOWS = ("equal", "different", "boxed missing", "parse error", "timeout", "worker died")
BOXED = "\\boxed{"
INTEGER = re.compile(r"-?[0-9]{1,15}")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is matched, so that it cannot count as a brace
WORKER_FILE = Path(__file__).with_name("verifier_worker.py")
START_LIMIT_S = 60.0
CPU_MARGIN_S = 5  # beyond the wall-clock limit: the worker's own end is for the case that no parent is left
CACHE_ENTRIES = 200_000

Key = tuple[str, str]


def extract_boxed(text: str) -> str | None:
    """Content of the LAST ``\\boxed{...}`` with balanced braces (``\\{`` and ``\\}`` do not count). None when there is no box or
    the last one is unterminated: an earlier box does not rescue it. Of nested boxes the inner one is the last."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    depth, start = 1, start + len(BOXED)
    for match in BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return text[start : match.start()]
    return None


class _Worker:
    """One math-verify process, started by the first question. Any failure leaves it dead; the next question starts a fresh one.

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
            deadline = time.monotonic() + self._timeout_s
            self._send(process, json.dumps([self._number, gold, answer]).encode() + b"\n", deadline)
            return self._receive(process, self._number, deadline)
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
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER_FILE), *limits],  # -P: this folder's types.py must not shadow the standard one
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A fixed hash seed: sympy's order of terms follows it. One thread: each one reserves address space.
            env=os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)  # a long answer must not wait for a worker that does not read
        try:
            self._receive(process, 0, time.monotonic() + START_LIMIT_S)
        except (TimeoutError, EOFError) as e:
            self.stop()
            reason = "did not start within its limit" if isinstance(e, TimeoutError) else "died while starting"
            command = f"{sys.executable} -P {WORKER_FILE} {' '.join(limits)}"
            raise RuntimeError(f"the verification worker {reason}; no answer can be judged. See why with: {command}") from e
        self._number = 0
        return process

    def _send(self, process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        assert process.stdin is not None
        fd = process.stdin.fileno()
        while data:
            _wait(fd, select.POLLOUT, deadline)
            data = data[os.write(fd, data[: select.PIPE_BUF]) :]  # poll promises room for this much, not for all

    def _receive(self, process: subprocess.Popen[bytes], number: int, deadline: float) -> str:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        while b"\n" not in self._buffer:
            _wait(fd, select.POLLIN, deadline)
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


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()  # unlike select.select, good for descriptors above 1023, which a large job has
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Verifier:
    """Judges responses. Thread-safe; workers start with the first answer that needs one. Use as a context manager.

    ``workers``: processes that ``verify_many`` uses at once. ``timeout_s``: wall-clock limit of one answer. ``memory_mb``: limit of
    a worker's address space. ``counts``: verdicts by ``how``; ``cache_hits``: verdicts that were remembered, not judged.
    """

    def __init__(self, *, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 2048):
        if workers < 1 or not timeout_s > 0 or memory_mb < 1:
            raise ValueError(f"workers {workers}, timeout_s {timeout_s}, memory_mb {memory_mb}: all must be positive")
        self.counts: Counter[str] = Counter()
        self.cache_hits = 0
        self._workers = tuple(_Worker(timeout_s, memory_mb) for _ in range(workers))
        self._cache: dict[Key, str] = {}
        self._lock = threading.Lock()  # counters and cache; never held while a worker thinks
        _verifiers.add(self)

    def verify(self, gold: str, response: str) -> Verdict:
        """One verdict; ValueError when the gold is empty (an empty gold would accept nothing or everything)."""
        return self.verify_many([(gold, response)])[0]

    def verify_many(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (gold, response) pairs, in order. ``seconds`` is the time of the judgement, 0 where none was needed."""
        for i, (gold, _) in enumerate(pairs):
            if not isinstance(gold, str) or not gold.strip():
                raise ValueError(f"pair {i}: the gold answer is empty ({gold!r}); correct the item, it cannot be verified")
        extracted = [extract_boxed(response) for _, response in pairs]
        keys = [(gold.strip(), "" if answer is None else answer.strip()) for (gold, _), answer in zip(pairs, extracted)]
        hows = ["boxed missing" if answer is None else _at_sight(key) for answer, key in zip(extracted, keys)]
        asked = [key for key, how in zip(keys, hows) if how is None]
        judged = self._judge_all(asked) if asked else {}
        seconds = {key: spent for key, (_, spent) in judged.items()}  # of a key's several pairs the first one pays
        words = [how or judged[key][0] for key, how in zip(keys, hows)]
        with self._lock:
            self.counts.update(words)
            self.cache_hits += len(asked) - sum(spent > 0 for _, spent in judged.values())
        return [Verdict(w == "equal", x, w, seconds.pop(key, 0.0)) for w, x, key in zip(words, extracted, keys)]

    def _judge_all(self, asked: list[Key]) -> dict[Key, tuple[str, float]]:
        """{key: (how, seconds)}; 0 seconds exactly if remembered. Each worker takes the next key when it is free."""
        known = {key: self._cache.get(key) for key in asked}
        judged = {key: (how, 0.0) for key, how in known.items() if how is not None}
        waiting = deque(key for key, how in known.items() if how is None)
        lanes = self._workers[: len(waiting)]
        if len(lanes) <= 1:
            self._serve(_free(self._workers), waiting, judged)
            return judged
        with ThreadPoolExecutor(len(lanes)) as pool:
            try:
                for lane in [pool.submit(self._serve, worker, waiting, judged) for worker in lanes]:
                    lane.result()
            finally:
                waiting.clear()  # after an interrupt the lanes stop at their next answer
        return judged

    def _serve(self, worker: _Worker, waiting: deque[Key], judged: dict[Key, tuple[str, float]]) -> None:
        while True:
            try:
                key = waiting.popleft()
            except IndexError:
                return
            with worker.lock:
                how, spent = self._cache.get(key), 0.0  # another thread may have asked meanwhile
                if how is None:
                    started = time.perf_counter()
                    how = worker.ask(*key)
                    spent = time.perf_counter() - started
                    self._remember(key, how)
            judged[key] = (how, spent)

    def _remember(self, key: Key, how: str) -> None:
        if how != "worker died":
            with self._lock:
                if len(self._cache) >= CACHE_ENTRIES:
                    del self._cache[next(iter(self._cache))]
                self._cache[key] = how

    def close(self) -> None:
        """Stop the workers, each after the answer it has in hand. The verifier may be used again; it then starts others."""
        for worker in self._workers:
            with worker.lock:
                worker.stop()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        for worker in self._workers:
            worker.abandon()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _at_sight(key: Key) -> str | None:
    """The verdict that needs no math-verify, or None."""
    gold, answer = key
    if not answer:
        return "parse error"
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):
        return "equal" if int(gold) == int(answer) else "different"
    return None


def _free(workers: Sequence[_Worker]) -> _Worker:
    """The first worker that nobody uses, else the first: a lone caller keeps to one process."""
    return next((w for w in workers if not w.lock.locked()), workers[0])


_verifiers: weakref.WeakSet[Verifier] = weakref.WeakSet()
_default: Verifier | None = None
_default_lock = threading.Lock()


@atexit.register
def _close_all() -> None:
    for verifier in list(_verifiers):
        verifier.close()


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for verifier in list(_verifiers):
        verifier._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def verify(gold: str, response: str, *, verifier: Verifier | None = None) -> Verdict:
    """Judge one response, with a process-wide verifier unless one is given."""
    global _default
    if verifier is None:
        with _default_lock:
            verifier = _default = _default or Verifier()
    return verifier.verify(gold, response)
