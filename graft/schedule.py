"""Sequences -> minibatches -> order.

An order has the signature ``(own, peer, prompts, rng) -> tuple[Minibatch, ...]``: ``own`` and ``peer`` are what each prompt
contributes, ``prompts`` is the minibatch size in prompts. A minibatch whose every response was dropped is left out (no optimiser
step is taken on nothing), so indices count real steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graft.types import Minibatch, SequenceGroup


class Order(Protocol):
    """The signature above."""

    __name__: str

    def __call__(
        self, own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
    ) -> tuple[Minibatch, ...]: ...


def cut(groups: Sequence[SequenceGroup], prompts: int) -> tuple[Minibatch, ...]:
    """Consecutive minibatches of ``prompts`` groups; the last may hold fewer. ValueError when prompts < 1."""
    if prompts < 1:
        raise ValueError(f"a minibatch of {prompts} prompts is impossible; need at least 1")
    parts = [groups[i : i + prompts] for i in range(0, len(groups), prompts)]
    kept = [tuple(s for g in part for s in g.sequences) for part in parts]
    return tuple(Minibatch(i, sequences) for i, sequences in enumerate(filter(None, kept)))


def peer_last(
    own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
) -> tuple[Minibatch, ...]:
    """Own groups in batch order, then grafted groups, cut as one list.

    A grafted group takes the place of the group it replaces, so the number of minibatches stays what GRPO has (the paper's 4);
    at most one minibatch holds both kinds, and it comes after all purely own ones.
    """
    return cut([*own, *peer], prompts)
