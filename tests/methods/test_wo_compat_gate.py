"""w = 1 for every transferred response; everything else is GRAFT."""

from __future__ import annotations

import numpy as np
import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["wo_compat_gate"], METHODS["graft"]
SCORES = {"a00": 0.01, "a01": 0.81, "a02": 0.95, "a03": 1.3}


def test_differs_in_the_admission_alone() -> None:
    assert changed(METHOD, GRAFT) == {"admission", "delta"}
    assert METHOD.parent == "graft"


def test_every_score_weighs_one() -> None:
    got = METHOD.bound("admission")([1e-9, 0.5, 0.8, 1.0, 7.0], np.random.default_rng(0))
    assert [a.weight for a in got] == [1.0] * 5


def test_selection_and_advantages_are_grafts() -> None:
    # 1 of 4: mean .25, std .5, a = 1.5 and -.5. Ungated, all four are there.
    got = at.moved(METHOD, scores=SCORES)
    assert at.weights(got, "b") == {"a00": 1.0, "a01": 1.0, "a02": 1.0, "a03": 1.0}
    assert list(at.advantages(got, "b").values()) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 4, 4)
    assert at.names(at.trained(got, METHOD, "b", 2)) == [["b1", "b2"], ["b3", "b4"], ["a0"]]
    # Scores are still measured and reported.
    assert [r.score for r in got.report.rows if r.receiver == "b"] == pytest.approx([0.01, 0.81, 0.95, 1.3])


def test_eq_10_without_weights() -> None:
    # rho = 1 on 7, 9, 11, 13 tokens: J = (1.5*7 - .5*(9 + 11 + 13)) / 40 = (10.5 - 16.5) / 40 = -.15.
    # rho = 1.5 for the success: min(2.25, 1.28*1.5) = 1.92: J = (1.92*7 - 16.5) / 40 = -.0765.
    minibatch = at.trained(at.moved(METHOD, scores=SCORES), METHOD, "b")[-1]
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.15, abs=1e-5)
    assert at.objective(METHOD, minibatch, [1.5, 1.0, 1.0, 1.0]) == pytest.approx(-0.0765, abs=1e-5)


def test_gradient_on_two_responses() -> None:
    # own a = 1, rho 1, .7; peer a = -2, rho 1.2, .7 (clipped: .7 < .8). dL/dlogp = -rho a / 4: -.25, -.175, +.6, 0.
    ratios = [[1, 0.7], [1.2, 0.7]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0), at.row(ratios[1], -2.0, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-0.25, -0.175, 0.6, 0], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}, {"a": (1, 2), "b": (3, 3)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"], ["b1"]]
