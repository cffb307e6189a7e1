"""Which sampled prompts a step trains on, and whether it samples more.

An intake has the signature ``(sampled, wanted, rounds, **hyperparameters) -> Intake``: ``sampled`` maps each prompt id, in the
order of sampling, to the groups of all models; ``wanted`` is the number of prompts of a step; ``rounds`` counts the rounds of
sampling so far. Every sampled response is counted as used, whether or not it is trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from graft.types import Group


@dataclass(frozen=True, slots=True)
class Intake:
    """``kept``: the prompts to train on. ``more``: another round of prompts is wanted first."""

    kept: tuple[str, ...]
    more: bool


class TakeIn(Protocol):
    """The signature above."""

    __name__: str

    def __call__(
        self, sampled: Mapping[str, Mapping[str, Group]], wanted: int, rounds: int, *args: Any, **hyperparameters: Any
    ) -> Intake: ...


def one_round(sampled: Mapping[str, Mapping[str, Group]], wanted: int, rounds: int) -> Intake:
    """Whatever the batch gave."""
    return Intake(tuple(sampled), False)


def informative(sampled: Mapping[str, Mapping[str, Group]], wanted: int, rounds: int, *, max_rounds: float) -> Intake:
    """DAPO's dynamic sampling (arXiv 2503.14476): prompts whose rewards differ within a group, in sampling order, up to ``wanted``.

    Rounds go on until enough are found or ``max_rounds`` are done; then the step trains on those it has, which may be none (the
    reference code stops with an error there, which would lose the run). A group of one never differs, so n = 1 never trains.
    """
    mixed = [q for q, groups in sampled.items() if any(len(set(g.rewards)) > 1 for g in groups.values())]
    return Intake(tuple(mixed[:wanted]), len(mixed) < wanted and rounds < int(max_rounds))
