"""success_only with w = min(s, 1) and nothing dropped."""

from __future__ import annotations

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD = METHODS["success_only_wo_floor"]


def test_differs_from_success_only_in_the_floor_and_from_wo_floor_in_the_transfer() -> None:
    assert METHOD.parent == "success_only"
    assert changed(METHOD, METHODS["success_only"]) == {"admission", "delta"}
    assert changed(METHOD, METHODS["wo_floor"]) == {"transfer"}


def test_eq_10_with_small_weights() -> None:
    # a reads b's successes (a = .5) as 4, 5 and 6 tokens at s = .1, .5, 2: J = .5 (.1*4 + .5*5 + 6) / 15 = .296667.
    got = at.moved(METHOD, scores={"b10": 0.1, "b11": 0.5, "b12": 2.0})
    assert list(at.weights(got, "a").values()) == pytest.approx([0.1, 0.5, 1.0])
    minibatch = at.trained(got, METHOD, "a")[-1]
    assert at.names([minibatch]) == [["b10", "b11", "b12"]]
    assert minibatch.tokens == 15
    assert at.objective(METHOD, minibatch) == pytest.approx(0.296667, abs=1e-5)


def test_a_success_that_the_floor_would_drop_stays() -> None:
    got = at.moved(METHOD, scores={"a00": 0.01})
    assert at.weights(got, "b") == {"a00": pytest.approx(0.01)}
    assert at.advantages(got, "b") == {"a00": pytest.approx(1.5, abs=1e-5)}
    # J = w a = .015, whatever the length.
    assert at.objective(METHOD, at.trained(got, METHOD, "b")[-1]) == pytest.approx(0.015, abs=1e-6)


def test_gradient_on_two_responses() -> None:
    # own a = 1, rho .5, 1; peer a = 1.5, w = .1, rho 1.2. -w rho a / 3: -.5/3, -1/3, -.06.
    ratios = [[0.5, 1], [1.2]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0), at.row(ratios[1], 1.5, weight=0.1, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-0.5 / 3, -1 / 3, -0.06], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"], ["b1"]]
