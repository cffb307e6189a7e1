"""Sequences -> minibatches: every sequence exactly once, peers last, no step on nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from graft.schedule import cut, in_place, peer_first, peer_last, peer_uniform, source_blocks
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
    with pytest.raises(ValueError, match="minibatches of 0 prompts"):
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


ORDERS = (peer_last, peer_first, peer_uniform, in_place, source_blocks)


@given(
    st.sampled_from(ORDERS), st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), max_size=5), st.integers(1, 5)
)
def test_every_order_keeps_every_sequence_once(order, own: list[int], peer: list[int], size: int) -> None:  # type: ignore[no-untyped-def]
    a, b = groups(own, peer=False), groups(peer, peer=True)
    got = order(a, b, size, np.random.default_rng(0))
    flat = sorted(s.response_ids for m in got for s in m.sequences)
    assert flat == sorted(s.response_ids for g in [*a, *b] for s in g.sequences)
    assert [m.index for m in got] == list(range(len(got)))
    assert all(m.sequences for m in got)


def joined() -> tuple[list[SequenceGroup], list[SequenceGroup]]:
    """Own groups of prompts a0..a3 (ids 1, 11, 21, 31); peer data for a1 (1001) beside it and for a9 (1011) in place of it."""
    own = groups([1, 1, 1, 1], peer=False)
    beside, instead = groups([1, 1], peer=True)
    return own, [SequenceGroup("a1", True, beside.sequences), SequenceGroup("a9", True, instead.sequences)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (peer_last, [[1, 21], [31, 11, 1001], [1011]]),  # a0 a2 | a3 (a1 + its peer) | a9
        (peer_first, [[11, 1001, 1011], [1, 21], [31]]),  # (a1 + its peer) a9 | a0 a2 | a3
        (in_place, [[1, 11, 1001], [21, 31], [1011]]),  # a0 (a1 + its peer) | a2 a3 | a9
        (source_blocks, [[1, 11], [21, 31], [1001, 1011]]),  # own block | peer block
    ],
)
def test_what_a_prompt_contributes_stays_together(order, expected: list[list[int]]) -> None:  # type: ignore[no-untyped-def]
    got = order(*joined(), 2, RNG)
    assert [[s.response_ids[0] for s in m.sequences] for m in got] == expected


def test_uniform_moves_whole_minibatches_and_only_by_its_generator() -> None:
    own, peer = joined()
    fixed = {tuple(s.response_ids[0] for s in m.sequences) for m in peer_last(own, peer, 2, RNG)}
    seen = set()
    for seed in range(30):
        got = peer_uniform(own, peer, 2, np.random.default_rng(seed))
        assert {tuple(s.response_ids[0] for s in m.sequences) for m in got} == fixed
        seen.add(tuple(m.sequences[0].response_ids for m in got))
    assert len(seen) == 6  # all 3! orders of three minibatches
