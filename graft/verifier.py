"""Answer extraction and verification in killable worker processes.

The reward and the score are one judgement: the last ``\\boxed{}`` of a response against the gold answer, by math-verify.

Why processes. math-verify may run for ever or fill the memory on an answer that a model made up, and its own time limit is a
signal, which works in the main thread only. So it runs in a subprocess (``verifier_worker.py``) that speaks JSON lines over pipes:
no pickle, no signals, no import of the caller's main module; it works from any thread and after a fork. The parent owns the clock,
and waits longer only for a worker that a crowded machine kept from running. An answer past its limit is ``timeout``, one whose
worker dies is ``worker died``; both score 0, are counted apart from wrong answers, and cost nobody else: the worker is killed and
the next answer gets a fresh one. The worker's address space is limited. A worker is also killed when its caller is interrupted by
an exception, for its late reply would answer the next question.

What is decided without math-verify: a response without a box, two plain decimal integers, and what a rule of
``verifier_rules.py`` decides (the same text, exact arithmetic, notations that math-verify misreads). An answer that would need a
number of more than 300,000 digits is ``too large``: it scores 0, is counted apart, and costs no time limit. A gold that does not
parse is ``parse error`` and not correct, unless the answer is the same text.

A gold that is a tuple names alternatives, each of them alone right. They are asked in their order until one accepts. Where none
does, an alternative without a judgement (``timeout``, say) decides the word: the answer may have been right by that one.

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
from graft.verifier_rules import prepare
from graft.verifier_worker import Worker

HOWS = ("equal", "different", "boxed missing", "parse error", "too large", "timeout", "worker died")
# Without an accepting alternative the first of these that occurs is the word: an answer is different only if it is so from all.
UNJUDGED = ("worker died", "timeout", "too large", "parse error", "boxed missing")
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
INTEGER = re.compile(r"-?[0-9]{1,15}")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is matched, so that it cannot count as a brace
CACHE_ENTRIES = 200_000
WAIT_S = 0.02  # for one's own worker, before looking for another free one

Key = tuple[str, str]
Gold = str | tuple[str, ...]


def extract_boxed(text: str) -> str | None:
    """Content of the LAST ``\\boxed{...}`` or ``\\fbox{...}`` with balanced braces (``\\{`` and ``\\}`` do not count). None when there
    is no box or the last one is unterminated: an earlier box does not rescue it. Of nested boxes the inner one is the last."""
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    depth, start = 1, boxes[-1].end()
    for match in BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return text[start : match.start()]
    return None


class Verifier:
    """Judges responses. Thread-safe; workers start with the first answer that needs one. Use as a context manager.

    ``workers``: processes that ``verify_many`` uses at once. ``timeout_s``: limit of one answer (wall-clock; see
    ``verifier_worker`` for crowded machines). ``memory_mb``: limit of a worker's address space. ``counts``: verdicts by ``how``;
    ``cache_hits``: judgements of a gold and an answer that were remembered, not made again.
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

    def verify(self, gold: Gold, response: str) -> Verdict:
        """One verdict; ValueError when a gold is empty (an empty gold would accept nothing or everything)."""
        return self.verify_many([(gold, response)])[0]

    def verify_many(self, pairs: Sequence[tuple[Gold, str]]) -> list[Verdict]:
        """Verdicts of (gold, response) pairs, in order. ``seconds`` is the time of the judgement, 0 where none was needed."""
        golds = [_alternatives(i, gold) for i, (gold, _) in enumerate(pairs)]
        extracted = [extract_boxed(response) for _, response in pairs]
        words = [["boxed missing"] if answer is None else [] for answer in extracted]
        seconds = [0.0] * len(pairs)
        for turn in range(max(map(len, golds), default=0)):
            keys = {
                i: (golds[i][turn].strip(), answer.strip())
                for i, answer in enumerate(extracted)
                if answer is not None and turn < len(golds[i]) and "equal" not in words[i]
            }
            for i, (how, spent) in zip(keys, self._judge(list(keys.values())), strict=True):
                words[i].append(how)
                seconds[i] += spent
        hows = [_decisive(found) for found in words]
        with self._lock:
            self.counts.update(hows)
        return [Verdict(how == "equal", x, how, spent) for how, x, spent in zip(hows, extracted, seconds)]

    def _judge(self, keys: Sequence[Key]) -> list[tuple[str, float]]:
        """(how, seconds) of each (gold, answer); of equal ones the first one pays."""
        sights = [_at_sight(key) for key in keys]
        asked = [key for how, key in sights if how is None]
        judged = self._judge_all(asked) if asked else {}
        with self._lock:
            self.cache_hits += len(asked) - sum(spent > 0 for _, spent in judged.values())
        seconds = {key: spent for key, (_, spent) in judged.items()}
        return [(how, 0.0) if how else (judged[key][0], seconds.pop(key, 0.0)) for how, key in sights]

    def _judge_all(self, asked: list[Key]) -> dict[Key, tuple[str, float]]:
        """{key: (how, seconds)}; 0 seconds exactly if remembered. Each worker takes the next key when it is free."""
        known = {key: self._cache.get(key) for key in asked}
        judged = {key: (how, 0.0) for key, how in known.items() if how is not None}
        waiting = deque(key for key, how in known.items() if how is None)
        lanes = min(len(self._workers), len(waiting))
        if lanes <= 1:
            self._serve(0, waiting, judged)
            return judged
        with ThreadPoolExecutor(lanes) as pool:
            try:
                for lane in [pool.submit(self._serve, i, waiting, judged) for i in range(lanes)]:
                    lane.result()
            finally:
                waiting.clear()  # after an interrupt the lanes stop at their next answer
        return judged

    def _serve(self, lane: int, waiting: deque[Key], judged: dict[Key, tuple[str, float]]) -> None:
        """Put questions to whichever worker is free until none is left: a worker that hangs keeps only its own question."""
        while waiting:
            worker, lock = self._free_worker(lane)
            if lock is None:
                continue
            try:
                if (key := _pop(waiting)) is None:
                    return
                how, spent = self._cache.get(key), 0.0  # another thread may have asked meanwhile
                if how is None:
                    started = time.perf_counter()
                    how = worker.ask(*key)
                    spent = time.perf_counter() - started
                    self._remember(key, how)
                judged[key] = (how, spent)
            finally:
                lock.release()

    def _free_worker(self, lane: int) -> tuple[Worker, threading.Lock | None]:
        """A worker with its lock held, the lane's own first; without a lock when all are busy for ``WAIT_S``."""
        own = self._workers[lane]
        for worker in (own, *self._workers):  # a lone caller keeps to one process
            lock = worker.lock
            if lock.acquire(blocking=False):
                return worker, lock
        lock = own.lock
        return own, lock if lock.acquire(timeout=WAIT_S) else None

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


def _alternatives(place: int, gold: Gold) -> tuple[str, ...]:
    """All golds of a pair; ValueError naming the pair where one is empty or there is none."""
    golds = (gold,) if isinstance(gold, str) else gold
    if not isinstance(golds, tuple) or not golds or not all(isinstance(g, str) and g.strip() for g in golds):
        raise ValueError(f"pair {place}: the gold answer is empty or no text ({gold!r}); correct the item, it cannot be verified")
    return golds


def _decisive(words: Sequence[str]) -> str:
    """The one word for an answer, from those of the alternatives that were asked."""
    return "equal" if "equal" in words else next((word for word in UNJUDGED if word in words), "different")


def _at_sight(key: Key) -> tuple[str | None, Key]:
    """The verdict that needs no math-verify, or None; and the texts for math-verify as the rules rewrite them."""
    gold, answer = key
    if not answer:
        return "parse error", key
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):
        return "equal" if int(gold) == int(answer) else "different", key
    return prepare(gold, answer)


def _pop(waiting: deque[Key]) -> Key | None:
    """The next question; None when another lane took the last one."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        with worker.lock:
            worker.stop()


_verifiers: weakref.WeakSet[Verifier] = weakref.WeakSet()
_default: Verifier | None = None
_default_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for verifier in list(_verifiers):
        verifier._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def verify(gold: Gold, response: str, *, verifier: Verifier | None = None) -> Verdict:
    """Judge one response, with a process-wide verifier unless one is given."""
    global _default
    if verifier is None:
        with _default_lock:
            verifier = _default = _default or Verifier()
    return verifier.verify(gold, response)
