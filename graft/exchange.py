"""One step's groups of all models + a method -> what each receiver trains on, and a report of who taught whom and why.

Only text, the sender's mean log-prob and rewards cross from one model to another; ids do only between equal tokenizers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.compatibility import Admission, mean_logprob, score
from graft.methods import Method
from graft.retokenize import TextCodec, retokenize
from graft.selection import Direction, Selection
from graft.types import Group, GroupsByModel, Response, Sequence, SequenceGroup


class Receiver(Protocol):
    """What the exchange needs of a policy: its tokenizer, its length limit, and its log-probs of given ids."""

    @property
    def codec(self) -> TextCodec: ...
    @property
    def max_response_tokens(self) -> int: ...
    def score(self, items: Seq[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[float, ...]]: ...


@dataclass(frozen=True, slots=True)
class TransferRow:
    """One offered peer response: the score s and weight w (None = dropped or never scored) and the reason."""

    prompt_id: str
    source: str
    receiver: str
    index: int
    reward: float
    advantage: float
    score: float | None
    weight: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class DirectionReport:
    """Counts of one direction: |C|, m, prompts selected and used after conflicts between sources, responses offered and admitted."""

    source: str
    receiver: str
    candidates: int
    m: int
    selected: int
    used: int
    offered: int
    admitted: int


@dataclass(frozen=True)
class ExchangeReport:
    """Everything that a reader needs to see what moved. ``all_fail``/``all_pass``: groups per model."""

    directions: tuple[DirectionReport, ...]
    rows: tuple[TransferRow, ...]
    all_fail: Mapping[str, int]
    all_pass: Mapping[str, int]

    def reasons(self, receiver: str) -> dict[str, int]:
        """How many offered responses of a receiver ended with each reason."""
        return dict(sorted(Counter(r.reason for r in self.rows if r.receiver == receiver).items()))


@dataclass(frozen=True)
class Exchange:
    """``own`` and ``peer`` map each receiver to what each prompt contributes (unscheduled)."""

    own: Mapping[str, tuple[SequenceGroup, ...]]
    peer: Mapping[str, tuple[SequenceGroup, ...]]
    report: ExchangeReport


@dataclass(frozen=True, slots=True)
class _Offer:
    group: Group
    receiver: str
    index: int
    advantage: float
    prompt_ids: tuple[int, ...]

    @property
    def response(self) -> Response:
        return self.group.responses[self.index]


def exchange(
    groups_by_model: GroupsByModel, method: Method, rng: np.random.Generator, *, receivers: Mapping[str, Receiver] | None = None
) -> Exchange:
    """Select, transfer, re-tokenise, score, admit.

    ``groups_by_model``: every model's verified groups of the SAME prompts in the same order. ``receivers``: the models that learn
    (default: all, allowed only while nothing has to be scored); a model in ``groups_by_model`` alone is a donor. ``rng`` is used by
    methods that draw. Raises ValueError when prompts or group sizes disagree between models, or a group is used unverified.
    """
    if not groups_by_model or not set(receivers or ()) <= set(groups_by_model):
        raise ValueError(
            f"receivers {sorted(receivers or ())} need groups of their own; there are groups of {sorted(groups_by_model)}"
        )
    by_prompt = _by_prompt(groups_by_model)
    learners = tuple(groups_by_model) if receivers is None else tuple(r for r in groups_by_model if r in receivers)
    selection = method.bound("selection")(groups_by_model, rng)
    sources = _resolve_sources(selection, by_prompt, learners)
    own: dict[str, tuple[SequenceGroup, ...]] = {}
    peer: dict[str, tuple[SequenceGroup, ...]] = {}
    rows: list[TransferRow] = []
    for receiver in learners:
        offers, replaced = _offers(by_prompt, sources, receiver, method, rng)
        if offers and receivers is None:
            raise ValueError(f"method {method.name} scores peer responses under {receiver!r}; pass receivers={{name: policy}}")
        own[receiver] = tuple(_own(by_prompt[q], receiver, method) for q in by_prompt if q not in replaced)
        peer[receiver], new_rows = _admit(offers, receiver, receivers or {}, method, rng)
        rows += new_rows
    return Exchange(own, peer, _report(groups_by_model, selection, sources, rows))


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
    if len(sizes) != 1:
        raise ValueError(f"group sizes differ within one step: {sorted(sizes)}; a group that lost a member is never used")
    return {q: {name: groups_by_model[name][i] for name in names} for i, q in enumerate(order)}


def _resolve_sources(
    selection: Selection, by_prompt: Mapping[str, Mapping[str, Group]], learners: tuple[str, ...]
) -> dict[tuple[str, str], str]:
    """(receiver, prompt) -> the one source. Several qualify only with three or more models: most successes, then name."""
    best: dict[tuple[str, str], str] = {}
    for (source, receiver), prompts in selection.selected.items():
        for q in prompts if receiver in learners else ():
            key, other = (receiver, q), best.get((receiver, q))
            rank = (-by_prompt[q][source].successes, source)
            if other is None or rank < (-by_prompt[q][other].successes, other):
                best[key] = source
    return best


def _offers(
    by_prompt: Mapping[str, Mapping[str, Group]],
    sources: Mapping[tuple[str, str], str],
    receiver: str,
    method: Method,
    rng: np.random.Generator,
) -> tuple[list[_Offer], set[str]]:
    offers: list[_Offer] = []
    replaced: set[str] = set()
    for q, groups in by_prompt.items():
        source = sources.get((receiver, q))
        if source is None:
            continue
        moved = method.bound("transfer")(groups[receiver], groups[source], rng)
        advantages = method.bound("peer_advantage")(groups, source, receiver)
        offers += [_Offer(groups[source], receiver, i, advantages[i], groups[receiver].prompt_ids) for i in moved.indices]
        if not moved.keep_own:
            replaced.add(q)
    return offers, replaced


def _own(groups: Mapping[str, Group], receiver: str, method: Method) -> SequenceGroup:
    group = groups[receiver]
    advantages = method.bound("own_advantage")(groups, receiver, receiver)
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
        )
        for r, a in zip(group.responses, advantages, strict=True)
    )
    return SequenceGroup(group.prompt.id, False, sequences)


def _admit(
    offers: list[_Offer], receiver: str, receivers: Mapping[str, Receiver], method: Method, rng: np.random.Generator
) -> tuple[tuple[SequenceGroup, ...], list[TransferRow]]:
    if not offers:
        return (), []
    policy = receivers[receiver]
    senders = {name: r.codec for name, r in receivers.items()}
    texts = [
        retokenize(o.response, senders.get(o.group.model), policy.codec, max_tokens=policy.max_response_tokens) for o in offers
    ]
    scorable = [i for i, t in enumerate(texts) if t.ids is not None]
    logprobs = dict(zip(scorable, policy.score([(offers[i].prompt_ids, texts[i].ids or ()) for i in scorable]), strict=True))
    scores = {i: score(mean_logprob(logprobs[i]), mean_logprob(offers[i].response.logprobs)) for i in scorable}
    verdicts = dict(zip(scorable, method.bound("admission")([scores[i] for i in scorable], rng), strict=True))
    grafted: dict[str, list[Sequence]] = {o.group.prompt.id: [] for o in offers}
    rows = []
    for i, (offer, text) in enumerate(zip(offers, texts, strict=True)):
        verdict = verdicts.get(i, Admission(None, text.reason))
        rows.append(_row(offer, scores.get(i), verdict))
        if verdict.weight is not None:
            grafted[offer.group.prompt.id].append(_peer_sequence(offer, text.ids or (), logprobs[i], verdict.weight))
    return tuple(SequenceGroup(q, True, tuple(s)) for q, s in grafted.items()), rows


def _peer_sequence(offer: _Offer, ids: tuple[int, ...], old_logprobs: tuple[float, ...], weight: float) -> Sequence:
    return Sequence(
        prompt_id=offer.group.prompt.id,
        source=offer.group.model,
        receiver=offer.receiver,
        prompt_ids=offer.prompt_ids,
        response_ids=ids,
        old_logprobs=old_logprobs,
        advantage=offer.advantage,
        weight=weight,
        source_mean_logprob=mean_logprob(offer.response.logprobs),
    )


def _row(offer: _Offer, s: float | None, verdict: Admission) -> TransferRow:
    reward = offer.response.reward
    if reward is None:
        raise ValueError(f"prompt {offer.group.prompt.id!r}: an unverified response was offered to a peer")
    return TransferRow(
        offer.group.prompt.id,
        offer.group.model,
        offer.receiver,
        offer.index,
        reward,
        offer.advantage,
        s,
        verdict.weight,
        verdict.reason,
    )


def _report(
    groups: GroupsByModel, selection: Selection, sources: Mapping[tuple[str, str], str], rows: list[TransferRow]
) -> ExchangeReport:
    def direction(d: Direction) -> DirectionReport:
        """Counts of one ordered pair."""
        mine = [r for r in rows if (r.source, r.receiver) == d]
        used = sum(s == d[0] and r == d[1] for (r, _), s in sources.items())
        admitted = sum(r.weight is not None for r in mine)
        return DirectionReport(
            *d, len(selection.candidates[d]), selection.limits[d], len(selection.selected[d]), used, len(mine), admitted
        )

    return ExchangeReport(
        directions=tuple(map(direction, selection.candidates)),
        rows=tuple(rows),
        all_fail={name: sum(g.all_fail for g in gs) for name, gs in groups.items()},
        all_pass={name: sum(g.all_pass for g in gs) for name, gs in groups.items()},
    )
