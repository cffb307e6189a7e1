"""SGT's which with GRAFT's how: every rescue prompt moves; all-correct groups move with advantage 0."""

from __future__ import annotations

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["wo_balancing"], METHODS["graft"]


def test_differs_in_the_selection_alone() -> None:
    assert changed(METHOD, GRAFT) == {"selection"}


def test_one_direction_is_enough() -> None:
    # b solves nothing: m = 0 for GRAFT; here p0 (1 of 4) and p1 (all 4) move, p2 (0) does not.
    counts = {"a": (1, 4, 0), "b": (0, 0, 0)}
    assert at.moved(GRAFT, counts).report.rows == ()
    got = at.moved(METHOD, counts)
    assert {name[:2] for name in at.weights(got, "b")} == {"a0", "a1"}
    assert at.direction(got, "a", "b") == (2, 2, 2, 2, 8, 8)
    assert at.direction(got, "b", "a") == (0, 0, 0, 0, 0, 0)
    assert at.names(at.trained(got, METHOD, "b", 2)) == [["b2", "a0"], ["a1"]]
    assert at.names(at.trained(got, METHOD, "a")) == [["a0"], ["a1"], ["a2"]]


def test_receivers_with_a_success_are_left_alone() -> None:
    got = at.moved(METHOD, {"a": (4, 3, 1), "b": (1, 2, 4)})
    assert got.report.rows == ()


def test_all_correct_groups_carry_nothing_and_dilute() -> None:
    # p0: 1.5*7 - .5*(9 + 11 + 13) = -6 over 40 tokens; with p1's 40 tokens of advantage 0 in the minibatch: J = -6/80 = -.075.
    got = at.moved(METHOD, {"a": (1, 4), "b": (0, 0)})
    assert [a for name, a in at.advantages(got, "b").items() if name[:2] == "a1"] == [0.0] * 4
    (minibatch,) = at.trained(got, METHOD, "b", 2)
    assert minibatch.tokens == 80
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.075, abs=1e-5)
    (alone,) = at.trained(at.moved(METHOD, {"a": (4,), "b": (0,)}), METHOD, "b")
    x = at.loss_inputs(alone, [1.7] * 4)
    assert at.loss_at(METHOD, alone, x) == 0.0
    assert not any(at.flat(at.gradient(METHOD, alone, x)))


def test_the_gate_is_grafts() -> None:
    got = at.moved(METHOD, {"a": (1,), "b": (0,)}, {"a00": 0.79, "a01": 0.81, "a02": 0.95, "a03": 1.3})
    assert list(at.weights(got, "b").values()) == pytest.approx([0.81, 0.95, 1.0])
    (minibatch,) = at.trained(got, METHOD, "b")
    # as in test_graft: -.5 (.81*9 + .95*11 + 13) / 33
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.465758, abs=1e-5)
    nothing = at.moved(METHOD, {"a": (1,), "b": (0,)}, {f"a0{j}": 0.1 for j in range(4)})
    assert at.trained(nothing, METHOD, "b") == ()


def test_gradient_on_two_responses() -> None:
    # own a = -1, rho .9, .7 (clipped); peer a = 1, w = .9, rho 1.2. dL/dlogp = -w rho a / 3: .3, 0, -.36.
    ratios = [[0.9, 0.7], [1.2]]
    minibatch = Minibatch(0, (at.row(ratios[0], -1.0), at.row(ratios[1], 1.0, weight=0.9, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([0.3, 0, -0.36], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_a_group_of_one_can_move_and_teaches_nothing() -> None:
    # One response that is right is an all-correct group: eligible, advantage 0.
    got = at.moved(METHOD, {"a": (1,), "b": (0,)}, n=1)
    assert at.advantages(got, "b") == {"a00": 0.0}
