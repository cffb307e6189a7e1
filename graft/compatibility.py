"""How much of a peer response the receiver takes: the score s, and the weight w or the reason why it was dropped.

An admission has the signature ``(scores, rng, **hyperparameters) -> tuple[Admission, ...]`` over all scored peer responses of
one receiver in one step (count-matched admissions need them together).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

MAX_LOG_SCORE = 20.0


@dataclass(frozen=True, slots=True)
class Admission:
    """``weight`` is w of eq. 8; None means dropped before optimisation. ``reason`` is a short counted label."""

    weight: float | None
    reason: str


class Admit(Protocol):
    """The signature above."""

    __name__: str

    def __call__(
        self, scores: Sequence[float], rng: np.random.Generator, *args: Any, **hyperparameters: Any
    ) -> tuple[Admission, ...]: ...


def mean_logprob(logprobs: Sequence[float]) -> float:
    """lbar of eq. 6: mean log-prob (nats) per token over a model's OWN tokens, EOS included where sampled. ValueError when empty."""
    if not logprobs:
        raise ValueError("the mean log-prob of an empty response is undefined")
    return math.fsum(logprobs) / len(logprobs)


def score(receiver_mean: float, source_mean: float) -> float:
    """s of eq. 7: exp(lbar_receiver - lbar_source). The difference is bounded to +-20 before exp, so s is always finite."""
    return math.exp(max(-MAX_LOG_SCORE, min(MAX_LOG_SCORE, receiver_mean - source_mean)))


def admit_nothing(scores: Sequence[float], rng: np.random.Generator) -> tuple[Admission, ...]:
    """For methods that transfer nothing."""
    return tuple(Admission(None, "no transfer") for _ in scores)


def gate_and_cap(scores: Sequence[float], rng: np.random.Generator, *, delta: float) -> tuple[Admission, ...]:
    """GRAFT (eq. 8): w = 1[s > delta] min(s, 1); the comparison is strict, so s == delta is dropped."""
    return tuple(Admission(min(s, 1.0), "admitted") if s > delta else Admission(None, "below delta") for s in scores)


def cap(scores: Sequence[float], rng: np.random.Generator) -> tuple[Admission, ...]:
    """w = min(s, 1) without a floor: nothing is dropped (appendix G, delta = 0)."""
    return tuple(Admission(min(s, 1.0), "admitted") for s in scores)


def admit_all(scores: Sequence[float], rng: np.random.Generator) -> tuple[Admission, ...]:
    """w = 1 for every response: neither floor nor weight (appendix G)."""
    return tuple(Admission(1.0, "admitted") for _ in scores)


# Admissions that look at no score, so that a source whose log-probs nobody knows can teach.
SCORE_FREE: frozenset[Admit] = frozenset({admit_nothing, admit_all})


def random_admission(scores: Sequence[float], rng: np.random.Generator, *, delta: float) -> tuple[Admission, ...]:
    """As many as pass ``s > delta``, drawn uniformly from all; the weight stays min(s, 1), so a low score weighs little."""
    count = sum(s > delta for s in scores)
    chosen = set(rng.choice(len(scores), size=count, replace=False).tolist()) if count else set()
    return tuple(
        Admission(min(s, 1.0), "admitted") if i in chosen else Admission(None, "not drawn") for i, s in enumerate(scores)
    )
