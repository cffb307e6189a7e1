"""w = min(s, 1) without a floor: a low score weighs little and is not dropped."""

from __future__ import annotations

import numpy as np
import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["wo_floor"], METHODS["graft"]
SCORES = {"a00": 0.2, "a01": 0.5, "a02": 0.9, "a03": 1.3}


def test_differs_in_the_admission_alone() -> None:
    assert changed(METHOD, GRAFT) == {"admission", "delta"}


def test_weights_are_scores_capped_at_one() -> None:
    got = METHOD.bound("admission")([1e-9, 0.5, 0.8, 0.81, 1.0, 7.0], np.random.default_rng(0))
    assert [a.weight for a in got] == [1e-9, 0.5, 0.8, 0.81, 1.0, 1.0]


def test_eq_10_with_small_weights() -> None:
    # a = 1.5, -.5, -.5, -.5 on 7, 9, 11, 13 tokens, w = .2, .5, .9, 1; rho = 1; nothing is dropped, so 40 tokens:
    # J = (.2*1.5*7 - .5*(.5*9 + .9*11 + 13)) / 40 = (2.1 - 13.7) / 40 = -.29.
    got = at.moved(METHOD, scores=SCORES)
    assert list(at.weights(got, "b").values()) == pytest.approx([0.2, 0.5, 0.9, 1.0])
    minibatch = at.trained(got, METHOD, "b")[-1]
    assert minibatch.tokens == 40
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.29, abs=1e-5)
    # rho = 2 for the success: min(3, 1.92) = 1.92: J = (.2*1.92*7 - 13.7) / 40 = -.2753.
    assert at.objective(METHOD, minibatch, [2.0, 1.0, 1.0, 1.0]) == pytest.approx(-0.2753, abs=1e-5)


def test_gradient_on_two_responses() -> None:
    # own a = 1, rho 1.1; peer a = 3, w = .2, rho .5, 1.5 (clipped). dL/dlogp = -w rho a / 3: -1.1/3, -.3/3 = -.1, 0.
    ratios = [[1.1], [0.5, 1.5]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0), at.row(ratios[1], 3.0, weight=0.2, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-1.1 / 3, -0.1, 0], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_what_graft_drops_stays() -> None:
    low = {f"a0{j}": 0.05 for j in range(4)}
    assert at.weights(at.moved(GRAFT, scores=low), "b") == {}
    got = at.moved(METHOD, scores=low)
    assert list(at.weights(got, "b").values()) == pytest.approx([0.05] * 4)
    assert at.names(at.trained(got, METHOD, "b")) == [["b1"], ["b2"], ["b3"], ["b4"], ["a0"]]


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert at.names(at.trained(got, METHOD, "a")) == [["a0"], ["a1"]]
