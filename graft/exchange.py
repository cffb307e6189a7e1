"""One step's groups of all models + a method -> what each receiver trains on, and a report of who taught whom and why.

A source is a live peer or one whose groups come from a log; the exchange does not tell them apart.
Only text, the sender's mean log-prob and rewards cross from one model to another; ids do only between equal tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from graft.compatibility import Admission, mean_logprob, score
from graft.composition import Method
from graft.exchange_report import ExchangeReport, Teachers, TransferRow, report
from graft.retokenize import SenderLike, TextCodec, retokenize
from graft.selection import Selection
from graft.types import Group, GroupsByModel, Response, Sequence, SequenceGroup


class Receiver(Protocol):
    """What the exchange needs of a policy: its tokenizer, its length limit, and its log-probs of given ids."""

    @property
    def codec(self) -> TextCodec: ...
    @property
    def max_response_tokens(self) -> int: ...
    def score(self, items: Seq[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[float, ...]]: ...


@dataclass(frozen=True)
class Exchange:
    """``own`` and ``peer`` map each receiver to what each prompt contributes (unscheduled)."""

    own: Mapping[str, tuple[SequenceGroup, ...]]
    peer: Mapping[str, tuple[SequenceGroup, ...]]
    report: ExchangeReport


@dataclass(frozen=True, slots=True)
class _Offer:
    """One peer response on its way to a receiver, with what the receiver makes of it (``ids`` None = not exchangeable)."""

    group: Group
    receiver: str
    index: int
    advantage: float
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] = ()
    score: float | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(prompt, source)."""
        return self.group.prompt.id, self.group.model


@dataclass(frozen=True)
class _Step:
    """What every stage of one exchange reads. ``teachers`` maps (receiver, prompt) to the sources that it takes the prompt from."""

    by_prompt: Mapping[str, Mapping[str, Group]]
    method: Method
    rng: np.random.Generator
    receivers: Mapping[str, Receiver]
    capability: Mapping[str, float]
    senders: Mapping[str, SenderLike]

    def in_play(self, q: str, receiver: str, sources: Seq[str]) -> dict[str, Group]:
        """The receiver's group and its sources' groups of one prompt."""
        return {m: self.by_prompt[q][m] for m in (receiver, *sources)}


def exchange(
    groups_by_model: GroupsByModel,
    method: Method,
    rng: np.random.Generator,
    *,
    receivers: Mapping[str, Receiver] | None = None,
    capability: Mapping[str, float] | None = None,
    senders: Mapping[str, SenderLike] | None = None,
) -> Exchange:
    """Select, transfer, re-tokenise, score, admit.

    ``groups_by_model``: every model's verified groups of the SAME prompts in the same order. ``receivers``: the models that learn
    (default: all, allowed only while nothing has to be scored); a model in ``groups_by_model`` alone is a donor. ``rng`` is used by
    methods that draw. ``capability``: one number per model for advantages that compare models (default: all equal). ``senders``: what
    is known of donors' tokenizers. Raises ValueError when prompts or group sizes disagree between models, or a group is used unverified.
    """
    if not groups_by_model or not set(receivers or ()) <= set(groups_by_model):
        raise ValueError(
            f"receivers {sorted(receivers or ())} need groups of their own; there are groups of {sorted(groups_by_model)}"
        )
    by_prompt = _by_prompt(groups_by_model)
    known = dict(senders or {}) | {name: r.codec for name, r in (receivers or {}).items()}
    step = _Step(by_prompt, method, rng, receivers or {}, capability or dict.fromkeys(groups_by_model, 1.0), known)
    learners = tuple(groups_by_model) if receivers is None else tuple(r for r in groups_by_model if r in receivers)
    selection = method.bound("selection")(groups_by_model, rng)
    teachers = _teachers(step, selection, learners)
    own: dict[str, tuple[SequenceGroup, ...]] = {}
    peer: dict[str, tuple[SequenceGroup, ...]] = {}
    rows: list[TransferRow] = []
    for receiver in learners:
        offers, replaced = _offers(step, selection, teachers, receiver)
        own[receiver] = tuple(
            _own(step.in_play(q, receiver, teachers.get((receiver, q), ())), receiver, step)
            for q in by_prompt
            if q not in replaced
        )
        peer[receiver], new_rows = _admit(step, offers, receiver)
        rows += new_rows
    return Exchange(own, peer, report(groups_by_model, selection, teachers, rows, learners))


def _by_prompt(groups_by_model: GroupsByModel) -> dict[str, dict[str, Group]]:
    names = list(groups_by_model)
    order = [g.prompt.id for g in groups_by_model[names[0]]]
    if len(set(order)) != len(order):
        raise ValueError("a prompt id occurs twice in one step; ids must be unique within a batch")
    sizes = {len(g.responses) for groups in groups_by_model.values() for g in groups}
    for name in names:
        ids = [g.prompt.id for g in groups_by_model[name]]
        if ids != order:
            wrong = next(
                (f"position {i}: {a!r} and {b!r}" for i, (a, b) in enumerate(zip(order, ids)) if a != b), "lengths differ"
            )
            raise ValueError(
                f"models {names[0]!r} and {name!r} answered different prompts ({wrong}); an exchange needs the same batch"
            )
        if any(g.model != name for g in groups_by_model[name]):
            raise ValueError(f"a group listed under {name!r} belongs to another model")
    if len(sizes) > 1:
        raise ValueError(f"group sizes differ within one step: {sorted(sizes)}; a group that lost a member is never used")
    return {q: {name: groups_by_model[name][i] for name in names} for i, q in enumerate(order)}


def _teachers(step: _Step, selection: Selection, learners: tuple[str, ...]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The sources of every (receiver, prompt). Several qualify only with three or more models.

    Under ``selection.one_source`` one of them teaches: the highest success count, then the highest mean compatibility of its whole
    group (the responses that can be exchanged), then the first by name.
    """
    qualified: dict[tuple[str, str], list[str]] = {}
    for (source, receiver), prompts in selection.selected.items():
        for q in prompts if receiver in learners else ():
            qualified.setdefault((receiver, q), []).append(source)
    if not selection.one_source:
        return {key: tuple(sources) for key, sources in qualified.items()}
    chosen: dict[tuple[str, str], tuple[str, ...]] = {}
    for (receiver, q), sources in qualified.items():
        most = max(step.by_prompt[q][s].successes for s in sources)
        tied = sorted(s for s in sources if step.by_prompt[q][s].successes == most)
        if len(tied) > 1:
            tied.sort(key=lambda s: -_mean_compatibility(step, q, s, receiver))  # a stable sort: names break what is left
        chosen[receiver, q] = (tied[0],)
    return chosen


def _mean_compatibility(step: _Step, q: str, source: str, receiver: str) -> float:
    groups = step.by_prompt[q]
    offers = [_Offer(groups[source], receiver, i, 0.0, groups[receiver].prompt_ids) for i in range(len(groups[source].responses))]
    scores = [o.score for o in _rated(step, offers, receiver) if o.score is not None]
    return sum(scores) / len(scores) if scores else 0.0


def _offers(step: _Step, selection: Selection, teachers: Teachers, receiver: str) -> tuple[list[_Offer], set[str]]:
    """(what the receiver is offered, prompts whose own group is replaced), in batch order."""
    offers: list[_Offer] = []
    replaced: set[str] = set()
    for q, groups in step.by_prompt.items():
        sources = teachers.get((receiver, q), ())
        for source in sources:
            moved = step.method.bound("transfer")(groups[receiver], groups[source], step.rng)
            play = step.in_play(q, receiver, sources)
            advantages = step.method.bound("peer_advantage")(play, source, receiver, step.capability)
            if q in selection.silent.get((source, receiver), ()):
                advantages = (0.0,) * len(advantages)
            offers += [_Offer(groups[source], receiver, i, advantages[i], groups[receiver].prompt_ids) for i in moved.indices]
            if not moved.keep_own:
                replaced.add(q)
    return offers, replaced


def _own(groups: Mapping[str, Group], receiver: str, step: _Step) -> SequenceGroup:
    group = groups[receiver]
    advantages = step.method.bound("own_advantage")(groups, receiver, receiver, step.capability)
    sequences = tuple(
        Sequence(
            prompt_id=group.prompt.id,
            source=receiver,
            receiver=receiver,
            prompt_ids=group.prompt_ids,
            response_ids=r.ids,
            old_logprobs=r.logprobs,
            advantage=a,
            source_mean_logprob=mean_logprob(r.logprobs),
            unanimous=group.unanimous,
        )
        for r, a in zip(group.responses, advantages, strict=True)
    )
    return SequenceGroup(group.prompt.id, False, sequences)


def _rated(step: _Step, offers: list[_Offer], receiver: str) -> list[_Offer]:
    """The offers with the receiver's ids, log-probs and score, or with the reason why they cannot be exchanged."""
    if receiver not in step.receivers:
        raise ValueError(f"method {step.method.name} scores peer responses under {receiver!r}; pass receivers={{name: policy}}")
    policy = step.receivers[receiver]
    texts = [
        retokenize(
            o.group.responses[o.index], step.senders.get(o.group.model), policy.codec, max_tokens=policy.max_response_tokens
        )
        for o in offers
    ]
    logprobs = iter(policy.score([(o.prompt_ids, t.ids) for o, t in zip(offers, texts, strict=True) if t.ids is not None]))
    rated = []
    for offer, text in zip(offers, texts, strict=True):
        if text.ids is None:
            rated.append(replace(offer, reason=text.reason))
            continue
        mine = next(logprobs)
        theirs = source_mean(offer.group.responses[offer.index])
        s = None if theirs is None else score(mean_logprob(mine), theirs)
        rated.append(replace(offer, ids=text.ids, logprobs=mine, score=s))
    return rated


def source_mean(response: Response) -> float | None:
    """lbar of eq. 6 of the source's own tokens; None where a log says neither log-probs nor their mean."""
    return mean_logprob(response.logprobs) if response.ids else response.mean_logprob


def _admit(step: _Step, offers: list[_Offer], receiver: str) -> tuple[tuple[SequenceGroup, ...], list[TransferRow]]:
    if not offers:
        return (), []
    rated = _rated(step, offers, receiver)
    exchangeable = [o for o in rated if o.ids is not None]
    unknown = [o for o in exchangeable if o.score is None]
    if unknown and step.method.needs_source_logprobs:
        raise ValueError(
            f"method {step.method.name} compares log-probs, and the log of {unknown[0].group.model} has none for "
            f"{len(unknown)} responses that {receiver} is offered (the first: prompt {unknown[0].group.prompt.id!r})"
        )
    # Not a number where nothing is known: an admission that looked at it would admit nothing.
    scores = [math.nan if o.score is None else o.score for o in exchangeable]
    verdicts = iter(step.method.bound("admission")(scores, step.rng))
    grafted: dict[tuple[str, str], list[Sequence]] = {o.key: [] for o in offers}
    rows = []
    for offer in rated:
        verdict = Admission(None, offer.reason) if offer.ids is None else next(verdicts)
        rows.append(_row(offer, verdict))
        if verdict.weight is not None:
            grafted[offer.key].append(_peer_sequence(offer, verdict.weight))
    return tuple(SequenceGroup(q, True, tuple(s)) for (q, _), s in grafted.items()), rows


def _peer_sequence(offer: _Offer, weight: float) -> Sequence:
    return Sequence(
        prompt_id=offer.group.prompt.id,
        source=offer.group.model,
        receiver=offer.receiver,
        prompt_ids=offer.prompt_ids,
        response_ids=offer.ids or (),
        old_logprobs=offer.logprobs,
        advantage=offer.advantage,
        weight=weight,
        source_mean_logprob=math.nan if (mean := source_mean(offer.group.responses[offer.index])) is None else mean,
        unanimous=offer.group.unanimous,
    )


def _row(offer: _Offer, verdict: Admission) -> TransferRow:
    reward = offer.group.responses[offer.index].reward
    if reward is None:
        raise ValueError(f"prompt {offer.group.prompt.id!r}: an unverified response was offered to a peer")
    return TransferRow(
        offer.group.prompt.id,
        offer.group.model,
        offer.receiver,
        offer.index,
        reward,
        offer.advantage,
        offer.score,
        verdict.weight,
        verdict.reason,
    )
