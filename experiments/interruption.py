"""Being asked to stop. A signal sets a flag; the run looks at it where it can stop without losing anything. Standard library only.

SIGUSR2 is the scheduler's warning (time limit or preemption), SIGTERM a cancellation or preemption, SIGINT Ctrl-C. What happens
after the run has saved itself is decided in ``experiments.requeue``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
# (signal, wall-clock time) in the order of arrival. Only the handler writes.
_received: list[tuple[signal.Signals, float]] = []


class Interrupted(BaseException):
    """The run saved what it had and stops. No Exception: code that survives all errors must not survive this one."""

    def __init__(self, number: signal.Signals, where: str, at: float):
        super().__init__(f"{number.name} at {where}")
        self.number, self.where, self.at = number, where, at


def install() -> None:
    """Catch SIGNALS from now on. Main thread only; a process does it first thing, before imports that take seconds."""
    for number in SIGNALS:
        signal.signal(number, _note)


def _note(number: int, _frame: object) -> None:
    _received.append((signal.Signals(number), time.time()))
    if impatient([s for s, _ in _received], os.environ):
        os._exit(exit_code(number))


def impatient(signals: list[signal.Signals], environ: Mapping[str, str]) -> bool:
    """Whether the newest signal says: at once. A second Ctrl-C does; a second SIGTERM does outside Slurm, which repeats it by itself
    and has SIGKILL for the end."""
    newest = signals[-1]
    return signals.count(newest) > 1 and (newest == signal.SIGINT or (newest == signal.SIGTERM and "SLURM_JOB_ID" not in environ))


def exit_code(number: int) -> int:
    """128 + signal number, as shells say it: SIGUSR2 140, SIGTERM 143, SIGINT 130."""
    return 128 + number


def received() -> tuple[signal.Signals, ...]:
    """The signals so far, in order."""
    return tuple(number for number, _ in _received)


def check(where: str) -> None:
    """Raise Interrupted if a signal came. Call where nothing is half-done; ``where`` completes "SIGUSR2 at ..."."""
    if _received:
        number, at = _received[0]
        raise Interrupted(number, where, at)


@contextmanager
def shielded() -> Iterator[None]:
    """Processes started within do not get SIGNALS: a scheduler sends them to every process of a job, and a helper would die of
    what the run survives. (A blocked signal stays blocked over exec; this process gets it on leaving.)"""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
