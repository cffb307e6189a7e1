"""LUFFY's f(p) a with f(p) = p / (p + .1) on peer tokens: no ratio, no clip, no gate; the rest is GRAFT."""

from __future__ import annotations

import math

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["graft_which_luffy_update"], METHODS["graft"]


def test_differs_in_the_peer_loss_and_the_gate() -> None:
    assert changed(METHOD, GRAFT) == {"peer_loss", "shaping_gamma", "admission", "delta"}
    assert METHOD.hyperparameters["shaping_gamma"] == 0.1


# p -> f = p / (p + .1) and the weight on grad log pi, .1 p / (p + .1)^2 (unshaped it would be p).
@pytest.mark.parametrize(
    ("p", "f", "weight"), [(0.01, 0.0909, 0.0826), (0.1, 0.5, 0.25), (0.5, 0.8333, 0.1389), (0.9, 0.9, 0.09)]
)
@pytest.mark.parametrize("a", [1.5, -0.5])
def test_coefficients(p: float, f: float, weight: float, a: float) -> None:
    minibatch = Minibatch(0, (at.row([1.0], a, old=math.log(p), peer=True),))
    x = at.loss_inputs(minibatch)
    assert at.loss_at(METHOD, minibatch, x) == pytest.approx(-a * f, abs=1e-4)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-a * weight], abs=1e-4)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_the_behaviour_probability_is_one_and_nothing_is_clipped() -> None:
    # Only p = pi_theta counts: p = .5 whether old was .5 (rho 1) or .05 (rho 10, which GRAFT clips).
    for old, rho in ((0.5, 1.0), (0.05, 10.0)):
        minibatch = Minibatch(0, (at.row([rho], 1.0, old=math.log(old), peer=True),))
        x = at.loss_inputs(minibatch, [[rho]])
        assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(0.833333, abs=1e-6)
        assert at.flat(at.gradient(METHOD, minibatch, x)) == pytest.approx([-0.138889], abs=1e-6)


def test_value_and_gradient_on_two_responses() -> None:
    # own  a = 2, rho 1, 1.5 (clipped): 2 + 2.56 = 4.56
    # peer a = -1, p = .1 twice and .9: -(.5 + .5 + .9) = -1.9. J = (4.56 - 1.9) / 5 = .532.
    # dL/dlogp: own -2/5, 0; peer +.25/5, +.25/5, +.09/5.
    ratios = [[1, 1.5], [1, 1, 9]]
    minibatch = Minibatch(0, (at.row(ratios[0], 2.0), at.row(ratios[1], -1.0, old=math.log(0.1), peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(0.532, abs=1e-9)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-0.4, 0, 0.05, 0.05, 0.018], abs=1e-9)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_from_the_exchange_without_a_gate() -> None:
    # s = e^-1 for all of a's four: log pi = -2, p = .135335, f = .575077. GRAFT would drop them all; here w = 1 and
    # J = f (1.5*7 - .5*(9 + 11 + 13)) / 40 = .575077 * -.15 = -.086262.
    got = at.moved(METHOD, scores={f"a0{j}": math.exp(-1) for j in range(4)})
    assert at.weights(got, "b") == {f"a0{j}": 1.0 for j in range(4)}
    minibatches = at.trained(got, METHOD, "b")
    assert at.names(minibatches) == [["b1"], ["b2"], ["b3"], ["b4"], ["a0"]]
    assert minibatches[-1].tokens == 40
    assert at.objective(METHOD, minibatches[-1]) == pytest.approx(-0.086262, abs=1e-5)
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 4, 4)


def test_own_minibatches_are_grafts() -> None:
    got = at.moved(METHOD)
    own = at.trained(got, METHOD, "b")[0]
    # p1 of b: a = .5, .5, .5, -1.5; rho = 1.5: min -> .64, .64, .64, -2.25 on 7, 9, 11, 13 tokens:
    # J = (17.28 - 29.25) / 40 = -.29925.
    assert at.objective(METHOD, own, [1.5] * 4) == pytest.approx(-0.29925, abs=1e-5)
    assert at.objective(GRAFT, own, [1.5] * 4) == at.objective(METHOD, own, [1.5] * 4)


def test_an_impossible_token_is_silent_and_finite() -> None:
    # p = e^-800 underflows to 0: f = 0 and no gradient, beside an ordinary token.
    minibatch = Minibatch(0, (at.row([1.0], 1.0, old=-800.0, peer=True), at.row([1.0], 1.0, old=math.log(0.1), peer=True)))
    x = at.loss_inputs(minibatch)
    assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(0.25, abs=1e-9)
    assert at.flat(at.gradient(METHOD, minibatch, x)) == pytest.approx([0.0, -0.125], abs=1e-9)


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"], ["b1"]]


def test_groups_of_one_are_never_mixed() -> None:
    assert not any(at.moved(METHOD, {"a": (1, 0), "b": (0, 1)}, n=1).peer.values())
