"""Only the source's successes move, with the advantages of its full group; failures are in no sum and no denominator."""

from __future__ import annotations

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["success_only"], METHODS["graft"]


def test_differs_in_the_transfer_alone() -> None:
    assert changed(METHOD, GRAFT) == {"transfer"}


def test_only_successes_are_offered_and_read() -> None:
    got = at.moved(METHOD)
    # 1 of 4 and 3 of 4, with a = 1.5 and .5 of the full groups (success alone would be a zero-variance group).
    assert at.advantages(got, "b") == {"a00": pytest.approx(1.5, abs=1e-5)}
    assert at.advantages(got, "a") == {f"b1{j}": pytest.approx(0.5, abs=1e-5) for j in range(3)}
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 1, 1)
    assert at.direction(got, "b", "a") == (1, 1, 1, 1, 3, 3)
    assert {r.reward for r in got.report.rows} == {1.0}


def test_the_failed_group_is_replaced() -> None:
    got = at.moved(METHOD)
    assert at.names(at.trained(got, METHOD, "b")) == [["b1"], ["b2"], ["b3"], ["b4"], ["a00"]]
    assert at.names(at.trained(got, METHOD, "a", 2)) == [["a0", "a2"], ["a3", "a4"], ["b10", "b11", "b12"]]


def test_eq_10_without_failures() -> None:
    # a reads b's three successes as 4, 5 and 6 tokens at s = .9, .8*.99 (dropped), 1.3: J = .5 (.9*4 + 6) / 10 = .48.
    got = at.moved(METHOD, scores={"b10": 0.9, "b11": 0.792, "b12": 1.3})
    minibatch = at.trained(got, METHOD, "a")[-1]
    assert minibatch.tokens == 10
    assert at.objective(METHOD, minibatch) == pytest.approx(0.48, abs=1e-5)
    # The failure's 7 tokens in the denominator would give .282; rho = 1.5 is clipped at 1.28.
    assert at.objective(METHOD, minibatch, [1.5, 1.0]) == pytest.approx(0.5 * (0.9 * 4 * 1.28 + 6) / 10, abs=1e-5)


def test_gradient_on_two_responses() -> None:
    # own a = -1, rho 1; peer a = 1.5, w = .9, rho 1.2, 1.5 (clipped). -w rho a / 3: 1/3, -.54, 0.
    ratios = [[1], [1.2, 1.5]]
    minibatch = Minibatch(0, (at.row(ratios[0], -1.0), at.row(ratios[1], 1.5, weight=0.9, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([1 / 3, -0.54, 0], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_a_success_below_the_floor_leaves_nothing() -> None:
    got = at.moved(METHOD, scores={"a00": 0.5})
    assert at.names(at.trained(got, METHOD, "b")) == [["b1"], ["b2"], ["b3"], ["b4"]]
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 1, 0)


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}, {"a": (1, 1), "b": (1, 1)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"], ["b1"]]


def test_groups_of_one_are_never_mixed() -> None:
    assert not any(at.moved(METHOD, {"a": (1, 0), "b": (0, 1)}, n=1).peer.values())
