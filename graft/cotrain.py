"""The loop: prompts -> generate -> verify -> exchange -> update, for 1..N policies on the same prompt batches.

The loop knows no files. Whoever runs it passes an Observer, which records each step and saves state between steps; a resumed
loop is the same call with a later ``start``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from graft.exchange import Exchange, exchange
from graft.methods import Method
from graft.policies.base import Policy
from graft.types import Group, Minibatch, Prompt, SamplingSettings, SequenceGroup, StepKey, Verdict

VerifyMany = Callable[[Seq[tuple[str, str]]], list[Verdict]]


@dataclass(frozen=True)
class LoopSettings:
    """Sizes of one run. A step takes ``prompts_per_step`` prompts; an epoch drops the prompts that do not fill a step.

    ``old_logprobs`` names pi_old of OWN responses: the sampler's log-probs, or the training engine's, recomputed before the first
    update (verl's default). In fp32 on the torch engine the two agree within 1e-5; in bf16, or with another sampler, they do not.
    """

    seed: int
    epochs: int
    prompts_per_step: int
    minibatch_prompts: int
    n: int
    sampling: SamplingSettings
    max_steps: int | None = None
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"

    def __post_init__(self) -> None:
        if self.old_logprobs not in ("sampler", "recomputed"):
            raise ValueError(f"old_logprobs {self.old_logprobs!r} is not known; use sampler or recomputed")

    def steps_per_epoch(self, prompts: int) -> int:
        return prompts // self.prompts_per_step

    def steps(self, prompts: int) -> int:
        """Total steps: epochs x full batches, at most ``max_steps``. ValueError when not even one batch fits."""
        total = self.epochs * self.steps_per_epoch(prompts)
        if total == 0:
            raise ValueError(f"{prompts} prompts do not fill one step of {self.prompts_per_step}; lower prompts_per_step")
        return total if self.max_steps is None else min(total, self.max_steps)


@dataclass(frozen=True)
class StepResult:
    """One finished step (counted from 1). ``metrics`` is JSON without clocks; ``seconds`` maps phase or model/phase to time."""

    step: int
    groups: Mapping[str, tuple[Group, ...]]
    exchange: Exchange
    metrics: Mapping[str, Any]
    seconds: Mapping[str, float]
    tokens: Mapping[str, Mapping[str, int]]


class Observer(Protocol):
    """Called after every step, in order."""

    def step_done(self, result: StepResult) -> None: ...


@dataclass
class Stopwatch:
    """Monotonic seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, phase: str) -> _Lap:
        return _Lap(self, phase)


class _Lap:
    def __init__(self, watch: Stopwatch, phase: str):
        self.watch, self.phase = watch, phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        spent = time.perf_counter() - self.start
        self.watch.seconds[self.phase] = self.watch.seconds.get(self.phase, 0.0) + spent


def generator(seed: int, stream: str, *numbers: int) -> np.random.Generator:
    """A private generator for (seed, stream, numbers): nothing is carried from step to step, so nothing is lost on restart."""
    words = [seed, *numbers, *stream.encode()]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def batch(prompts: Seq[Prompt], settings: LoopSettings, step: int) -> tuple[Prompt, ...]:
    """The prompts of ``step`` (from 1): consecutive slices of a permutation drawn per epoch from the seed alone."""
    epoch, position = divmod(step - 1, settings.steps_per_epoch(len(prompts)))
    order = generator(settings.seed, "order", epoch).permutation(len(prompts))
    first = position * settings.prompts_per_step
    return tuple(prompts[i] for i in order[first : first + settings.prompts_per_step])


def cotrain(
    policies: Mapping[str, Policy],
    prompts: Seq[Prompt],
    method: Method,
    settings: LoopSettings,
    verify: VerifyMany,
    *,
    start: int = 1,
    observer: Observer,
) -> None:
    """Run steps ``start`` .. ``settings.steps``. Policies must already hold the state after step ``start - 1``.

    Raises ValueError when an independent method is given several policies, and FloatingPointError when every minibatch of a
    model's step had a non-finite gradient (single ones are skipped and counted).
    """
    if not method.joint and len(policies) != 1:
        raise ValueError(f"method {method.name} trains one model per run; got {', '.join(policies)}. Run them one by one.")
    if method.joint and len(policies) < 2:
        raise ValueError(f"method {method.name} exchanges between models and needs at least two; got {', '.join(policies)}")
    for step in range(start, settings.steps(len(prompts)) + 1):
        observer.step_done(run_step(policies, batch(prompts, settings, step), method, settings, verify, step))


def run_step(
    policies: Mapping[str, Policy], prompts: Seq[Prompt], method: Method, settings: LoopSettings, verify: VerifyMany, step: int
) -> StepResult:
    """One step of every policy. All sampling precedes every update, so no policy learns from a policy of the same step."""
    watch = Stopwatch()
    groups: dict[str, tuple[Group, ...]] = {}
    key = StepKey(settings.seed, "train", step)
    for name, policy in policies.items():
        with watch(f"{name}/sampling"):
            sampled = policy.generate(prompts, n=settings.n, key=replace(key, stream=f"train/{name}"), sampling=settings.sampling)
        with watch(f"{name}/verification"):
            groups[name] = verified(sampled, verify)
    with watch("exchange"):
        moved = exchange(groups, method, generator(settings.seed, "exchange", step), receivers=policies)
    updates: dict[str, list[dict[str, float]]] = {}
    for name, policy in policies.items():
        rng = generator(settings.seed, f"order/{name}", step)
        own = moved.own[name]
        if settings.old_logprobs == "recomputed":
            with watch(f"{name}/scoring"):
                own = rescored(policy, own)
        minibatches = method.bound("order")(own, moved.peer[name], settings.minibatch_prompts, rng)
        with watch(f"{name}/update"):
            updates[name] = _update(policy, minibatches, method, step)
            policy.sync()
    metrics = {
        "step": step,
        "models": {m: _model_metrics(groups[m], updates[m]) for m in policies},
        "exchange": _exchange_metrics(moved),
    }
    return StepResult(step, groups, moved, metrics, watch.seconds, {m: _tokens(groups[m], updates[m]) for m in policies})


def verified(groups: Seq[Group], verify: VerifyMany) -> tuple[Group, ...]:
    """Groups with verdicts and rewards (1 correct, 0 otherwise; a timeout is 0 and stays visible in ``how``)."""
    verdicts = iter(verify([(g.prompt.gold, r.text) for g in groups for r in g.responses]))
    done = []
    for g in groups:
        responses = []
        for r in g.responses:
            verdict = next(verdicts)
            # The clock is dropped: equal runs must log equal verdicts.
            responses.append(replace(r, verdict=replace(verdict, seconds=0.0), reward=float(verdict.correct)))
        done.append(replace(g, responses=tuple(responses)))
    return tuple(done)


def rescored(policy: Policy, groups: Seq[SequenceGroup]) -> tuple[SequenceGroup, ...]:
    """Own groups with ``old_logprobs`` from ``policy.score``; call before the policy's first update of the step."""
    scores = iter(policy.score([(s.prompt_ids, s.response_ids) for g in groups for s in g.sequences]))
    return tuple(replace(g, sequences=tuple(replace(s, old_logprobs=next(scores)) for s in g.sequences)) for g in groups)


def _update(policy: Policy, minibatches: Seq[Minibatch], method: Method, step: int) -> list[dict[str, float]]:
    loss = method.loss()
    done = [policy.update(m, loss) for m in minibatches]
    if done and all(u["nonfinite"] for u in done):
        raise FloatingPointError(
            f"step {step}: every minibatch of {policy.name} had a non-finite gradient; the checkpoint before it is intact"
        )
    return done


def _model_metrics(groups: Seq[Group], updates: Seq[Mapping[str, float]]) -> dict[str, Any]:
    responses = [r for g in groups for r in g.responses]
    own, peer = (sum(u[f"{kind}_tokens"] for u in updates) for kind in ("own", "peer"))
    return {
        "reward_mean": sum(float(r.reward or 0) for r in responses) / len(responses),
        "all_fail_share": sum(g.all_fail for g in groups) / len(groups),
        "all_pass_share": sum(g.all_pass for g in groups) / len(groups),
        "response_tokens_mean": sum(len(r.ids) for r in responses) / len(responses),
        "truncated_share": sum(r.finish_reason == "length" for r in responses) / len(responses),
        "verdicts": dict(sorted(Counter(r.verdict.how for r in responses if r.verdict).items())),
        "minibatches": len(updates),
        "loss_mean": sum(u["loss"] for u in updates) / max(len(updates), 1),
        "grad_norm_mean": sum(u["grad_norm"] for u in updates) / max(len(updates), 1),
        "nonfinite_minibatches": int(sum(u["nonfinite"] for u in updates)),
        "own_tokens": int(own),
        "peer_tokens": int(peer),
        "clipped_own_share": sum(u.get("clipped_own", 0.0) for u in updates) / own if own else None,
        "clipped_peer_share": sum(u.get("clipped_peer", 0.0) for u in updates) / peer if peer else None,
    }


def _exchange_metrics(moved: Exchange) -> list[dict[str, Any]]:
    rows = []
    for d in moved.report.directions:
        mine = [r for r in moved.report.rows if (r.source, r.receiver) == (d.source, d.receiver)]
        weights = [r.weight for r in mine if r.weight is not None]
        rows.append(
            {
                "source": d.source,
                "receiver": d.receiver,
                "candidates": d.candidates,
                "m": d.m,
                "selected": d.selected,
                "used": d.used,
                "offered": d.offered,
                "admitted": d.admitted,
                "weight_mean": sum(weights) / len(weights) if weights else None,
                "reasons": dict(sorted(Counter(r.reason for r in mine).items())),
            }
        )
    return rows


def _tokens(groups: Seq[Group], updates: Seq[Mapping[str, float]]) -> dict[str, int]:
    return {
        "sampled": sum(len(r.ids) for g in groups for r in g.responses),
        "trained": int(sum(u["own_tokens"] + u["peer_tokens"] for u in updates)),
    }
