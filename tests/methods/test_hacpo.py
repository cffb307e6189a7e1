"""HACPO: joint advantages weighed by capability, GSPO on own responses with a KL term, a one-sided stepwise clip on peers'."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graft.composition import Method
from graft.cotrain import Setup, run_step
from graft.exchange import exchange
from graft.methods import METHODS
from graft.policies.base import TokenPair
from graft.types import Minibatch
from tests.graft import tiny
from tests.methods.baseline_situations import (
    SMALL,
    Scripted,
    close,
    contents,
    counted,
    evaluate,
    exact,
    group,
    judge,
    loss_of_nothing,
    minibatches,
    moved,
    numeric,
    plain_gradients,
    plain_logprobs,
    ratio_inputs,
    recorded,
    scheduled,
    settings,
    stepped,
)

GSPO, HACPO = METHODS["gspo"], METHODS["hacpo"]
FAIL, HALF = [0.0] * 4, [1.0, 1.0, 0.0, 0.0]

# ---- capability


def test_capability_is_the_mean_of_the_last_five_steps_with_the_current_one() -> None:
    capability = HACPO.bound("capability")
    assert capability((0.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.25)) == pytest.approx(3.25 / 5)
    # Fewer than five: the mean of those there are; step 1 is its own rate.
    assert capability((0.2,)) == 0.2
    assert capability((0.2, 0.4)) == pytest.approx(0.3)
    assert HACPO.with_hyperparameters(capability_window=1).bound("capability")((0.2, 0.4)) == 0.4
    assert METHODS["grpo"].bound("capability")((0.2, 0.4)) == 1.0


# ---- advantages


def advantages(
    own: list[float], peer: list[float], capability: dict[str, float], ratio_max: float | None = None
) -> tuple[list[float], list[float]]:
    """(own, peer) advantages of learner a, whose peer is b."""
    method = HACPO if ratio_max is None else HACPO.with_hyperparameters(capability_ratio_max=ratio_max)
    groups = {"a": group("p0", "a", own), "b": group("p0", "b", peer)}
    mine = method.bound("own_advantage")(groups, "a", "a", capability)
    return list(mine), list(method.bound("peer_advantage")(groups, "b", "a", capability))


def test_the_advantage_vector() -> None:
    # omega(a,b) = .25/.5 = .5: mu = .5 * 2 / 8 = .125. Raw rewards 2 of 8: std = sqrt(1.5/7) = .462910.
    # -.125/.462911 = -.270030; .875/.462911 = 1.890212. A peer's is times omega(b,a) = 2: 3.780424, -.540061.
    own, peer = advantages(FAIL, HALF, {"a": 0.25, "b": 0.5})
    assert own == pytest.approx([-0.27003] * 4, abs=1e-6)
    assert peer == pytest.approx([2 * 1.890212] * 2 + [2 * -0.27003] * 2, abs=2e-6)


def test_the_same_responses_from_the_stronger_side() -> None:
    # Learner a is the strong one now: omega(a,b) = 2, mu = (2 * 0 + 2) / 8 = .25: .75/.462911 = 1.620182, -.540061.
    # The weak peer's failures: omega(b,a) = .5 times -.540061.
    own, peer = advantages(HALF, FAIL, {"a": 0.5, "b": 0.25})
    assert own == pytest.approx([1.620182] * 2 + [-0.540061] * 2, abs=1e-6)
    assert peer == pytest.approx([-0.27003] * 4, abs=1e-6)


def test_equal_capabilities_give_pooled_advantages() -> None:
    own, peer = advantages([1.0, 0.0, 0.0, 0.0], HALF, {"a": 0.3, "b": 0.3})
    # 3 of 8: mean .375, ss = 3 * .390625 + 5 * .140625 = 1.875, std = .517549: 1.207612 and -.724567.
    assert own == pytest.approx([1.207612] + [-0.724567] * 3, abs=2e-6)
    assert peer == pytest.approx([1.207612] * 2 + [-0.724567] * 2, abs=2e-6)


# Ratios are kept in [.1, 10]: .01/.5 = .02 counts as .1, and a capability of 0 as well.
# mu = .1 * 2 / 8 = .025; .975/.462911 = 2.106236 times 10; -.025/.462911 = -.054006.
@pytest.mark.parametrize("weak", [0.01, 0.0])
def test_the_ratio_is_bounded_both_ways(weak: float) -> None:
    own, peer = advantages(FAIL, HALF, {"a": weak, "b": 0.5})
    assert own == pytest.approx([-0.054006] * 4, abs=1e-6)
    assert peer == pytest.approx([21.06236] * 2 + [-0.54006] * 2, abs=2e-5)


def test_capabilities_are_floored_at_1e_8() -> None:
    # 0 against 1e-7 is 1e-8/1e-7 = .1 (with a bound of 1000 an unfloored 0 would count as .001): as in the test above.
    own, peer = advantages(FAIL, HALF, {"a": 0.0, "b": 1e-7}, ratio_max=1000)
    assert own == pytest.approx([-0.054006] * 4, abs=1e-6)
    assert peer[0] == pytest.approx(21.06236, abs=2e-5)
    # Both 0: ratio 1, pooled: 1.620182, -.540061.
    own, peer = advantages(FAIL, HALF, {"a": 0.0, "b": 0.0})
    assert own + peer == pytest.approx([-0.540061] * 4 + [1.620182] * 2 + [-0.540061] * 2, abs=1e-6)


def test_mu_above_one_is_the_mean_of_ones_own_rewards() -> None:
    # omega = 9: (4 + 9 * 2) / 8 = 2.75 > 1, so mu = own mean 1. 6 of 8: std .462910; peers times 1/9.
    # own (1-1) = 0; peer success 0, failure -1/.462911/9 = -.240027.
    own, peer = advantages([1.0] * 4, HALF, {"a": 0.9, "b": 0.1})
    assert own == pytest.approx([0.0] * 4, abs=1e-12)
    assert peer == pytest.approx([0.0, 0.0, -0.240027, -0.240027], abs=1e-6)


def test_mu_of_exactly_one_stays() -> None:
    # omega = 2: (2 + 2 * 3) / 8 = 1, not above 1: own successes get 0; with the own mean .5 they would get +1.08.
    # 5 of 8: ss = 5 * .140625 + 3 * .390625 = 1.875, std .517549; failures -1/.517550 = -1.932180.
    own, _ = advantages(HALF, [1.0, 1.0, 1.0, 0.0], {"a": 0.5, "b": 0.25})
    assert own == pytest.approx([0.0, 0.0, -1.93218, -1.93218], abs=2e-6)


# A weight must not create a signal: without the rule, eight successes at omega .5 would have mu .75 and std 0.
@pytest.mark.parametrize("r", [0.0, 1.0, 0.1])
def test_equal_rewards_throughout_are_exactly_zero(r: float) -> None:
    assert advantages([r] * 4, [r] * 4, {"a": 0.25, "b": 0.5}) == ([0.0] * 4, [0.0] * 4)


def test_an_all_correct_peer_teaches_a_failed_group() -> None:
    # mu = .5 * 4 / 8 = .25; 4 of 8: std .534522; -.25/.534523 = -.467706; .75/.534523 * 2 = 2.806238.
    own, peer = advantages(FAIL, [1.0] * 4, {"a": 0.25, "b": 0.5})
    assert own == pytest.approx([-0.467706] * 4, abs=1e-6)
    assert peer == pytest.approx([2.806238] * 4, abs=2e-6)


def test_one_response_each() -> None:
    # mu = .5 * 1 / 2 = .25; std = sqrt(.5) = .707107: -.353553; .75/.707108 * 2 = 2.121317.
    own, peer = advantages([0.0], [1.0], {"a": 0.25, "b": 0.5})
    assert own == pytest.approx([-0.353553], abs=1e-6)
    assert peer == pytest.approx([2.121317], abs=2e-6)
    # A model alone with one response compares with nothing.
    assert HACPO.bound("own_advantage")({"a": group("p0", "a", [1.0])}, "a", "a", {"a": 1.0}) == (0.0,)


def test_three_models() -> None:
    # a fails, b has 2 of 4 at omega .5, c 1 of 4 at omega .25: mu = (.5 * 2 + .25) / 12 = .1041667.
    # 3 of 12: mean .25, std = sqrt(2.25/11) = .452267. a: -.1041667/.452268 = -.230321; c's success: 4 * .8958333/.452268.
    groups = {m: group("p0", m, r) for m, r in (("a", FAIL), ("b", HALF), ("c", [1.0, 0.0, 0.0, 0.0]))}
    capability = {"a": 0.2, "b": 0.4, "c": 0.8}
    assert HACPO.bound("own_advantage")(groups, "a", "a", capability) == pytest.approx([-0.230321] * 4, abs=2e-6)
    assert HACPO.bound("peer_advantage")(groups, "c", "a", capability)[0] == pytest.approx(7.923029, abs=1e-5)


# ---- the peer's term


def peer_term(s: float, m: int, a: float = 2.0, method: Method = HACPO) -> tuple[float, list[float], float]:
    """(J, dJ/dlogp of both tokens, clipped tokens) of a two-token response with sequence score s in minibatch m."""
    x = ratio_inputs([[1.25 * s, s / 1.25]], [a], peer=[True], index=m)
    value, gradient, metrics = evaluate(method, x)
    return -value, (-gradient).flatten().tolist(), metrics["clipped_peer"]


# a = omega A = 2 * 1, alpha = 1: J = 2 c sg[c], c = clip(s, .8 + .025 m, 1). dJ/ds = 2 c inside (1.8 at .9) and 0 outside;
# dJ/dlogp_t = dJ/ds * s / 2 tokens: 1.8 * .9 / 2 = .81.
# m=2: lower .85, .85^2 * 2 = 1.445. m=3: lower .875, .875^2 * 2 = 1.53125.
@pytest.mark.parametrize(
    ("s", "m", "j", "slope"), [(0.90, 2, 1.62, 1.8), (0.84, 2, 1.445, 0.0), (0.86, 3, 1.53125, 0.0), (1.05, 2, 2.0, 0.0)]
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_four_cases(s: float, m: int, j: float, slope: float, sign: float) -> None:
    # There is no min() with an unclipped term: a negative advantage changes the sign and nothing else.
    got, gradient, clipped = peer_term(s, m, 2.0 * sign)
    assert got == pytest.approx(sign * j, abs=1e-12)
    assert gradient == pytest.approx([sign * slope * s / 2] * 2, abs=1e-12)
    assert clipped == (0.0 if slope else 2.0)


def test_the_bound_rises_with_the_minibatch_and_stops_at_one() -> None:
    # s = .81 is inside at m = 0 (.8), outside from m = 1 (.825); from m = 8 on the lower bound is 1 and all s < 1 give c = 1.
    assert peer_term(0.81, 0)[0] == pytest.approx(2 * 0.81**2)
    assert peer_term(0.81, 1)[0] == pytest.approx(2 * 0.825**2)
    for m in (8, 20):
        assert peer_term(0.99, m)[:2] == (pytest.approx(2.0), [0.0, 0.0])
        # Both bounds belong to the interval, also when they meet: s = 1 is unclipped and teaches, a s / 1 token = 2.
        value, gradient, metrics = evaluate(HACPO, ratio_inputs([[1.0]], [2.0], peer=[True], index=m))
        assert (value, float(gradient), metrics["clipped_peer"]) == (-2.0, -2.0, 0.0)


def test_alpha_is_the_power_of_a_constant() -> None:
    # alpha 3 at s = .9: J = 2 * .9^4 = 1.3122, gradient s^(alpha+1) omega A / L = 1.3122 / 2 per token.
    # Finite differences see the whole power s^(alpha+1), whose slope is alpha + 1 times as steep.
    for alpha in (0.0, 1.0, 3.0):
        method = HACPO.with_hyperparameters(peer_alpha=alpha)
        j, gradient, _ = peer_term(0.9, 2, method=method)
        assert j == pytest.approx(2 * 0.9 ** (alpha + 1))
        assert gradient == pytest.approx([j / 2] * 2)
        x = ratio_inputs([[1.125, 0.72]], [2.0], peer=[True], index=2)
        _, analytic, _ = evaluate(method, x)
        torch.testing.assert_close(analytic * (alpha + 1), numeric(method, x), atol=1e-8, rtol=0)


def test_s_compares_the_learners_tokens_with_the_sources_mean() -> None:
    # Three learner tokens of mean -1.1 against the source's mean -1 over its own tokens: s = e^-.1 = .904837.
    # The learner's old log-probs and their ratios play no part.
    x = ratio_inputs([[1.0, 1.0, math.exp(-0.3)]], [2.0], peer=[True], source_mean=[-1.0], index=2)
    value, _, _ = evaluate(HACPO, x)
    assert value == pytest.approx(-2 * math.exp(-0.2), abs=1e-12)
    assert evaluate(HACPO, replace(x, old_logprobs=x.old_logprobs - 3.0))[0] == value
    # Against a source mean of -1.3 it is e^.2 > 1: c = 1.
    assert evaluate(HACPO, replace(x, source_mean=x.source_mean - 0.3))[0] == pytest.approx(-2.0)


@pytest.mark.parametrize(("source", "j"), [(-80.0, 2.0), (80.0, 2 * 0.85**2)])
def test_hopeless_scores_are_finite_and_teach_nothing(source: float, j: float) -> None:
    value, gradient, _ = evaluate(HACPO, ratio_inputs([[1.0]], [2.0], peer=[True], source_mean=[source], index=2))
    assert value == pytest.approx(-j)
    assert not gradient.any()


# ---- own responses


def test_own_responses_are_gspo_plus_kl() -> None:
    # s = 1.0002 with a = 2: -2.0004. x = .1 on both tokens: k3 = exp(-.1) + .1 - 1 = .004837418, times 1e-3.
    # dk3/dlogp = 1 - exp(-.1) = .095162582. One row of two tokens: gradient (-2.0004 + 1e-3 * .095162582) / 2.
    ratio = 1.0002
    logp = math.log(ratio) - 1.0
    x = ratio_inputs([[ratio, ratio]], [2.0], ref=[[logp - 0.1] * 2])
    value, gradient, metrics = evaluate(HACPO, x)
    assert value == pytest.approx(-2.0004 + 4.837418e-6, abs=1e-11)
    torch.testing.assert_close(gradient, exact([[(-2.0004 + 9.5162582e-5) / 2] * 2]), atol=1e-11, rtol=0)
    assert metrics["kl_own"] == pytest.approx(2 * 4.837418e-3, abs=1e-8)  # a sum over tokens


def test_the_kl_vector_and_its_zero() -> None:
    # With a = 0 only the KL term is left: 1e-3 * 4.837e-3 at x = .1; exactly nothing at pi = ref, where k3 has its minimum.
    value, _, _ = evaluate(HACPO, ratio_inputs([[1.0]], [0.0], ref=[[-1.1]]))
    assert value == pytest.approx(4.837e-6, abs=1e-9)
    # x = -.1: exp(.1) - .1 - 1 = .005170918.
    value, gradient, _ = evaluate(HACPO, ratio_inputs([[1.0]], [0.0], ref=[[-0.9]]))
    assert value == pytest.approx(5.170918e-6, abs=1e-11)
    assert float(gradient) == pytest.approx(1e-3 * (1 - math.exp(0.1)), abs=1e-11)
    value, gradient, metrics = evaluate(HACPO, ratio_inputs([[1.0, 1.0]], [0.0], ref=[[-1.0, -1.0]]))
    assert (value, gradient.tolist(), metrics["kl_own"]) == (0.0, [[0.0, 0.0]], 0.0)


def test_k3_is_bounded_as_in_verl() -> None:
    # x = -30: exp(20) - 21 is cut to 10, and its gradient with it. x = +30: exp(-20) + 19 is cut to 10 as well.
    for ref in (29.0, -31.0):
        value, gradient, _ = evaluate(HACPO, ratio_inputs([[1.0]], [0.0], ref=[[ref]]))
        assert value == pytest.approx(1e-2)
        assert float(gradient) == 0.0


def test_gradient_of_own_and_peer_rows_is_the_numeric_one() -> None:
    # Rows: own inside, own clipped (KL remains), peer inside, peer outside; alpha 0, where there is no constant power.
    method = HACPO.with_hyperparameters(peer_alpha=0.0)
    ratios = [[1.0003, 1.0, 0.9998], [1.1, 1.2], [0.95, 0.9], [0.7, 0.6]]
    x = ratio_inputs(
        ratios,
        [1.3, 0.8, -1.5, 2.0],
        peer=[False, False, True, True],
        ref=[[-1.2] * 3, [-0.7] * 2, [9.0] * 2, [9.0] * 2],
        index=2,
    )
    _, gradient, _ = evaluate(method, x)
    torch.testing.assert_close(gradient, numeric(method, x), atol=1e-8, rtol=0)
    # The clipped own row has only 1e-3 (1 - exp(-x)) / (2 tokens * 4 rows).
    expected = [1e-3 * (1 - math.exp(-(math.log(r) - 1 + 0.7))) / 8 for r in ratios[1]]
    assert gradient[1, :2].tolist() == pytest.approx(expected, abs=1e-12)
    assert not gradient[3].any()


def test_a_minibatch_weighs_responses_equally() -> None:
    # Own: two tokens at s = 1, a = 2, at the reference; peer: one token at s = .9, a = 2: -(2 + 1.62) / 2 (token mean: -1.873).
    x = ratio_inputs([[1.0, 1.0], [0.9]], [2.0, 2.0], peer=[False, True], ref=[[-1.0, -1.0], [0.0]], index=2)
    assert evaluate(HACPO, x)[0] == pytest.approx(-1.81, abs=1e-12)


def test_peer_tokens_have_no_kl() -> None:
    # Purely peer rows need no reference; in a mixed micro-batch the reference values of peer rows change nothing.
    assert peer_term(0.9, 2)[0] == pytest.approx(1.62)
    values = []
    for ref in (-1.0, 5.0):
        x = ratio_inputs([[1.0], [0.9]], [0.0, 2.0], peer=[False, True], ref=[[-1.1], [ref]], index=2)
        value, gradient, metrics = evaluate(HACPO, x)
        values.append((value, gradient.tolist(), metrics["kl_own"]))
    assert values[0] == values[1]
    assert values[0][0] == pytest.approx((-1.62 + 4.837418e-6) / 2, abs=1e-11)
    assert values[0][2] == pytest.approx(4.837418e-3, abs=1e-8)


def test_own_rows_are_always_computed_and_silent_peers_never() -> None:
    loss = HACPO.loss()
    assert loss.computes(tiny.sequence((1,), (-1.0,), 0.0))  # the KL term is there without an advantage
    assert not loss.computes(tiny.sequence((1,), (-1.0,), 0.0, source="b"))
    assert loss.computes(tiny.sequence((1,), (-1.0,), 0.5, source="b"))


def test_a_reference_is_needed_and_asked_for(tiny_dirs: dict[str, Path]) -> None:
    assert HACPO.needs_reference
    assert not GSPO.needs_reference
    with pytest.raises(ValueError, match="needs reference log-probs"):
        evaluate(HACPO, ratio_inputs([[1.0]], [0.0]))
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    with pytest.raises(ValueError, match="hacpo needs a frozen reference policy"):
        Setup(policies, HACPO, settings(4, 2), judge())


# ---- what is trained on, in which order


def test_every_response_crosses_with_weight_one() -> None:
    groups = {"a": counted("a", [0, 4]), "b": counted("b", [2, 4])}
    receivers = {"a": Scripted(means={"b p0 r0": -7.0}), "b": Scripted()}
    got = exchange(groups, HACPO, np.random.default_rng(0), receivers=receivers, capability={"a": 0.25, "b": 0.5})
    assert got.report.reasons("a") == got.report.reasons("b") == {"admitted": 8}
    sequences = [s for g in got.peer["a"] for s in g.sequences]
    assert {s.weight for s in sequences} == {1.0}
    # The gate has no say at s = e^-6; the loss compares with the source's mean -1.
    assert {s.source_mean_logprob for s in sequences} == {-1.0}
    assert [s.advantage for s in sequences] == pytest.approx([3.780424] * 2 + [-0.540061] * 2 + [0.0] * 4, abs=2e-6)
    assert [s.advantage for g in got.own["a"] for s in g.sequences] == pytest.approx([-0.27003] * 4 + [0.0] * 4, abs=1e-6)
    # For learner b the same texts have other advantages: mu = 2/8, its own successes 1.620182, a's failures halved.
    assert [s.advantage for s in got.own["b"][0].sequences] == pytest.approx([1.620182] * 2 + [-0.540061] * 2, abs=1e-6)
    assert [s.advantage for s in got.peer["b"][0].sequences] == pytest.approx([-0.27003] * 4, abs=1e-6)


def test_own_minibatches_come_first_and_are_counted() -> None:
    # Four prompts in twos: m = 0, 1 own; m = 2, 3 peer, so the peer's lower bounds are .85 and .875.
    got = moved(HACPO, {"a": counted("a", [0, 1, 2, 3]), "b": counted("b", [2, 0, 4, 1])})
    batches = minibatches(HACPO, got, "a", 2)
    assert contents(batches) == [
        [("p0", "a", 4), ("p1", "a", 4)],
        [("p2", "a", 4), ("p3", "a", 4)],
        [("p0", "b", 4), ("p1", "b", 4)],
        [("p2", "b", 4), ("p3", "b", 4)],
    ]
    assert [m.index for m in batches] == [0, 1, 2, 3]
    assert HACPO.minibatches == 2


def test_blocks_are_cut_apart() -> None:
    # Three prompts in twos: 2 + 1 own and 2 + 1 of each peer: no minibatch mixes sources.
    groups = {m: counted(m, k) for m, k in (("a", [0, 1, 2]), ("b", [2, 0, 4]), ("c", [1, 1, 1]))}
    batches = minibatches(HACPO, moved(HACPO, groups), "b", 2)
    sources = [{s.source for s in m.sequences} for m in batches]
    assert sources == [{"b"}, {"b"}, {"a"}, {"a"}, {"c"}, {"c"}]
    assert [len(m.sequences) for m in batches] == [8, 4] * 3
    assert [m.index for m in batches] == list(range(6))


def test_a_peer_block_that_falls_away_whole_leaves_the_own_minibatches() -> None:
    # All of b's texts hold a special token of its tokenizer: no step is taken on nothing. With one group left there is one.
    lost = [group(f"p{i}", "b", HALF, SMALL, texts=["<|user|>"] * 4) for i in range(4)]
    for b, count in ((lost, 2), ([*lost[:3], group("p3", "b", HALF, SMALL)], 3)):
        groups = {"a": counted("a", [0, 1, 2, 3]), "b": tuple(b)}
        got = exchange(groups, HACPO, np.random.default_rng(0), receivers={"a": Scripted(), "b": Scripted(SMALL)})
        batches = minibatches(HACPO, got, "a", 2)
        assert len(batches) == count
        assert [m.index for m in batches] == list(range(count))
        # The lost responses still were part of the joint statistics: p0 has 2 of 8, at equal capabilities -.540061.
        assert batches[0].sequences[0].advantage == pytest.approx(-0.540061, abs=1e-6)


def test_no_rows_are_no_loss() -> None:
    assert loss_of_nothing(HACPO) == 0.0


# ---- real policies


class Reference:
    """A frozen copy that notes what it is asked."""

    def __init__(self, path: Path):
        self.policy, self.asked = tiny.policy(path), []

    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]:
        self.asked += items
        return self.policy.score(items)


def test_the_update_is_the_plain_formula(tiny_dirs: dict[str, Path]) -> None:
    # Own rows: GSPO + 1e-3 k3 against log-probs .2 below; peer rows: -a c sg[c], bounds of minibatch 2. Four of each.
    policy = tiny.policy(tiny_dirs["quick"])
    rows = []
    for i, s in enumerate(tiny.mixed_minibatch(policy, drift=2e-4).sequences):
        now = policy.score([(s.prompt_ids, s.response_ids)])[0]
        mean = sum(now) / len(now)
        target = (0.9, 0.84, 0.97, 1.05)[i // 2]  # peers' scores: inside, below .85, inside, above 1
        ref = tuple(x - 0.2 for x in now)
        rows.append(replace(s, weight=1.0, source_mean_logprob=mean - math.log(target), ref_logprobs=ref))
    got, metrics = tiny.gradients(policy, Minibatch(2, tuple(rows)), HACPO.loss())
    total = torch.zeros(())
    for row in rows:
        logp, _ = plain_logprobs(policy, row)
        if row.is_peer:
            c = (logp.mean() - row.source_mean_logprob).exp().clamp(0.85, 1.0)
            total = total - row.advantage * c * c.detach() / 8
        else:
            s = (logp - torch.tensor(row.old_logprobs)).mean().exp()
            x = logp - torch.tensor(row.ref_logprobs)
            pg = -torch.minimum(s * row.advantage, s.clamp(1 - 3e-4, 1 + 4e-4) * row.advantage)
            total = total + (pg + 1e-3 * ((-x).exp() + x - 1).mean()) / 8
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-5)
    assert close(got, plain_gradients(policy, total))


def test_a_step_on_two_real_policies(tiny_dirs: dict[str, Path]) -> None:
    # Two prompts: a 0 and 2 of 4, b 2 and 2: rates .25 and .5 from this very step, so prompt 1 is the advantage vector above.
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    references = {name: Reference(tiny_dirs["quick"]) for name in "ab"}
    seen = {name: recorded(p) for name, p in policies.items()}
    result = stepped(HACPO, policies, ["0/2", "2/2"], settings(2, 1), reference=references.__getitem__)
    models = result.metrics["models"]
    assert (models["a"]["capability"], models["b"]["capability"]) == (0.25, 0.5)
    for name, peer in (("a", "b"), ("b", "a")):
        batches = seen[name]
        assert [{s.source for s in m.sequences} for m in batches] == [{name}, {name}, {peer}, {peer}]
        assert [m.index for m in batches] == [0, 1, 2, 3]
        own = [s for m in batches for s in m.sequences if not s.is_peer]
        # The reference is asked for own tokens only, once each.
        assert sorted(references[name].asked) == sorted((s.prompt_ids, s.response_ids) for s in own)
        assert all(len(s.ref_logprobs) == len(s.response_ids) for s in own)
        assert all(not s.ref_logprobs for m in batches for s in m.sequences if s.is_peer)
        # pi = ref at the first update; the second own minibatch is after it.
        assert 1e-5 < models[name]["kl_own_mean"] < 1.0
    first = seen["a"][0].sequences[0].prompt_id
    assert first == result.groups["a"][0].prompt.id
    a = [s for m in seen["a"] for s in m.sequences if s.prompt_id == first]
    assert [s.advantage for s in a if not s.is_peer] == pytest.approx([-0.27003] * 4, abs=1e-6)
    peers = [s.advantage for s in a if s.is_peer]
    assert peers
    assert all(min(abs(x - 3.780424), abs(x + 0.540061)) < 2e-6 for x in peers)


def test_at_the_reference_the_first_update_has_no_kl(tiny_dirs: dict[str, Path]) -> None:
    # One own minibatch: it is computed before any update, so k3 is 0 up to float32 noise on every token.
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    reference = Reference(tiny_dirs["quick"])
    result = stepped(HACPO, policies, ["0/2", "2/2"], settings(2, 2), reference=lambda name: reference)
    assert all(abs(result.metrics["models"][name]["kl_own_mean"]) < 1e-6 for name in "ab")


def test_capability_looks_back_over_steps(tiny_dirs: dict[str, Path]) -> None:
    # Rates of earlier steps come in as history: six of them, of which the last four count beside this step's .25 / .5.
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    reference = Reference(tiny_dirs["quick"])
    loop = settings(2, 2)
    setup = Setup(policies, HACPO, loop, judge(models=2), lambda name: reference)
    history = {"a": (1.0, 1.0, 0.0, 0.5, 0.25, 0.0), "b": (0.5,)}
    result = run_step(setup, scheduled(["0/2", "2/2"], loop), 1, history)
    models = result.metrics["models"]
    # (0 + .5 + .25 + 0 + .25) / 5 = .2; (.5 + .5) / 2 = .5.
    assert models["a"]["capability"] == pytest.approx(0.2)
    assert models["b"]["capability"] == pytest.approx(0.5)
    assert result.history["a"] == (*history["a"], 0.25)
    # omega(b,a) = 2.5, mu = .4 * 2 / 8 = .1: a's own failures on the first prompt -.1/.462911 = -.216024.
    first = result.groups["a"][0].prompt.id
    own = [s.advantage for g in result.exchange.own["a"] for s in g.sequences if s.prompt_id == first]
    assert own == pytest.approx([-0.216024] * 4, abs=1e-6)
