"""The records that every other module speaks in: prompts, responses, rollout groups, training sequences, minibatches.

All are frozen and validated on construction, so a value that exists is a value that is whole.

Shape legend used in the package: ``G`` groups, ``n`` responses per group, ``B`` sequences, ``T`` response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["eos", "length"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task item: ``message`` is the user's turn, before any model's chat template; ``gold`` is the reference answer.

    ``alternatives`` are further reference answers, for the few items that have several: each of them alone is right.
    """

    id: str
    message: str
    gold: str
    tags: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.id or not self.message or not all(gold.strip() for gold in self.golds):
            raise ValueError(f"prompt {self.id!r}: id, message and gold must not be empty")
        if len(set(self.golds)) < len(self.golds):
            raise ValueError(f"prompt {self.id!r}: an alternative repeats another gold; name each once")

    @property
    def golds(self) -> tuple[str, ...]:
        """All accepted answers, ``gold`` first: what a verifier is given."""
        return (self.gold, *self.alternatives)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement on one response. ``how`` says why: equal, different, boxed missing, parse error, too large, timeout, worker died."""

    correct: bool
    extracted: str | None
    how: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response of one model.

    ``ids`` [T] are the sender's own tokens, with the terminal EOS exactly if ``finish_reason == "eos"``; ``logprobs`` [T] are the
    generation log-probabilities (nats) of these ids; ``text`` is the decoded response without its terminal EOS. ``reward`` is
    ``None`` until the response was verified. A response from a log without log-probs per token has no ids; ``mean_logprob`` is
    then what the log says of their mean (None: nothing).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason
    reward: float | None = None
    verdict: Verdict | None = None
    mean_logprob: float | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} response ids but {len(self.logprobs)} log-probs; every id needs its own")
        if not all(map(math.isfinite, self.logprobs)):
            raise ValueError("a generation log-prob is not finite; refuse the response rather than train on it")
        if self.mean_logprob is not None and (self.ids or not math.isfinite(self.mean_logprob)):
            raise ValueError(f"mean log-prob {self.mean_logprob} of {len(self.ids)} ids; it stands only where no ids are known")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"reward {self.reward} is not finite")


@dataclass(frozen=True, slots=True)
class Group:
    """A rollout group: the n responses of one ``model`` to one prompt in one step. ``prompt_ids`` is that model's rendering."""

    prompt: Prompt
    model: str
    prompt_ids: tuple[int, ...]
    responses: tuple[Response, ...]

    def __post_init__(self) -> None:
        if not self.responses:
            raise ValueError(f"group of prompt {self.prompt.id!r} by {self.model!r} has no responses")

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards [n]; raises ValueError while any response is unverified (a group is never used with a member missing)."""
        missing = [i for i, r in enumerate(self.responses) if r.reward is None]
        if missing:
            raise ValueError(f"prompt {self.prompt.id!r}, model {self.model!r}: responses {missing} have no reward")
        return tuple(float(r.reward) for r in self.responses)  # type: ignore[arg-type]

    @property
    def successes(self) -> int:
        """k_M(q) of the paper: the number of responses with a positive reward."""
        return sum(r > 0 for r in self.rewards)

    @property
    def all_fail(self) -> bool:
        return self.successes == 0

    @property
    def all_pass(self) -> bool:
        return self.successes == len(self.responses)

    @property
    def unanimous(self) -> int:
        """-1 for an all-fail group, +1 for an all-pass group, 0 where rewards differ (graded rewards included)."""
        return 0 if len(set(self.rewards)) > 1 else int(self.all_pass) - int(self.all_fail)


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a receiver trains on: one response as tokens of the receiver.

    ``old_logprobs`` [T] come from the RECEIVER before its first update of the step, for own and peer sequences alike (paper
    eq. 9). ``weight`` and ``advantage`` are constants of the loss. ``source_mean_logprob`` is the sender's mean over its own ids.
    ``unanimous`` is that of the group it was sampled in. ``ref_logprobs`` [T] come from the frozen reference policy, or () where
    the method has none.
    """

    prompt_id: str
    source: str
    receiver: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantage: float
    weight: float = 1.0
    source_mean_logprob: float = 0.0
    unanimous: int = 0
    ref_logprobs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.response_ids or len(self.response_ids) != len(self.old_logprobs):
            raise ValueError(
                f"sequence of prompt {self.prompt_id!r}: {len(self.response_ids)} ids, {len(self.old_logprobs)} old log-probs"
            )
        if self.ref_logprobs and len(self.ref_logprobs) != len(self.response_ids):
            raise ValueError(f"sequence of prompt {self.prompt_id!r}: {len(self.ref_logprobs)} reference log-probs")
        if not (math.isfinite(self.advantage) and math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"sequence of prompt {self.prompt_id!r}: advantage {self.advantage}, weight {self.weight}")

    @property
    def is_peer(self) -> bool:
        return self.source != self.receiver


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The sequences that one prompt contributes to one receiver; the unit that the schedule counts (``prompts`` of a minibatch)."""

    prompt_id: str
    peer: bool
    sequences: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimiser step's sequences. ``index`` counts the minibatches of the step from 0, own ones included."""

    index: int
    sequences: tuple[Sequence, ...]

    @property
    def tokens(self) -> int:
        """The denominator of eq. 10: response tokens of all kept sequences; weights are not in it."""
        return sum(len(s.response_ids) for s in self.sequences)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to sample. ``top_p == 1`` is the full distribution."""

    temperature: float
    top_p: float
    max_response_tokens: int

    def __post_init__(self) -> None:
        if not self.temperature > 0 or not 0 < self.top_p <= 1 or self.max_response_tokens < 1:
            raise ValueError(
                f"sampling settings out of range: {self}; need temperature > 0, 0 < top_p <= 1, max_response_tokens >= 1"
            )


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """AdamW and what surrounds one step of it."""

    learning_rate: float
    beta1: float
    beta2: float
    weight_decay: float
    max_grad_norm: float
    eps: float = 1e-8


Metrics = Mapping[str, float]
GroupsByModel = Mapping[str, "tuple[Group, ...]"]


@dataclass(frozen=True, slots=True)
class StepKey:
    """What a sample's random numbers depend on, with the prompt id and the sample index: nothing else."""

    seed: int
    stream: str
    step: int
    extra: tuple[int, ...] = field(default=())
