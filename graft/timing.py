"""Seconds by phase, for the compute ledger. Monotonic; never in anything that a result depends on."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from graft.policies.base import Policy, TokenPair
from graft.retokenize import TextCodec


@dataclass
class Stopwatch:
    """``with watch("phase"):`` adds to the phase. Phases may nest: what an inner one takes is not in the outer one, so that the sum
    over phases is time that passed once."""

    seconds: dict[str, float] = field(default_factory=dict)
    _open: list[_Lap] = field(default_factory=list)

    def __call__(self, phase: str) -> _Lap:
        return _Lap(self, phase)


class _Lap:
    def __init__(self, watch: Stopwatch, phase: str):
        self.watch, self.phase, self.inner = watch, phase, 0.0

    def __enter__(self) -> None:
        self.watch._open.append(self)
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        spent = time.perf_counter() - self.start
        self.watch._open.pop()
        if self.watch._open:
            self.watch._open[-1].inner += spent
        self.watch.seconds[self.phase] = self.watch.seconds.get(self.phase, 0.0) + spent - self.inner


@dataclass(frozen=True)
class TimedReceiver:
    """A policy as the exchange sees it, whose scoring of peer responses is a phase of its own: ``<model>/peer_scoring``."""

    policy: Policy
    watch: Stopwatch

    @property
    def codec(self) -> TextCodec:
        return self.policy.codec

    @property
    def max_response_tokens(self) -> int:
        return self.policy.max_response_tokens

    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]:
        """As the policy's ``score``."""
        with self.watch(f"{self.policy.name}/peer_scoring"):
            return self.policy.score(items)
