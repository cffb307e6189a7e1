"""GRAFT with the prompts that hold peer data first."""

from __future__ import annotations

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["peer_first"], METHODS["graft"]


def test_differs_in_the_order_alone() -> None:
    assert changed(METHOD, GRAFT) == {"order"}


def test_peer_minibatches_come_first_then_own_ones_in_batch_order() -> None:
    got = at.moved(METHOD)
    assert at.names(at.trained(got, METHOD, "b")) == [["a0"], ["b1"], ["b2"], ["b3"], ["b4"]]
    assert at.names(at.trained(got, METHOD, "a")) == [["b1"], ["a0"], ["a2"], ["a3"], ["a4"]]
    minibatches = at.trained(got, METHOD, "b", 2)
    # The grafted prompt fills up with own ones: five prompts stay three minibatches.
    assert at.names(minibatches) == [["a0", "b1"], ["b2", "b3"], ["b4"]]
    assert [m.index for m in minibatches] == [0, 1, 2]


def test_the_same_sequences_as_grafts() -> None:
    mine, grafts = at.moved(METHOD, scores={"a01": 0.9}), at.moved(GRAFT, scores={"a01": 0.9})
    assert (mine.own, mine.peer) == (grafts.own, grafts.peer)
    first, last = at.trained(mine, METHOD, "b"), at.trained(grafts, GRAFT, "b")
    assert [m.sequences for m in first] == [last[-1].sequences, *[m.sequences for m in last[:-1]]]


def test_two_grafted_prompts_keep_the_batchs_order() -> None:
    got = at.moved(METHOD, {"a": (2, 1, 0, 1, 0), "b": (2, 0, 3, 0, 3)})
    assert at.names(at.trained(got, METHOD, "b")) == [["a1"], ["a3"], ["b0"], ["b2"], ["b4"]]


def test_eq_10_of_the_first_minibatch() -> None:
    # p0 from a (1 of 4: 1.5*7 - .5*33 = -6) with b's own p1 (3 of 4: a = .5, .5, .5, -1.5 on 7, 9, 11, 13 of b's tokens:
    # .5*27 - 1.5*13 = -6); rho = 1 and w = 1: J = -12 / 80 = -.15.
    minibatch = at.trained(at.moved(METHOD), METHOD, "b", 2)[0]
    assert minibatch.tokens == 80
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.15, abs=1e-5)


def test_gradient_on_two_responses() -> None:
    # The peer row stands first: a = 1, w = .9, rho 1; own a = -1, rho 1.5, .5 (clipped). -w rho a / 3: -.3, .5, 0.
    ratios = [[1], [1.5, 0.5]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0, weight=0.9, peer=True), at.row(ratios[1], -1.0)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-0.3, 0.5, 0], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_a_group_dropped_whole_leaves_no_first_step() -> None:
    got = at.moved(METHOD, scores={f"a0{j}": 0.5 for j in range(4)})
    minibatches = at.trained(got, METHOD, "b")
    assert at.names(minibatches) == [["b1"], ["b2"], ["b3"], ["b4"]]
    assert [m.index for m in minibatches] == [0, 1, 2, 3]


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}])
def test_without_candidates_the_batchs_order_is_left(counts: dict[str, tuple[int, ...]]) -> None:
    assert at.names(at.trained(at.moved(METHOD, counts), METHOD, "b")) == [["b0"], ["b1"]]
