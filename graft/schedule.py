"""Sequences -> minibatches -> order.

An order has the signature ``(own, peer, prompts, rng) -> tuple[Minibatch, ...]``: ``own`` and ``peer`` are what each prompt
contributes, ``prompts`` is the minibatch size in prompts. What a prompt contributes, own and peer, is one unit and stays in one
minibatch (except in ``source_blocks``). A prompt of which nothing was kept holds its place in the cut. A minibatch whose every
response was dropped is left out (no optimiser step is taken on nothing), so indices count real steps.
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
        raise ValueError(f"minibatches of {prompts} prompts are not possible; need at least 1")
    parts = [groups[i : i + prompts] for i in range(0, len(groups), prompts)]
    return number([Minibatch(0, tuple(s for g in part for s in g.sequences)) for part in parts])


def number(minibatches: Sequence[Minibatch]) -> tuple[Minibatch, ...]:
    """The non-empty ones, counted from 0."""
    return tuple(Minibatch(i, m.sequences) for i, m in enumerate(m for m in minibatches if m.sequences))


def units(own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup]) -> tuple[list[SequenceGroup], list[SequenceGroup]]:
    """(prompts without peer data, prompts with it); the latter merge own and peer sequences. Batch order, own prompts first."""
    merged: dict[str, SequenceGroup] = {}
    own_by_prompt = {g.prompt_id: g for g in own}
    for g in peer:
        before = merged.get(g.prompt_id, own_by_prompt.get(g.prompt_id))
        sequences = (*before.sequences, *g.sequences) if before else g.sequences
        merged[g.prompt_id] = SequenceGroup(g.prompt_id, True, sequences)
    return [g for g in own if g.prompt_id not in merged], list(merged.values())


def peer_last(
    own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
) -> tuple[Minibatch, ...]:
    """Prompts without peer data in batch order, then those with it, cut as one list.

    A grafted group takes the place of the group it replaces, so the number of minibatches stays what GRPO has (the paper's 4);
    at most one minibatch holds both kinds, and it comes after all purely own ones.
    """
    plain, merged = units(own, peer)
    return cut([*plain, *merged], prompts)


def peer_first(
    own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
) -> tuple[Minibatch, ...]:
    """Prompts with peer data first, then the others, cut as one list (appendix G)."""
    plain, merged = units(own, peer)
    return cut([*merged, *plain], prompts)


def peer_uniform(
    own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
) -> tuple[Minibatch, ...]:
    """The minibatches of ``peer_last`` in an order drawn anew each step (appendix G); whole minibatches move, not prompts."""
    minibatches = peer_last(own, peer, prompts, rng)
    return number([minibatches[i] for i in rng.permutation(len(minibatches))])


def in_place(
    own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
) -> tuple[Minibatch, ...]:
    """Every prompt where the batch has it; peer sequences join their prompt's own ones. A replaced prompt comes at the end."""
    plain, merged = units(own, peer)
    by_prompt = {g.prompt_id: g for g in [*plain, *merged]}
    first = [by_prompt.pop(g.prompt_id) for g in own]
    return cut([*first, *by_prompt.values()], prompts)


def source_blocks(
    own: Sequence[SequenceGroup], peer: Sequence[SequenceGroup], prompts: int, rng: np.random.Generator
) -> tuple[Minibatch, ...]:
    """HACPO: own minibatches, then each source's block by name, cut apart: a minibatch is purely own or of one peer.

    A peer group of which nothing could be exchanged does not hold its place here; the block closes up.
    """
    sources = sorted({s.source for g in peer for s in g.sequences})
    blocks = [[g for g in peer if g.sequences and g.sequences[0].source == source] for source in sources]
    return number([m for block in (own, *blocks) for m in cut(block, prompts)])
