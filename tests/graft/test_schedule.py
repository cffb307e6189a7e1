"""Sequences -> minibatches: every sequence exactly once, peers last, no step on nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from graft.schedule import cut, peer_last
from graft.types import SequenceGroup
from tests.graft.tiny import sequence

RNG = np.random.default_rng(0)


def groups(sizes: list[int], *, peer: bool) -> list[SequenceGroup]:
    """One group per entry with that many sequences, each with a distinct id."""
    base = 1000 if peer else 0
    return [
        SequenceGroup(f"{'b' if peer else 'a'}{i}", peer, tuple(
            sequence((base + 10 * i + j + 1,), (-1.0,), 1.0, source="b" if peer else "a") for j in range(k)))
        for i, k in enumerate(sizes)
    ]  # fmt: skip


def test_a_graft_takes_the_place_of_a_group() -> None:
    # 6 prompts, 2 of them grafted, 2 prompts a minibatch: three minibatches as without grafts; the last holds both grafts.
    got = peer_last(groups([2] * 4, peer=False), groups([2, 1], peer=True), 2, RNG)
    assert [m.index for m in got] == [0, 1, 2]
    assert [len(m.sequences) for m in got] == [4, 4, 3]
    assert [{s.is_peer for s in m.sequences} for m in got] == [{False}, {False}, {True}]


def test_an_emptied_group_holds_its_place_and_an_emptied_minibatch_is_no_step() -> None:
    got = cut(groups([0, 0, 1, 0, 2], peer=True), 2)
    assert [(m.index, len(m.sequences)) for m in got] == [(0, 1), (1, 2)]
    assert cut([], 4) == ()
    assert cut(groups([0], peer=True), 4) == ()


def test_a_minibatch_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="a minibatch of 0 prompts"):
        cut(groups([1], peer=False), 0)


@given(st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), max_size=5), st.integers(1, 5))
def test_every_sequence_once_and_peers_last(own: list[int], peer: list[int], size: int) -> None:
    a, b = groups(own, peer=False), groups(peer, peer=True)
    got = peer_last(a, b, size, RNG)
    flat = [s for m in got for s in m.sequences]
    assert flat == [s for g in [*a, *b] for s in g.sequences]
    assert [s.is_peer for s in flat] == sorted(s.is_peer for s in flat)
    assert [m.index for m in got] == list(range(len(got)))
    assert all(m.sequences for m in got)
    assert len(got) <= -(-(len(own) + len(peer)) // size)
