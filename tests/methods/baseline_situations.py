"""What the tests of single methods share: loss inputs by ratios, numeric gradients, scripted receivers, loop steps.

Everything is float64 and padded with NaN log-probs, so that a padded token that counts anywhere makes the result NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graft.aggregation import Totals
from graft.batches import LoopSettings, batch, refill
from graft.composition import Method
from graft.cotrain import Setup, StepResult, run_step
from graft.exchange import Exchange, exchange
from graft.losses import LossInputs
from graft.policies.torch_policy import TorchPolicy
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, Prompt, Response, SamplingSettings, Sequence, Verdict
from tests.graft import tiny

QUICK, SMALL = tiny.codec("quick"), tiny.codec("small")
OLD = -1.0
SAMPLING = SamplingSettings(1.0, 1.0, 8)
Ragged = Seq[Seq[float]]


# ---- losses


def exact(values: Any) -> Tensor:
    """A float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def padded(rows: Ragged, fill: float) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*r, *[fill] * (width - len(r))] for r in rows], dtype=torch.float64)


def ratio_inputs(
    ratios: Ragged,
    advantages: Seq[float],
    *,
    peer: Seq[bool] | None = None,
    weights: Seq[float] | None = None,
    source_mean: Seq[float] | None = None,
    unanimous: Seq[int] | None = None,
    ref: Ragged | None = None,
    entropies: Ragged | None = None,
    index: int = 0,
) -> LossInputs:
    """Rows whose token ratios are given; every old log-prob is -1. ``ref`` are log-probs, ``entropies`` are padded with 9."""
    count = len(ratios)
    return LossInputs(
        logprobs=padded([[math.log(x) + OLD for x in r] for r in ratios], math.nan),
        old_logprobs=padded([[OLD] * len(r) for r in ratios], 0.0),
        mask=padded([[1.0] * len(r) for r in ratios], 0.0),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights or [1.0] * count, dtype=torch.float64),
        is_peer=torch.tensor(peer or [False] * count),
        source_mean=torch.tensor(source_mean or [OLD] * count, dtype=torch.float64),
        minibatch_index=index,
        unanimous=None if unanimous is None else torch.tensor(unanimous),
        ref_logprobs=None if ref is None else padded(ref, 0.0),
        entropies=None if entropies is None else padded(entropies, 9.0),
    )


def totals(x: LossInputs) -> Totals:
    """The counts of a minibatch that is one micro-batch."""
    lengths = x.mask.sum(1)
    return Totals(int(lengths.sum()), len(lengths), int(lengths[x.is_peer].sum()), int(x.is_peer.sum()))


def evaluate(method: Method, x: LossInputs, counts: Totals | None = None) -> tuple[float, Tensor, dict[str, float]]:
    """(loss, its gradient by log-probs [B,T], metrics)."""
    logp = x.logprobs.detach().clone().requires_grad_()
    value, metrics = method.loss()(replace(x, logprobs=logp), counts or totals(x))
    value.backward()
    assert logp.grad is not None
    return float(value.detach()), logp.grad, {k: float(v) for k, v in metrics.items()}


def numeric(method: Method, x: LossInputs, step: float = 1e-6) -> Tensor:
    """Central finite differences of the loss by every response token's log-prob; 0 on padding."""
    result = torch.zeros_like(x.logprobs)
    loss, counts = method.loss(), totals(x)
    for i, t in x.mask.nonzero().tolist():
        values = []
        for sign in (1, -1):
            logp = x.logprobs.clone()
            logp[i, t] += sign * step
            values.append(float(loss(replace(x, logprobs=logp), counts)[0]))
        result[i, t] = (values[0] - values[1]) / (2 * step)
    return result


# ---- exchanges


class Scripted:
    """A receiver whose mean log-prob of a text is looked up, -1 per token where nothing is said."""

    def __init__(self, codec: TextCodec = QUICK, means: Mapping[str, float] | None = None):
        self.codec, self.max_response_tokens, self.means = codec, 40, means or {}

    def score(self, items: Seq[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[float, ...]]:
        return [(self.means.get(self.codec.response_text(r), -1.0),) * len(r) for _, r in items]


def group(q: str, model: str, rewards: Seq[float], codec: TextCodec = QUICK, *, texts: Seq[str] | None = None) -> Group:
    """Responses "<model> <q> r<i>" that stopped by EOS, -1 per token at the sender."""
    responses = []
    for i, r in enumerate(rewards):
        ids = (*codec.encode(texts[i] if texts else f"{model} {q} r{i}"), codec.eos_id)
        responses.append(Response(ids, (-1.0,) * len(ids), codec.response_text(ids), "eos", r))
    prompt = Prompt(q, f"prompt {q}", "1")
    return Group(prompt, model, codec.render(prompt), tuple(responses))


def counted(model: str, successes: Seq[int], n: int = 4) -> tuple[Group, ...]:
    """One group per prompt p0, p1, ...: the first k of n responses succeed."""
    return tuple(group(f"p{i}", model, [1.0] * k + [0.0] * (n - k)) for i, k in enumerate(successes))


def moved(
    method: Method, groups: Mapping[str, tuple[Group, ...]], *, capability: Mapping[str, float] | None = None, seed: int = 0
) -> Exchange:
    """One exchange in which every model learns and scores -1 per token (so s = 1)."""
    receivers = {m: Scripted() for m in groups}
    return exchange(groups, method, np.random.default_rng(seed), receivers=receivers, capability=capability)


def minibatches(method: Method, got: Exchange, receiver: str, prompts: int) -> tuple[Minibatch, ...]:
    return method.bound("order")(got.own[receiver], got.peer[receiver], prompts, np.random.default_rng(0))


def loss_of_nothing(method: Method) -> float:
    """What the method's aggregation makes of a minibatch without sequences."""
    none = torch.zeros(0, 1)
    return float(method.bound("aggregation")(none, none, torch.zeros(0, dtype=torch.bool), Totals.of(Minibatch(0, ()))))


def contents(batches: Seq[Minibatch]) -> list[list[tuple[str, str, int]]]:
    """(prompt, source, count) runs of every minibatch, in order."""
    runs = []
    for m in batches:
        keys = [(s.prompt_id, s.source) for s in m.sequences]
        runs.append([(*k, keys.count(k)) for k in dict.fromkeys(keys)])
    return runs


# ---- loop steps


def settings(prompts_per_step: int, minibatch_prompts: int, **changes: Any) -> LoopSettings:
    return LoopSettings(
        seed=0,
        epochs=1,
        prompts_per_step=prompts_per_step,
        minibatch_prompts=minibatch_prompts,
        n=4,
        sampling=SAMPLING,
        **changes,
    )


def scheduled(golds: Seq[str], loop: LoopSettings, step: int = 1) -> list[Prompt]:
    """Prompts whose golds are given in the order in which ``step`` would sample them: its batch, then the refills."""
    blank = [Prompt(f"p{i}", f"Ben has {i} cards", "0") for i in range(len(golds))]
    order = [*batch(blank, loop, step)]
    for round_ in range(2, 2 + len(golds)):
        order += refill(blank, loop, step, round_)
    by_id = {p.id: gold for p, gold in zip(order, golds, strict=True)}
    return [replace(p, gold=by_id[p.id]) for p in blank]


def judge(n: int = 4, models: int = 1) -> Callable[[Seq[tuple[tuple[str, ...], str]]], list[Verdict]]:
    """A gold "k" lets the first k of n responses pass; "k/l" says it per model, in the order in which they sample."""
    calls = 0

    def verify(pairs: Seq[tuple[tuple[str, ...], str]]) -> list[Verdict]:
        nonlocal calls
        which, calls = calls % models, calls + 1
        passed = [i % n < int(gold.split("/")[which]) for i, ((gold,), _) in enumerate(pairs)]
        return [Verdict(x, None, "equal" if x else "different") for x in passed]

    return verify


def recorded(policy: TorchPolicy) -> list[Minibatch]:
    """The minibatches that the policy is updated on from now on."""
    seen: list[Minibatch] = []
    update = policy.update

    def spy(minibatch: Minibatch, loss: Any) -> dict[str, float]:
        seen.append(minibatch)
        return update(minibatch, loss)

    policy.update = spy  # type: ignore[method-assign]
    return seen


def stepped(method: Method, policies: Mapping[str, TorchPolicy], golds: Seq[str], loop: LoopSettings, **kw: Any) -> StepResult:
    """Step 1 of a loop whose prompts have the given golds in sampling order."""
    setup = Setup(policies, method, loop, judge(models=len(policies)), **kw)
    return run_step(setup, scheduled(golds, loop), 1)


def plain_logprobs(policy: TorchPolicy, s: Sequence) -> tuple[Tensor, Tensor]:
    """(log-probs [T] with gradient, entropies [T]) by one forward pass without cache or padding."""
    ids = torch.tensor([[*s.prompt_ids, *s.response_ids]])
    logits = policy.model(input_ids=ids).logits[0, len(s.prompt_ids) - 1 : -1]
    logp = torch.log_softmax(logits, -1)
    return logp.gather(-1, ids[0, len(s.prompt_ids) :, None]).squeeze(-1), -(logp.exp() * logp).sum(-1).detach()


def plain_gradients(policy: TorchPolicy, loss: Tensor) -> dict[str, Tensor]:
    policy.model.zero_grad()
    loss.backward()
    return {k: p.grad.clone() for k, p in policy.model.named_parameters() if p.grad is not None}


def close(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Equal gradients within float32 noise of the largest entry, and not all zero."""
    scale = max(float(g.abs().max()) for g in expected.values())
    return scale > 1e-6 and all(float((got[k] - g).abs().max()) < 1e-4 * scale for k, g in expected.items())
