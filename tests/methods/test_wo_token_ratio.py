"""The response's ratio exp(mean log-ratio) in place of the token's, own and peer; clips and token mean stay GRAFT's."""

from __future__ import annotations

import math

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch, Sequence
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["wo_token_ratio"], METHODS["graft"]


def test_differs_in_the_ratio_alone() -> None:
    assert changed(METHOD, GRAFT) == {"own_loss", "peer_loss"}
    assert (METHOD.hyperparameters["clip_low"], METHOD.hyperparameters["clip_high"]) == (0.2, 0.28)


def test_the_ratio_by_hand() -> None:
    # log-ratios +.1, -.1, +.05: mean .0166667, s = 1.016806; one response with a = 1: J = s.
    s = Sequence("p", "a", "a", (1,), (1, 2, 3), (-1.1, -1.9, -0.55), 1.0)
    got = at.objective(METHOD, Minibatch(0, (s,)), [[math.exp(0.1), math.exp(-0.1), math.exp(0.05)]])
    assert got == pytest.approx(1.016806, abs=1e-6)


@pytest.mark.parametrize("peer", [False, True])
def test_own_and_peer_tokens_cancel_out(peer: bool) -> None:
    # Ratios 2 and .5 are a sequence ratio of 1: nothing is clipped and J = a = 1. GRAFT: (1.28 + .5) / 2 = .89.
    minibatch = Minibatch(0, (at.row([2, 0.5], 1.0, peer=peer),))
    assert at.objective(METHOD, minibatch, [[2, 0.5]]) == pytest.approx(1.0, abs=1e-12)
    assert at.objective(GRAFT, minibatch, [[2, 0.5]]) == pytest.approx(0.89, abs=1e-12)


def test_eq_10_and_its_gradient_on_two_responses() -> None:
    # own  a = 2,  w = 1,  ratios 2, .5, 1: s = 1            -> 2 on 3 tokens                 sum  6
    # peer a = -1, w = .9, ratios 1.21, 1:  s = 1.21^.5 = 1.1 -> -1.1 on 2 tokens, times .9    sum -1.98
    # J = (6 - 1.98) / 5 = .804. d s/dlogp_t = s / L, so dL/dlogp_t = -w a s L / (L * 5): -.4 each and .9*1.1/5 = .198 each.
    ratios = [[2, 0.5, 1], [1.21, 1]]
    minibatch = Minibatch(0, (at.row(ratios[0], 2.0), at.row(ratios[1], -1.0, weight=0.9, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(0.804, abs=1e-12)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-0.4, -0.4, -0.4, 0.198, 0.198], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


# min(s a, clip(s, .8, 1.28) a) on one response of two tokens.
@pytest.mark.parametrize(
    ("s", "a", "value", "slope"),
    [(1.5, 1.0, 1.28, 0.0), (0.5, 1.0, 0.5, 0.25), (0.5, -1.0, -0.8, 0.0), (1.5, -1.0, -1.5, -0.75)],
)
def test_a_clipped_response_has_no_gradient_at_all(s: float, a: float, value: float, slope: float) -> None:
    minibatch = Minibatch(0, (at.row([s, s], a, peer=True),))
    x = at.loss_inputs(minibatch, [[s, s]])
    assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(value, abs=1e-12)
    # dJ/dlogp_t = a s / 2 where not clipped
    assert at.flat(at.gradient(METHOD, minibatch, x)) == pytest.approx([-slope, -slope], abs=1e-12)


def test_from_the_exchange() -> None:
    # As in test_graft, s of the GATE .79 (dropped), .81, .95, 1.3; with every sequence ratio 1.1 and a = -.5:
    # J = -.55 (.81*9 + .95*11 + 13) / 33 = -.512333.
    got = at.moved(METHOD, scores={"a00": 0.79, "a01": 0.81, "a02": 0.95, "a03": 1.3})
    minibatch = at.trained(got, METHOD, "b")[-1]
    assert at.names([minibatch]) == [["a01", "a02", "a03"]]
    assert at.objective(METHOD, minibatch, [1.1, 1.1, 1.1]) == pytest.approx(-0.512333, abs=1e-5)
    dropped = at.moved(METHOD, scores={f"a0{j}": 0.1 for j in range(4)})
    assert len(at.trained(dropped, METHOD, "b")) == 4


def test_nothing_moves_without_a_way_back() -> None:
    assert at.moved(METHOD, {"a": (1,), "b": (0,)}).report.rows == ()
