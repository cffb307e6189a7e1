"""One update is exactly one optimiser step on eq. 10, however the minibatch is cut."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from graft.aggregation import seq_mean_token_mean, seq_mean_token_sum, token_mean
from graft.losses import LossInputs, MinibatchLoss, Traits, token_clip
from graft.methods import METHODS
from graft.policies.torch_policy import TorchPolicy
from graft.types import Minibatch, SamplingSettings, StepKey
from tests.graft import tiny

LOSS = METHODS["graft"].loss()
KEY = StepKey(0, "train/a", 1)
FULL = SamplingSettings(1.0, 1.0, tiny.LIMIT)
VANISHES = Traits(vanishes=True)
KINDS = pytest.mark.parametrize("kind", tiny.KINDS)


def own_minibatch(policy: TorchPolicy) -> Minibatch:
    groups = policy.generate(tiny.prompts(3), n=3, key=KEY, sampling=FULL)
    rows = [
        tiny.sequence(r.ids, r.logprobs, (1.0, -0.5, 0.25)[i], prompt=g.prompt_ids)
        for g in groups
        for i, r in enumerate(g.responses)
    ]
    return Minibatch(0, tuple(rows))


@KINDS
def test_ratios_start_at_one(frozen: TorchPolicy) -> None:
    seen: list[LossInputs] = []

    def spy(x: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        seen.append(x)
        return token_clip(x, clip_low=0.2, clip_high=0.28)

    minibatch = own_minibatch(frozen)
    _, metrics = tiny.gradients(frozen, minibatch, MinibatchLoss(spy, spy, token_mean, VANISHES, VANISHES))
    (x,) = seen
    gap = ((x.logprobs - x.old_logprobs) * x.mask).abs().max()
    assert float(gap.detach()) < 1e-5
    assert int(x.mask.sum()) == minibatch.tokens
    # eq. 10 at rho = 1: -sum a |o| / sum |o|
    expected = -sum(s.advantage * len(s.response_ids) for s in minibatch.sequences) / minibatch.tokens
    assert metrics["loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["clipped_own"] == 0


@KINDS
@pytest.mark.parametrize("aggregation", [token_mean, seq_mean_token_sum, seq_mean_token_mean], ids=lambda f: f.__name__)
def test_cutting_a_minibatch_never_changes_the_gradient(tiny_dirs: dict[str, Path], kind: str, aggregation) -> None:  # type: ignore[no-untyped-def]
    clip = partial(token_clip, clip_low=0.2, clip_high=0.28)
    loss = MinibatchLoss(clip, clip, aggregation, VANISHES, VANISHES)
    results = []
    for rows in (1, 2, 4, 8):
        policy = tiny.policy(tiny_dirs[kind], train_rows=rows)
        results.append(tiny.gradients(policy, tiny.mixed_minibatch(policy), loss))
    whole, metrics = results[-1]
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-2
    for gradients, other in results[:-1]:
        scale = max(1.0, metrics["grad_norm"])
        assert all(float((gradients[k] - g).abs().max()) < 1e-6 * scale for k, g in whole.items())
        assert other == pytest.approx(metrics, abs=2e-6 * scale)


@KINDS
def test_gradient_is_the_plain_formulas(frozen: TorchPolicy) -> None:
    # Row by row without cache or padding, eq. 10 written out; the policy's cached, padded and shared-prefix path must agree.
    minibatch = tiny.mixed_minibatch(frozen)
    got, metrics = tiny.gradients(frozen, minibatch, LOSS)
    frozen.model.zero_grad()
    total = torch.zeros(())
    for s in minibatch.sequences:
        logits = frozen.model(torch.tensor([s.prompt_ids + s.response_ids])).logits[0, len(s.prompt_ids) - 1 : -1]
        logp = torch.log_softmax(logits, -1).gather(-1, torch.tensor(s.response_ids)[:, None]).squeeze(-1)
        rho = (logp - torch.tensor(s.old_logprobs)).exp()
        total = total - s.weight * torch.minimum(rho * s.advantage, rho.clamp(0.8, 1.28) * s.advantage).sum()
    (total / 36).backward()  # 1 + 2 + ... + 8 tokens, zero-advantage rows included
    assert metrics["loss"] == pytest.approx(float(total.detach()) / 36, abs=1e-6)
    for k, p in frozen.model.named_parameters():
        assert p.grad is not None, k
        assert torch.allclose(got[k], p.grad, atol=2e-6, rtol=1e-4), k


def test_skipping_zero_rows_changes_nothing(quick: TorchPolicy) -> None:
    minibatch = tiny.mixed_minibatch(quick)
    skipped, few = tiny.gradients(quick, minibatch, LOSS)
    computed, all_rows = tiny.gradients(quick, minibatch, replace(LOSS, own_traits=Traits(), peer_traits=Traits()))
    assert (few.pop("computed_sequences"), all_rows.pop("computed_sequences")) == (6, 8)
    assert few == pytest.approx(all_rows, abs=1e-6)
    assert all(torch.allclose(skipped[k], computed[k], atol=1e-6) for k in skipped)


@pytest.mark.parametrize("skip", [True, False])
def test_a_zero_variance_minibatch_has_exactly_zero_gradient_and_is_still_a_step(tiny_dirs: dict[str, Path], skip: bool) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    rows = tuple(replace(s, advantage=0.0) for s in tiny.mixed_minibatch(policy).sequences)
    loss = replace(LOSS, own_traits=Traits(skip), peer_traits=Traits(skip))
    gradients, metrics = tiny.gradients(policy, Minibatch(0, rows), loss)
    assert metrics["loss"] == 0.0
    assert metrics["grad_norm"] == 0.0
    assert metrics["nonfinite"] == 0.0
    assert gradients
    assert not any(g.any() for g in gradients.values())
    before = policy.model.model.norm.weight.detach().clone()
    policy.update(Minibatch(0, rows), loss)
    # AdamW at zero gradient and zero moments: p <- p (1 - lr * decay) = p (1 - 1e-3 * 0.01).
    assert torch.allclose(policy.model.model.norm.weight, before * (1 - 1e-5), rtol=0, atol=1e-9)


def test_update_is_one_adamw_step_on_clipped_gradients(tiny_dirs: dict[str, Path]) -> None:
    settings = replace(tiny.OPTIMISER, max_grad_norm=0.5)
    policy = tiny.policy(tiny_dirs["quick"], optimiser=settings)
    reference = tiny.policy(tiny_dirs["quick"], optimiser=settings)
    minibatch = tiny.mixed_minibatch(policy)
    gradients, metrics = tiny.gradients(reference, minibatch, LOSS)
    assert metrics["grad_norm"] > 0.5
    before = {k: p.detach().clone() for k, p in policy.model.named_parameters()}
    assert policy.update(minibatch, LOSS)["grad_norm"] == pytest.approx(metrics["grad_norm"])  # the norm before clipping
    for k, p in policy.model.named_parameters():
        g = gradients[k] * (0.5 / (metrics["grad_norm"] + 1e-6))
        # AdamW's first step does not see the gradient's scale, so the clipping is checked on the gradient that it was given.
        assert p.grad is not None, k
        assert torch.allclose(p.grad, g, atol=1e-7, rtol=1e-4), k
        # First AdamW step: bias-corrected moments are g and g^2, so p <- p (1 - lr decay) - lr g / (|g| + eps).
        expected = before[k] * (1 - 1e-5) - 1e-3 * g / (g.abs() + 1e-8)
        # where |g| is within float noise of eps the quotient is ill-conditioned: compare the rest
        solid = g.abs() > 1e-5
        assert torch.allclose(p.detach()[solid], expected[solid], atol=2e-6), k


def test_a_non_finite_gradient_takes_no_step(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    minibatch = tiny.mixed_minibatch(policy)

    def poisoned(x: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return x.logprobs * math.nan, {}

    before = policy.weights_sha256()
    metrics = policy.update(minibatch, MinibatchLoss(poisoned, poisoned, token_mean))
    assert metrics["nonfinite"] == 1.0
    assert policy.weights_sha256() == before
    assert policy.update(minibatch, LOSS)["nonfinite"] == 0.0
    assert policy.weights_sha256() != before
    assert all(torch.isfinite(p).all() for p in policy.model.parameters())


def test_a_step_raises_the_probability_of_what_was_rewarded(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    item = ((70, 71, 72), (90, 91, 92))
    before = policy.score([item])[0]
    policy.update(Minibatch(0, (tiny.sequence(item[1], before, 1.0, prompt=item[0]),)), LOSS)
    assert sum(policy.score([item])[0]) > sum(before)


@KINDS
def test_equal_responses_share_a_row_and_not_a_coefficient(tiny_dirs: dict[str, Path], kind: str) -> None:
    """Four rows, two of them equal text with other advantages and old log-probs: the gradient of each row by itself, summed."""
    results = []
    seen: list[int] = []
    for rows in (1, 8):
        policy = tiny.policy(tiny_dirs[kind], train_rows=rows)
        # The equal two are apart, so that a row taken for its neighbour would show.
        pairs = [((80, 81), (40, 50, 60)), ((80, 82), (40, 50, 60)), ((80, 81), (40, 50, 60)), ((80, 81), (40, 50))]
        scored = policy.score(pairs)
        old = [[x + 0.05 * i for x in logps] for i, logps in enumerate(scored)]
        advantages = (1.0, -0.7, 0.4, 0.9)
        sequences = [tiny.sequence(r, o, a, prompt=p) for (p, r), o, a in zip(pairs, old, advantages, strict=True)]
        seen.clear()
        hook = policy.model.register_forward_pre_hook(lambda _, __, kw: seen.append(len(kw["input_ids"])), with_kwargs=True)
        results.append(tiny.gradients(policy, Minibatch(0, tuple(sequences)), LOSS))
        hook.remove()
    assert seen == [2, 3]  # two prompts, three distinct pairs
    (apart, one), (together, two) = results
    assert one == pytest.approx(two, rel=2e-6, abs=1e-6)
    assert max(float(g.abs().max()) for g in apart.values()) > 1e-3
    assert all(torch.allclose(together[k], g, atol=1e-6 * max(1.0, one["grad_norm"]), rtol=1e-5) for k, g in apart.items())
