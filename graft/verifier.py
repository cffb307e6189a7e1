"""Answer extraction and verification in killable worker processes.

The reward and the score are one judgement: the last ``\\boxed{}`` of a response against the gold answer, by math-verify.

Why processes. math-verify may run for ever or fill the memory on an answer that a model made up, and its own time limit is a
signal, which works in the main thread only. So it runs in a subprocess (``verifier_worker.py``) that speaks JSON lines over pipes:
no pickle, no signals, no import of the caller's main module; it works from any thread and after a fork. The parent owns the clock,
and waits longer only for a worker that a crowded machine kept from running. An answer past its limit is ``timeout``, one whose
worker dies is ``worker died``; both score 0, are counted apart from wrong answers, and cost nobody else: the worker is killed and
the next answer gets a fresh one. The worker's address space is limited. A worker is also killed when its caller is interrupted by
an exception, for its late reply would answer the next question.

What is decided without math-verify: a response without a box, and two plain decimal integers, compared as integers; a test
holds this shortcut against math-verify, accept and reject. A gold that does not parse is ``parse error`` and not correct, unless
the answer is the same text.

Identical (gold, answer) pairs are judged once per verifier. A timeout is remembered too: a hanging answer repeated in a group
costs its limit once. A worker's death is not: it may come from outside (the system's memory killer) and say nothing of the answer.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from graft.types import Verdict
from graft.verifier_worker import Worker

HOWS = ("equal", "different", "boxed missing", "parse error", "timeout", "worker died")
BOXED = "\\boxed{"
INTEGER = re.compile(r"-?[0-9]{1,15}")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is matched, so that it cannot count as a brace
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


class Verifier:
    """Judges responses. Thread-safe; workers start with the first answer that needs one. Use as a context manager.

    ``workers``: processes that ``verify_many`` uses at once. ``timeout_s``: limit of one answer (wall-clock; see
    ``verifier_worker`` for crowded machines). ``memory_mb``: limit of a worker's address space. ``counts``: verdicts by ``how``;
    ``cache_hits``: verdicts that were remembered, not judged.
    """

    def __init__(self, *, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 2048):
        if workers < 1 or not timeout_s > 0 or memory_mb < 1:
            raise ValueError(f"workers {workers}, timeout_s {timeout_s}, memory_mb {memory_mb}: all must be positive")
        self.counts: Counter[str] = Counter()
        self.cache_hits = 0
        self._workers = tuple(Worker(timeout_s, memory_mb) for _ in range(workers))
        self._cache: dict[Key, str] = {}
        self._lock = threading.Lock()  # counters and cache; never held while a worker thinks
        _verifiers.add(self)
        weakref.finalize(self, _stop, self._workers)  # dropped without close, and at exit

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

    def _serve(self, worker: Worker, waiting: deque[Key], judged: dict[Key, tuple[str, float]]) -> None:
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
        _stop(self._workers)

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


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        with worker.lock:
            worker.stop()


def _free(workers: Sequence[Worker]) -> Worker:
    """The first worker that nobody uses, else the first: a lone caller keeps to one process."""
    return next((w for w in workers if not w.lock.locked()), workers[0])


_verifiers: weakref.WeakSet[Verifier] = weakref.WeakSet()
_default: Verifier | None = None
_default_lock = threading.Lock()


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
