"""GRPO: group advantages, the clipped token ratio, one token mean; nothing from anyone else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from graft.aggregation import Totals
from graft.methods import METHODS
from graft.types import Minibatch
from tests.graft import tiny
from tests.methods.baseline_situations import (
    close,
    contents,
    counted,
    evaluate,
    exact,
    group,
    loss_of_nothing,
    minibatches,
    moved,
    numeric,
    plain_gradients,
    plain_logprobs,
    ratio_inputs,
    recorded,
    settings,
    stepped,
)

GRPO = METHODS["grpo"]


def advantages(rewards: list[float]) -> tuple[float, ...]:
    return GRPO.bound("own_advantage")({"a": group("p0", "a", rewards)}, "a", "a", {"a": 1.0})


# k of 8: mean k/8, ss = k (8-k)/8, std = sqrt(ss/7).
# k=1: std = sqrt(.875/7) = .353553; .875/.353554 = 2.474867, -.125/.353554 = -.353552 (population std: 2.645743, -.377963).
# k=4: std = sqrt(2/7) = .534522; +-.5/.534523 = +-.935413.   k=7: k=1 mirrored.
@pytest.mark.parametrize(
    ("k", "success", "failure"), [(1, 2.474867, -0.353552), (4, 0.935413, -0.935413), (7, 0.353552, -2.474867)]
)
def test_advantages_of_k_successes_of_8(k: int, success: float, failure: float) -> None:
    got = advantages([1.0] * k + [0.0] * (8 - k))
    assert got == pytest.approx([success] * k + [failure] * (8 - k), abs=1e-6)


def test_advantages_of_graded_rewards() -> None:
    # mean .875; deviations -.875, -.375, .125, 1.125; ss = .765625 + .140625 + .015625 + 1.265625 = 2.1875;
    # std = sqrt(2.1875/3) = .853913; divided by .853914.
    assert advantages([0.0, 0.5, 1.0, 2.0]) == pytest.approx([-1.024694, -0.439155, 0.146385, 1.317464], abs=2e-6)


def test_eps_is_added_to_the_std_outside_the_root() -> None:
    # Rewards 0 and 2e-6: std = sqrt(2) e-6, so a = 1e-6 / ((sqrt(2) + 1) e-6) = sqrt(2) - 1; inside the root it would be .001.
    assert advantages([0.0, 2e-6]) == pytest.approx([1 - math.sqrt(2), math.sqrt(2) - 1], abs=1e-9)


# 0.1 three times has a rounded mean that is not 0.1: equal rewards must give 0 by comparison, not by luck.
# A group of one has nothing to compare (verl gives it A = r).
@pytest.mark.parametrize("rewards", [[0.0] * 8, [1.0] * 8, [0.1] * 3, [1.0], [0.0]])
def test_uniform_groups_and_groups_of_one_are_exactly_zero(rewards: list[float]) -> None:
    assert advantages(rewards) == (0.0,) * len(rewards)


# -min(rho a, clip(rho, .8, 1.28) a). With verl's dual clip (c = 3) the last would cost 3; GRPO and DAPO have none, nor have we.
@pytest.mark.parametrize(
    ("rho", "a", "loss", "slope"),
    [
        (1.5, 1, -1.28, 0.0), (1.2, 1, -1.2, -1.2), (0.5, 1, -0.5, -0.5),
        (0.5, -1, 0.8, 0.0), (1.5, -1, 1.5, 1.5), (5, -1, 5.0, 5.0),
    ],
)  # fmt: skip
def test_one_token(rho: float, a: float, loss: float, slope: float) -> None:
    value, gradient, metrics = evaluate(GRPO, ratio_inputs([[rho]], [a]))
    assert value == pytest.approx(loss, abs=1e-12)
    assert float(gradient) == pytest.approx(slope, abs=1e-12)
    assert metrics == {"clipped_own": float(slope == 0.0), "clipped_peer": 0.0}


def test_a_minibatch_by_hand() -> None:
    # a = +1: rho 1, 1.5 -> 1, 1.28 (clipped)        sum  2.28
    # a = -.5: rho 1, .5, 2 -> -.5, -.4 (clipped), -1  sum -1.9
    # loss = -(2.28 - 1.9) / 5 = -.076; gradients -rho a / 5: -.2, 0 and .1, 0, .2. A mean of row means would give -.2533.
    x = ratio_inputs([[1.0, 1.5], [1.0, 0.5, 2.0]], [1.0, -0.5])
    value, gradient, metrics = evaluate(GRPO, x)
    assert value == pytest.approx(-0.076, abs=1e-12)
    expected = exact([[-0.2, 0.0, 0.0], [0.1, 0.0, 0.2]])
    torch.testing.assert_close(gradient, expected, atol=1e-7, rtol=0)
    assert metrics == {"clipped_own": 2.0, "clipped_peer": 0.0}


def test_gradient_is_the_numeric_one() -> None:
    x = ratio_inputs([[1.0, 1.4, 0.7, 1.1], [0.9, 0.6], [1.3, 1.05, 0.75]], [1.2, -0.7, -0.4])
    _, gradient, _ = evaluate(GRPO, x)
    torch.testing.assert_close(gradient, numeric(GRPO, x), atol=1e-8, rtol=0)
    assert int((gradient != 0).sum()) == 6  # 1.4 with a > 0, .6 and .75 with a < 0 are clipped


def test_token_mean() -> None:
    # (1 + 1 + 4*4) / 6 = 3: long responses weigh more.
    losses = torch.tensor([[1.0, 1.0, 0.0, 0.0], [4.0] * 4])
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0] * 4])
    assert float(GRPO.bound("aggregation")(losses, mask, torch.tensor([False, False]), Totals(6, 2))) == 3.0


def test_zero_variance_rows_dilute_and_are_not_computed() -> None:
    # a = 1 on 2 tokens: alone -2/2; beside 6 tokens of a failed group -2/8.
    alone, _, _ = evaluate(GRPO, ratio_inputs([[1.0, 1.0]], [1.0]))
    value, gradient, _ = evaluate(GRPO, ratio_inputs([[1.0, 1.0], [1.3, 0.4, 1.0], [2.0, 1.0, 0.1]], [1.0, 0.0, 0.0]))
    assert (alone, value) == (-1.0, -0.25)
    assert not gradient[1:].any()
    loss = GRPO.loss()
    assert [loss.computes(tiny.sequence((1,), (-1.0,), a)) for a in (0.0, 0.5, -0.5)] == [False, True, True]


def test_no_minibatch_is_no_loss() -> None:
    assert loss_of_nothing(GRPO) == 0.0


def test_nothing_of_a_peer_is_used() -> None:
    # Even with groups of two models at hand: own responses only, own advantages, batch order, cut in twos.
    got = moved(GRPO, {"a": counted("a", [1, 0, 4, 2, 3]), "b": counted("b", [2, 2, 2, 2, 2])})
    assert not any(got.peer.values())
    assert got.report.rows == ()
    batches = minibatches(GRPO, got, "a", 2)
    assert contents(batches) == [[("p0", "a", 4), ("p1", "a", 4)], [("p2", "a", 4), ("p3", "a", 4)], [("p4", "a", 4)]]
    assert [m.index for m in batches] == [0, 1, 2]
    # 1 of 4: std .5, so a = .75/.500001 and -.25/.500001; unanimous groups stay with exactly 0.
    a = [s.advantage for m in batches for s in m.sequences]
    assert a[:4] == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)
    assert a[4:12] == [0.0] * 8
    assert {s.weight for m in batches for s in m.sequences} == {1.0}


def test_no_kl_no_entropy_no_dual_clip() -> None:
    assert set(GRPO.hyperparameters) == {"advantage_eps", "clip_low", "clip_high"}
    assert not GRPO.needs_reference
    assert not GRPO.loss().needs_entropies


def test_a_step_on_a_real_policy(tiny_dirs: dict[str, Path]) -> None:
    # Three prompts with 1, 0, 2 of 4 successes in minibatches of two: the second starts where the first moved the weights to.
    policy = tiny.policy(tiny_dirs["quick"])
    seen = recorded(policy)
    before = {k: p.detach().clone() for k, p in policy.model.named_parameters()}
    result = stepped(GRPO, {"a": policy}, ["1", "0", "2"], settings(3, 2))
    assert [len(m.sequences) for m in seen] == [8, 4]
    model = result.metrics["models"]["a"]
    assert (model["rollouts"], model["minibatches"], model["peer_tokens"]) == (12, 2, 0)
    assert model["own_tokens"] == sum(m.tokens for m in seen)
    assert any(not torch.equal(before[k], p) for k, p in policy.model.named_parameters())


def test_the_update_is_the_plain_formula(tiny_dirs: dict[str, Path]) -> None:
    # -sum min(rho a, clip(rho) a) / tokens, row by row without cache or padding.
    policy = tiny.policy(tiny_dirs["quick"])
    minibatch = tiny.mixed_minibatch(policy)
    minibatch = Minibatch(0, tuple(s for s in minibatch.sequences if not s.is_peer))
    got, _ = tiny.gradients(policy, minibatch, GRPO.loss())
    total = torch.zeros(())
    for s in minibatch.sequences:
        logp, _ = plain_logprobs(policy, s)
        rho = (logp - torch.tensor(s.old_logprobs)).exp()
        total = total - torch.minimum(rho * s.advantage, rho.clamp(0.8, 1.28) * s.advantage).sum() / minibatch.tokens
    assert close(got, plain_gradients(policy, total))


def test_it_trains_one_model_per_run(tiny_dirs: dict[str, Path]) -> None:
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    with pytest.raises(ValueError, match="grpo trains one model per run; got a, b"):
        stepped(GRPO, policies, ["1", "2"], settings(2, 2))


def test_an_all_failed_step_only_decays_the_weights(tiny_dirs: dict[str, Path]) -> None:
    # Gradient 0 and empty moments: AdamW's step is p (1 - lr wd) = p (1 - 1e-3 * 1e-2).
    policy = tiny.policy(tiny_dirs["quick"])
    before = {k: p.detach().clone() for k, p in policy.model.named_parameters()}
    result = stepped(GRPO, {"a": policy}, ["0", "0"], settings(2, 2))
    model = result.metrics["models"]["a"]
    assert (model["minibatches"], model["grad_norm_mean"], model["loss_mean"]) == (1, 0.0, 0.0)
    assert model["own_tokens"] > 0
    for k, p in policy.model.named_parameters():
        torch.testing.assert_close(p.detach(), before[k] * (1 - 1e-5), atol=1e-7, rtol=1e-6)
