"""HACPO's update whose peer term is heard only on prompts that GRAFT selects; all other peer responses have advantage 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, HACPO = METHODS["graft_which_hacpo_update"], METHODS["hacpo"]
# p0: b fails and a has 2 of 4. p1: a fails and b has 1. p2: both fail. p3: b fails, a is all correct. p4: both mixed.
COUNTS = {"a": (2, 0, 0, 4, 1), "b": (0, 1, 0, 0, 2)}
CAPABILITY = {"a": 0.5, "b": 0.25}


def test_differs_from_hacpo_in_the_selection_alone() -> None:
    assert METHOD.parent == "hacpo"
    assert changed(METHOD, HACPO) == {"selection"}


def test_heard_advantages_by_hand() -> None:
    # b learns p0: mu = (2 * .25/.5 + 0) / 8 = .125; 2 ones of 8: sigma = sqrt((2*.75^2 + 6*.25^2)/7) = .462910.
    # own failures -.125/.462911 = -.270030; a's successes .875/.462911 = 1.890212, its failures -.270030,
    # both times omega(a, b) = .5/.25 = 2.
    got = at.moved(METHOD, COUNTS, capability=CAPABILITY)
    assert at.own_advantages(got, "b", "p0") == pytest.approx([-0.270030] * 4, abs=1e-6)
    mine = [v for k, v in at.advantages(got, "b").items() if k[:2] == "a0"]
    assert mine == pytest.approx([3.780424, 3.780424, -0.540060, -0.540060], abs=1e-5)


def test_every_other_prompt_is_silent_and_keeps_hacpos_own_advantages() -> None:
    got = at.moved(METHOD, COUNTS, capability=CAPABILITY)
    hacpo = at.moved(HACPO, COUNTS, capability=CAPABILITY)
    heard = {"b": "a0", "a": "b1"}
    for receiver, stem in heard.items():
        mine, theirs = at.advantages(got, receiver), at.advantages(hacpo, receiver)
        assert list(mine) == list(theirs)  # all 20 move
        assert len(mine) == 20
        assert all(mine[k] == (theirs[k] if k[:2] == stem else 0.0) for k in mine)
        assert got.own[receiver] == hacpo.own[receiver]
    # p3 and p4 are heard under HACPO: something was silenced.
    assert all(at.advantages(hacpo, "b")[k] != 0 for k in ("a30", "a40"))
    # Candidates and m are GRAFT's (p0 and p1, m = 1); every prompt is used.
    assert at.direction(got, "a", "b") == (1, 1, 5, 5, 20, 20)


def test_no_way_back_silences_all() -> None:
    # Balanced as GRAFT: b solves nothing, m = 0.
    got = at.moved(METHOD, {"a": (1, 2), "b": (0, 0)}, capability=CAPABILITY)
    assert set(at.advantages(got, "b").values()) == {0.0}
    assert at.own_advantages(got, "b", "p0") != [0.0] * 4  # own advantages stay joint
    last = at.trained(got, METHOD, "b")[-1]
    x = at.loss_inputs(last, [0.9] * 4)
    assert at.loss_at(METHOD, last, x) == 0.0
    assert not any(at.flat(at.gradient(METHOD, last, x)))


def test_own_minibatches_first_then_the_peers_block() -> None:
    got = at.moved(METHOD, COUNTS, {"a00": 0.1}, capability=CAPABILITY)
    assert METHOD.minibatches == 2
    minibatches = at.trained(got, METHOD, "b", 3)
    # No gate: s = .1 stays, with weight 1.
    assert at.names(minibatches) == [["b0", "b1", "b2"], ["b3", "b4"], ["a0", "a1", "a2"], ["a3", "a4"]]
    assert [m.index for m in minibatches] == [0, 1, 2, 3]
    assert set(at.weights(got, "b").values()) == {1.0}


# omega A = 2 times c sg[c], c = clip(s, .8 + .025 m, 1); the gradient is A s^2 within the bounds and 0 outside.
@pytest.mark.parametrize(
    ("s", "m", "value", "slope"), [(0.9, 2, 1.62, 1.62), (0.84, 2, 1.445, 0.0), (0.86, 3, 1.53125, 0.0), (1.05, 2, 2.0, 0.0)]
)
def test_the_peer_term(s: float, m: int, value: float, slope: float) -> None:
    # One response of two tokens at source mean -1: log-probs of -1 + log s. dJ/dlogp_t = slope / 2.
    minibatch = Minibatch(m, (at.row([s, s], 2.0, peer=True),))
    x = at.loss_inputs(minibatch, [[s, s]])
    assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(value, abs=1e-9)
    assert at.flat(at.gradient(METHOD, minibatch, x)) == pytest.approx([-slope / 2] * 2, abs=1e-9)


def test_two_responses_in_one_mean() -> None:
    # own  a = 1, ratios 1.0002 (inside 1 +- 3e-4/4e-4), no KL: J = 1.0002. peer a = 2, s = .9, m = 2: 1.62 (see above).
    # Mean over sequences: (1.0002 + 1.62) / 2 = 1.3101, whatever their lengths (3 and 2 tokens).
    # dL/dlogp: own -1.0002/(2*3), peer -1.62/(2*2).
    ratios = [[1.0002] * 3, [0.9] * 2]
    minibatch = Minibatch(2, (at.row(ratios[0], 1.0), at.row(ratios[1], 2.0, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    assert -at.loss_at(METHOD, minibatch, x) == pytest.approx(1.3101, abs=1e-9)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-1.0002 / 6] * 3 + [-0.405] * 2, abs=1e-9)
    # Finite differences see the power c^2 and not sg[c]: twice the peer's gradient, the own one as it is.
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx([-1.0002 / 6] * 3 + [-0.81] * 2, abs=1e-6)
    # A silent response halves the mean and has no gradient of its own.
    silent = Minibatch(2, (minibatch.sequences[0], replace(minibatch.sequences[1], advantage=0.0)))
    assert at.objective(METHOD, silent, ratios) == pytest.approx(0.5001, abs=1e-9)


def test_the_kl_term_is_on_own_tokens() -> None:
    # x = .1: k3 = exp(-.1) + .1 - 1 = .004837, times 1e-3; peers have none.
    own, peer = (Minibatch(0, (at.row([1.0, 1.0], 0.0, peer=p),)) for p in (False, True))
    assert at.loss_at(METHOD, own, at.loss_inputs(own, ref=0.1)) == pytest.approx(4.837e-6, abs=1e-9)
    assert at.loss_at(METHOD, peer, at.loss_inputs(peer, ref=0.1)) == 0.0
    # Own gradient: 1e-3 (1 - exp(-.1)) / 2 = 4.758e-5 per token.
    assert at.flat(at.gradient(METHOD, own, at.loss_inputs(own, ref=0.1))) == pytest.approx([4.758e-5] * 2, abs=1e-8)


def test_a_group_of_one_is_silent() -> None:
    got = at.moved(METHOD, {"a": (1, 0), "b": (0, 1)}, n=1)
    assert set(at.advantages(got, "b").values()) == {0.0}
