"""Both groups stay; advantages over their union of 2n; peers keep w, own responses have 1."""

from __future__ import annotations

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["pooled_groups"], METHODS["graft"]
# One success in the union of 8: mean .125, std .353553, a = 2.474867 and -.353552 (see test_graft).
UP, DOWN = 2.474867, -0.353552


def test_differs_in_transfer_and_advantages() -> None:
    assert changed(METHOD, GRAFT) == {"transfer", "own_advantage", "peer_advantage"}


def test_advantages_over_the_union() -> None:
    got = at.moved(METHOD)
    assert list(at.advantages(got, "b").values()) == pytest.approx([UP, DOWN, DOWN, DOWN], abs=1e-6)
    # The receiver's failures are no longer worth 0.
    assert at.own_advantages(got, "b", "p0") == pytest.approx([DOWN] * 4, abs=1e-6)
    # a's side: 3 of 8: mean .375, std sqrt((3*.625^2 + 5*.375^2)/7) = sqrt(.267857) = .517549; .625/std = 1.207614, -.724569.
    assert list(at.advantages(got, "a").values()) == pytest.approx([1.207612] * 3 + [-0.724567], abs=1e-5)
    assert at.own_advantages(got, "a", "p1") == pytest.approx([-0.724567] * 4, abs=1e-5)


def test_prompts_without_a_peer_are_grpos() -> None:
    got = at.moved(METHOD)
    assert at.own_advantages(got, "b", "p1") == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-5)
    assert at.own_advantages(got, "b", "p2") == [0.0] * 4
    # a taught p0 to b and keeps its own group's statistics there.
    assert at.own_advantages(got, "a", "p0") == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_pooled_prompt_is_one_unit_at_the_end() -> None:
    got = at.moved(METHOD)
    assert at.names(at.trained(got, METHOD, "b")) == [["b1"], ["b2"], ["b3"], ["b4"], ["b0", "a0"]]
    assert at.names(at.trained(got, METHOD, "b", 3)) == [["b1", "b2", "b3"], ["b4", "b0", "a0"]]


def test_eq_10_over_both_groups() -> None:
    # Peers: s = .9 (the success), .5 (dropped), .95, 1.3 on 7, 11 and 13 tokens; own: w = 1 on 40 tokens; rho = 1:
    # J = (.9*7*2.474867 - .353552*(.95*11 + 13 + 40)) / (40 + 31) = (15.591662 - 22.432874) / 71 = -.096355.
    got = at.moved(METHOD, scores={"a00": 0.9, "a01": 0.5, "a02": 0.95, "a03": 1.3})
    minibatch = at.trained(got, METHOD, "b")[-1]
    assert minibatch.tokens == 71
    assert [s.weight for s in minibatch.sequences] == pytest.approx([1, 1, 1, 1, 0.9, 0.95, 1.0])
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.096355, abs=1e-5)


def test_gradient_on_two_responses() -> None:
    # own a = DOWN, rho 1, .7 (clipped); peer a = UP, w = .9, rho 1.1. dL/dlogp = -w rho a / 3.
    ratios = [[1, 0.7], [1.1]]
    minibatch = Minibatch(0, (at.row(ratios[0], DOWN), at.row(ratios[1], UP, weight=0.9, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([0.353552 / 3, 0, -0.99 * 2.474867 / 3], abs=1e-9)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_all_dropped_leaves_the_own_group_with_the_unions_advantages() -> None:
    # Advantages precede the gate (4.1), so the receiver is pushed off its failures even when no success arrives.
    got = at.moved(METHOD, scores={f"a0{j}": 0.5 for j in range(4)})
    last = at.trained(got, METHOD, "b")[-1]
    assert at.names([last]) == [["b0"]]
    assert at.objective(METHOD, last) == pytest.approx(DOWN, abs=1e-6)


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert {s.advantage for g in got.own["b"] for s in g.sequences} == {0.0}


def test_groups_of_one_never_pool() -> None:
    assert not any(at.moved(METHOD, {"a": (1, 0), "b": (0, 1)}, n=1).peer.values())
