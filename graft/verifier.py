"""Answer extraction and verification in a killable worker process.

The reward and the score are one judgement: the last ``\\boxed{}`` of a response against the gold answer, by math-verify. It runs
in a separate process that speaks JSON lines over pipes (no pickle, no signals), so it works from any thread and after a fork. The
parent owns the clock: an answer that takes too long costs its own time limit, the worker is killed and replaced, and every other
answer is judged as if nothing had happened.

Identical (gold, answer) pairs are judged once per verifier, timeouts and worker deaths included: a hanging answer repeated in a
group costs its limit once. Two plain decimal integers are compared directly; a test holds this shortcut against math-verify.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from graft.types import Verdict

HOWS = ("equal", "different", "boxed missing", "parse error", "timeout", "worker died")
BOXED = "\\boxed"
INTEGER = re.compile(r"-?[0-9]{1,15}")
START_LIMIT_S = 60.0


def extract_boxed(text: str) -> str | None:
    """Content of the LAST ``\\boxed{...}`` with balanced braces (``\\{`` and ``\\}`` do not count). None when there is no box or
    the last one is unterminated: an earlier box does not rescue it."""
    start = text.rfind(BOXED + "{")
    if start < 0:
        return None
    depth, i = 0, start + len(BOXED)
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + len(BOXED) + 1 : i]
        i += 1
    return None


class _Worker:
    """One math-verify process. Any failure leaves it dead; the next question starts a fresh one."""

    def __init__(self, memory_mb: int):
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def ask(self, gold: str, answer: str, timeout_s: float) -> str:
        """A word of HOWS. The worker is killed on timeout and on death."""
        try:
            process = self._alive()
            assert process.stdin is not None
            process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            process.stdin.flush()
            return self._reply(timeout_s)
        except TimeoutError:
            self.close()
            return "timeout"
        except (BrokenPipeError, EOFError):
            self.close()
            return "worker died"

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            command = [sys.executable, "-m", "graft.verifier_worker", str(self._memory_mb)]
            root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            )
            try:
                self._reply(START_LIMIT_S)
            except (TimeoutError, EOFError) as e:
                self.close()
                raise RuntimeError("the verification worker did not start; run `python -m graft.verifier_worker 2048` to see why") from e
        return self._process

    def _reply(self, timeout_s: float) -> str:
        process = self._process
        assert process is not None and process.stdout is not None
        deadline = time.monotonic() + timeout_s
        fd = process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            chunk = os.read(fd, 65536)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return str(json.loads(line))

    def close(self) -> None:
        process, self._process, self._buffer = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass


class Verifier:
    """Judges responses. Thread-safe; the worker starts with the first answer that needs it. Use as a context manager.

    ``timeout_s``: wall-clock limit of one answer. ``memory_mb``: address-space limit of the worker. ``counts``: verdicts by ``how``.
    """

    def __init__(self, *, timeout_s: float = 5.0, memory_mb: int = 2048):
        self.timeout_s = timeout_s
        self.counts: Counter[str] = Counter()
        self._worker = _Worker(memory_mb)
        self._cache: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._memory_mb = memory_mb
        atexit.register(self.close)

    def verify(self, gold: str, response: str) -> Verdict:
        """One verdict; ValueError when the gold is empty (an empty gold would accept nothing or everything)."""
        if not gold or not gold.strip():
            raise ValueError("the gold answer is empty; correct the item, it cannot be verified")
        started = time.perf_counter()
        answer = extract_boxed(response)
        how = "boxed missing" if answer is None else self._judge(gold.strip(), answer.strip())
        self.counts[how] += 1
        return Verdict(how == "equal", answer, how, time.perf_counter() - started)

    def verify_many(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (gold, response) pairs, in order."""
        return [self.verify(gold, response) for gold, response in pairs]

    def _judge(self, gold: str, answer: str) -> str:
        if not answer:
            return "parse error"
        if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):
            return "equal" if int(gold) == int(answer) else "different"
        key = (gold, answer)
        with self._lock:
            if os.getpid() != self._pid:  # after a fork the pipes belong to the parent: start a worker of our own
                self._worker, self._pid = _Worker(self._memory_mb), os.getpid()
            if key not in self._cache:
                self._cache[key] = self._worker.ask(gold, answer, self.timeout_s)
            return self._cache[key]

    def close(self) -> None:
        """Stop the worker. The verifier may be used again; it then starts another."""
        if os.getpid() == self._pid:
            self._worker.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_default: Verifier | None = None


def verify(gold: str, response: str) -> Verdict:
    """Judge one response with a process-wide verifier."""
    global _default
    if _default is None:
        _default = Verifier()
    return _default.verify(gold, response)
