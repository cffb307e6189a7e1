"""The loop: prompts -> generate -> verify -> exchange -> update, for 1..N policies on the same prompt batches.

The loop knows no files. Whoever runs it passes an Observer, which records each step and saves state between steps; a resumed
loop is the same call with a later ``start``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

from graft.batches import LoopSettings, batch, generator, refill
from graft.composition import Method
from graft.exchange import Exchange, exchange
from graft.metrics import exchange_metrics, logprob_mismatch, model_metrics, stored_metrics, token_counts
from graft.policies.base import Policy, TokenPair
from graft.retokenize import SenderLike
from graft.timing import Stopwatch, TimedReceiver
from graft.types import Group, Minibatch, Prompt, SequenceGroup, StepKey, Verdict

VerifyMany = Callable[[Seq[tuple[tuple[str, ...], str]]], list[Verdict]]  # (golds, response): a prompt may have several golds
History = Mapping[str, tuple[float, ...]]


class Scorer(Protocol):
    """What the loop asks of a frozen reference policy."""

    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]: ...


class StoredPeer(Protocol):
    """A finished run's log in place of a live peer. ``groups``: what it sampled for these prompts, as logged, in their order.

    Raises ValueError where the log does not hold the prompts. ``sender``: its tokenizer, as far as the log says.
    """

    @property
    def model(self) -> str: ...
    def groups(self, step: int, prompts: Seq[Prompt]) -> tuple[Group, ...]: ...
    def sender(self) -> SenderLike | None: ...


@dataclass(frozen=True)
class StepResult:
    """One finished step (counted from 1). ``metrics`` is JSON without clocks; ``seconds`` maps phase or model/phase to time.

    ``groups``: everything sampled, whether or not it was trained on. ``history``: success rates of all steps so far per model,
    which the next step needs.
    """

    step: int
    groups: Mapping[str, tuple[Group, ...]]
    history: History
    exchange: Exchange
    metrics: Mapping[str, Any]
    seconds: Mapping[str, float]
    tokens: Mapping[str, Mapping[str, int]]


class Observer(Protocol):
    """Called after every step, in order."""

    def step_done(self, result: StepResult) -> None: ...


@dataclass(frozen=True)
class Setup:
    """Who trains, by which method, on which terms. ``reference`` gives a model's frozen base policy, for methods with a KL term.

    ``peer``: the stored peer of a method that has one. Raises ValueError when a method lacks its stored peer or is given one that it
    does not have, when an independent method is given several policies or a joint one a single policy, when the method needs a
    reference and there is none, and when a policy's training temperature is not the sampling temperature (ratios would not start
    at 1).
    """

    policies: Mapping[str, Policy]
    method: Method
    settings: LoopSettings
    verify: VerifyMany
    reference: Callable[[str], Scorer] | None = None
    peer: StoredPeer | None = None

    def __post_init__(self) -> None:
        method, names = self.method, ", ".join(self.policies)
        if not method.joint and len(self.policies) != 1:
            raise ValueError(f"method {method.name} trains one model per run; got {names}. Run them one by one.")
        if method.joint and len(self.policies) < 2:
            raise ValueError(f"method {method.name} exchanges between models and needs at least two; got {names}")
        if method.stored != (self.peer is not None):
            wanted = "learns from a finished run's log; pass peer=" if method.stored else "has no stored peer; leave out peer="
            raise ValueError(f"method {method.name} {wanted}")
        if self.peer is not None and self.peer.model in self.policies:
            raise ValueError(f"the stored peer is {self.peer.model} itself; a model cannot be its own peer")
        if method.needs_reference and self.reference is None:
            raise ValueError(f"method {method.name} needs a frozen reference policy for its KL term; pass reference=")
        for name, policy in self.policies.items():
            if policy.temperature != self.settings.sampling.temperature:
                raise ValueError(
                    f"{name} trains at temperature {policy.temperature} and samples at {self.settings.sampling.temperature}; use one"
                )
            if policy.sampler_apart and self.settings.sampling.top_p < 1 and self.settings.peer_logprobs == "sampler":
                raise ValueError(
                    f"the sampler of {name} gives log-probs of the truncated distribution (top_p={self.settings.sampling.top_p}), "
                    "which are not those that it trains with; use top_p=1 or peer_logprobs=recomputed"
                )


def cotrain(
    setup: Setup, prompts: Seq[Prompt], *, observer: Observer, start: int = 1, history: History = MappingProxyType({})
) -> None:
    """Run steps ``start`` .. ``settings.steps``. Policies and ``history`` must already be those after step ``start - 1``.

    Raises FloatingPointError when every minibatch of a model's step had a non-finite gradient (single ones are skipped and counted).
    """
    for step in range(start, setup.settings.steps(len(prompts)) + 1):
        result = run_step(setup, prompts, step, history)
        history = result.history
        observer.step_done(result)


def run_step(setup: Setup, prompts: Seq[Prompt], step: int, history: History = MappingProxyType({})) -> StepResult:
    """One step of every policy. All sampling precedes every update, so no policy learns from a policy of the same step."""
    watch = Stopwatch()
    method = setup.method
    sampled, kept, rounds = _sample(setup, prompts, step, watch)
    kept, mismatch = _rescore(setup, kept, watch)
    stored, noted = _recall(setup, next(iter(kept.values())), step, watch)
    history = {name: (*history.get(name, ()), _success_rate(groups)) for name, groups in (sampled | stored).items()}
    capability = {name: method.bound("capability")(rates) for name, rates in history.items()}
    with watch("exchange"):
        rng = generator(setup.settings.seed, "exchange", step)
        senders = {setup.peer.model: s} if setup.peer is not None and (s := setup.peer.sender()) is not None else {}
        receivers = {name: TimedReceiver(policy, watch) for name, policy in setup.policies.items()}
        moved = exchange(kept | stored, method, rng, receivers=receivers, capability=capability, senders=senders)
    learned = {name: _learn(setup, name, moved, step, watch) for name in setup.policies}
    updates = {name: done for name, (done, _) in learned.items()}
    mismatch |= {name: apart for name, (_, apart) in learned.items() if apart}
    metrics = {
        "step": step,
        "rounds": rounds,
        "models": {
            m: model_metrics(sampled[m], updates[m]) | {"capability": capability[m]} | mismatch.get(m, {}) for m in setup.policies
        },
        "exchange": exchange_metrics(moved),
        **noted,
    }
    tokens = {m: token_counts(sampled[m], updates[m]) for m in setup.policies}
    return StepResult(step, sampled, history, moved, metrics, watch.seconds, tokens)


Groups = dict[str, tuple[Group, ...]]


def _sample(setup: Setup, prompts: Seq[Prompt], step: int, watch: Stopwatch) -> tuple[Groups, Groups, int]:
    """(all sampled groups per model, those to train on, rounds of sampling)."""
    settings = setup.settings
    wanted = settings.prompts_per_step
    sampled: dict[str, dict[str, Group]] = {}
    rounds, asked = 1, batch(prompts, settings, step)
    while True:
        for name, policy in setup.policies.items():
            key = StepKey(settings.seed, f"train/{name}", step)
            with watch(f"{name}/sampling"):
                groups = policy.generate(asked, n=settings.n, key=key, sampling=settings.sampling)
            with watch(f"{name}/verification"):
                for group in verified(groups, setup.verify):
                    sampled.setdefault(group.prompt.id, {})[name] = group
        intake = setup.method.bound("intake")(sampled, wanted, rounds)
        asked = refill(prompts, settings, step, rounds + 1) if intake.more else ()
        if not asked:
            break
        rounds += 1
    every = {name: tuple(sampled[q][name] for q in sampled) for name in setup.policies}
    return every, {name: tuple(sampled[q][name] for q in intake.kept) for name in setup.policies}, rounds


def _rescore(setup: Setup, kept: Groups, watch: Stopwatch) -> tuple[Groups, dict[str, dict[str, Any]]]:
    """(groups whose log-probs are those of ``peer_logprobs``, how far sampler and training engine are apart, by model).

    The latter over all kept responses where both choices are ``recomputed``; over one minibatch's, scored for it, where nothing is
    recomputed and the sampler is another program than the trainer; else nothing here (``_learn`` may measure own rows).
    """
    settings = setup.settings
    everything = settings.peer_logprobs == "recomputed"
    done, apart = dict(kept), {}
    for name, policy in setup.policies.items():
        if not (everything or (policy.sampler_apart and settings.old_logprobs == "sampler")):
            continue
        part = kept[name] if everything else kept[name][: settings.minibatch_prompts]
        with watch(f"{name}/scoring"):
            scores = policy.score([(g.prompt_ids, r.ids) for g in part for r in g.responses])
        apart[name] = {"sampler_mismatch": logprob_mismatch((r.logprobs for g in part for r in g.responses), scores)}
        if everything:
            again = iter(scores)
            done[name] = tuple(replace(g, responses=tuple(replace(r, logprobs=next(again)) for r in g.responses)) for g in part)
    return done, apart


def _recall(setup: Setup, kept: Seq[Group], step: int, watch: Stopwatch) -> tuple[Groups, dict[str, Any]]:
    """(the stored peer's groups of the step's prompts, verified again; what the metrics say of them). Nothing without such a peer."""
    if setup.peer is None:
        return {}, {}
    name = setup.peer.model
    with watch(f"{name}/reading"):
        logged = setup.peer.groups(step, [g.prompt for g in kept])
    with watch(f"{name}/verification"):
        groups = verified(logged, setup.verify)
    return {name: groups}, {"stored": stored_metrics(name, logged, groups)}


def _success_rate(groups: Seq[Group]) -> float:
    return sum(g.successes for g in groups) / sum(len(g.responses) for g in groups)


def _learn(
    setup: Setup, name: str, moved: Exchange, step: int, watch: Stopwatch
) -> tuple[list[dict[str, float]], dict[str, dict[str, Any]]]:
    """(all of one policy's optimiser steps, how far the sampler's log-probs of its own rows are from recomputed ones).

    Log-probs that the loss holds against are taken before the first step.
    """
    policy, settings, method = setup.policies[name], setup.settings, setup.method
    own, apart = moved.own[name], {}
    if settings.old_logprobs == "recomputed" and settings.peer_logprobs == "sampler":
        sampled = [s.old_logprobs for g in own for s in g.sequences]
        with watch(f"{name}/scoring"):
            own = with_logprobs(policy, own, "old_logprobs")
        apart = {"sampler_mismatch": logprob_mismatch(sampled, (s.old_logprobs for g in own for s in g.sequences))}
    if method.needs_reference and setup.reference is not None:
        with watch(f"{name}/reference"):
            own = with_logprobs(setup.reference(name), own, "ref_logprobs")
    rng = generator(settings.seed, f"order/{name}", step)
    minibatches = method.bound("order")(own, moved.peer[name], settings.minibatch_prompts, rng)
    with watch(f"{name}/update"):
        done = _update(policy, minibatches, method, step)
        policy.sync()
    return done, apart


def verified(groups: Seq[Group], verify: VerifyMany) -> tuple[Group, ...]:
    """Groups with verdicts and rewards (1 correct, 0 otherwise; a timeout is 0 and stays visible in ``how``)."""
    verdicts = iter(verify([(g.prompt.golds, r.text) for g in groups for r in g.responses]))
    done = []
    for g in groups:
        responses = []
        for r in g.responses:
            verdict = next(verdicts)
            # The clock is dropped: equal runs must log equal verdicts.
            responses.append(replace(r, verdict=replace(verdict, seconds=0.0), reward=float(verdict.correct)))
        done.append(replace(g, responses=tuple(responses)))
    return tuple(done)


def with_logprobs(
    scorer: Scorer, groups: Seq[SequenceGroup], name: Literal["old_logprobs", "ref_logprobs"]
) -> tuple[SequenceGroup, ...]:
    """Own groups whose log-probs ``name`` come from ``scorer``; call before the policy's first update of the step."""
    scores = iter(scorer.score([(s.prompt_ids, s.response_ids) for g in groups for s in g.sequences]))
    done = []
    for g in groups:
        sequences = tuple(replace(s, **{name: next(scores)}) for s in g.sequences)  # type: ignore[arg-type]
        done.append(replace(g, sequences=sequences))
    return tuple(done)


def _update(policy: Policy, minibatches: Seq[Minibatch], method: Method, step: int) -> list[dict[str, float]]:
    loss = method.loss()
    done = [policy.update(m, loss) for m in minibatches]
    if done and all(u["nonfinite"] for u in done):
        raise FloatingPointError(
            f"step {step}: every minibatch of {policy.name} had a non-finite gradient; the checkpoint before it is intact"
        )
    return done
