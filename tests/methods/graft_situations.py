"""Situations that are counted by hand: a tokenizer of letters, receivers with fixed log-probs, groups from success counts.

Response j of a model's group on prompt q reads "<model><q><j>" and j exclamation marks, so it has 3 + j letters; its first k
responses are the successes. Every response stopped by EOS and has log-prob -1 per token at its sender. Model "a" spells a
letter with one token, "b" with two, "c" with three:

    response j as tokens of   a: 4 + j (4, 5, 6, 7)   b: 7 + 2j (7, 9, 11, 13)   c: 10 + 3j (10, 13, 16, 19)
    the four together         22                      40                         58
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from graft.aggregation import Totals
from graft.composition import Method
from graft.exchange import Exchange, exchange
from graft.losses import LossInputs
from graft.types import Group, GroupsByModel, Minibatch, Prompt, Response, Sequence

# a solves p0 (1 of 4) where b fails, b solves p1 (3 of 4) where a fails; both fail p2, both solve p3, both are mixed on p4.
CROSSING = {"a": (1, 0, 0, 4, 2), "b": (0, 3, 0, 4, 2)}


@dataclass(frozen=True)
class Letters:
    """Every letter is ``width`` tokens; id 0 is EOS."""

    width: int
    eos_ids: frozenset[int] = frozenset({0})
    special_ids: frozenset[int] = frozenset({0})
    eos_id: int = 0

    @property
    def fingerprint(self) -> str:
        return f"letters of {self.width}"

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(1 + self.width * ord(c) + k for c in text for k in range(self.width))

    def decode(self, ids: Seq[int]) -> str:
        return "".join(chr((i - 1) // self.width) for i in ids[:: self.width])

    def response_text(self, ids: Seq[int]) -> str:
        return self.decode([i for i in ids if i != 0])


CODECS = {"a": Letters(1), "b": Letters(2), "c": Letters(3)}


@dataclass
class Reader:
    """A receiver whose score s of a text is looked up by the text's first three letters ("a00"); 1 where nothing is said."""

    codec: Letters
    scores: Mapping[str, float] = field(default_factory=dict)
    max_response_tokens: int = 99
    asked: list[str] = field(default_factory=list)

    def score(self, items: Seq[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[float, ...]]:
        names = [self.codec.response_text(ids)[:3] for _, ids in items]
        self.asked += names
        # The sender's mean is -1, so a mean of -1 + log s is a score of s.
        return [(-1.0 + math.log(self.scores.get(name, 1.0)),) * len(ids) for name, (_, ids) in zip(names, items, strict=True)]


def groups(counts: Mapping[str, Seq[int]], n: int = 4) -> dict[str, tuple[Group, ...]]:
    """Groups of n from success counts per prompt p0, p1, ..."""
    made = {}
    for model, ks in counts.items():
        codec = CODECS[model]
        made[model] = tuple(
            Group(Prompt(f"p{q}", f"prompt {q}", "1"), model, (codec.width, q + 1), _responses(codec, f"{model}{q}", k, n))
            for q, k in enumerate(ks)
        )
    return made


def _responses(codec: Letters, name: str, successes: int, n: int) -> tuple[Response, ...]:
    texts = [f"{name}{j}" + "!" * j for j in range(n)]
    ids = [(*codec.encode(t), 0) for t in texts]
    return tuple(Response(x, (-1.0,) * len(x), t, "eos", float(j < successes)) for j, (x, t) in enumerate(zip(ids, texts)))


def moved(
    method: Method,
    counts: Mapping[str, Seq[int]] | GroupsByModel = CROSSING,
    scores: Mapping[str, float] | None = None,
    *,
    n: int = 4,
    seed: int = 0,
    capability: Mapping[str, float] | None = None,
) -> Exchange:
    """One exchange; ``scores`` by response name, whoever reads it."""
    made: Any = counts if isinstance(next(iter(counts.values()))[0], Group) else groups(counts, n)  # type: ignore[arg-type]
    receivers = {m: Reader(CODECS[m], scores or {}) for m in made}
    return exchange(made, method, np.random.default_rng(seed), receivers=receivers, capability=capability)


def trained(got: Exchange, method: Method, receiver: str, prompts: int = 1, *, seed: int = 0) -> tuple[Minibatch, ...]:
    """The receiver's minibatches."""
    return method.bound("order")(got.own[receiver], got.peer[receiver], prompts, np.random.default_rng(seed))


def name_of(s: Sequence) -> str:
    """Of "a01!": "a01"."""
    return CODECS[s.receiver].response_text(s.response_ids)[:3]


def names(minibatches: Seq[Minibatch]) -> list[list[str]]:
    """Who wrote what, minibatch by minibatch: the prompt's first letters where its whole group of four is there ("a0")."""
    return [_short([name_of(s) for s in m.sequences]) for m in minibatches]


def _short(written: list[str]) -> list[str]:
    short: list[str] = []
    while written:
        stem = written[0][:2]
        whole = [f"{stem}{j}" for j in range(4)]
        take = 4 if written[:4] == whole else 1
        short.append(stem if take == 4 else written[0])
        written = written[take:]
    return short


def peers(got: Exchange, receiver: str) -> dict[str, Sequence]:
    """The admitted peer responses of a receiver by name."""
    return {name_of(s): s for g in got.peer[receiver] for s in g.sequences}


def weights(got: Exchange, receiver: str) -> dict[str, float]:
    return {k: s.weight for k, s in peers(got, receiver).items()}


def advantages(got: Exchange, receiver: str) -> dict[str, float]:
    return {k: s.advantage for k, s in peers(got, receiver).items()}


def own_advantages(got: Exchange, receiver: str, prompt: str) -> list[float]:
    return [s.advantage for g in got.own[receiver] if g.prompt_id == prompt for s in g.sequences]


def direction(got: Exchange, source: str, receiver: str) -> tuple[int, int, int, int, int, int]:
    """(candidates, m, selected, used, offered, admitted)."""
    (d,) = [d for d in got.report.directions if (d.source, d.receiver) == (source, receiver)]
    return d.candidates, d.m, d.selected, d.used, d.offered, d.admitted


def row(ratios: Seq[float], advantage: float, *, old: float = -1.0, weight: float = 1.0, peer: bool = False) -> Sequence:
    """A response of len(ratios) tokens; give the ratios to ``value`` again."""
    source = "b" if peer else "a"
    return Sequence("p", source, "a", (1,), tuple(range(1, len(ratios) + 1)), (old,) * len(ratios), advantage, weight, -1.0)


def loss_inputs(minibatch: Minibatch, ratios: Seq[Seq[float] | float] | None = None, *, ref: float = 0.0) -> LossInputs:
    """What a policy would hand to the loss, in float64: its log-probs are old + log(ratio) (ratio 1 where nothing is said).

    ``ref``: how far the policy's log-probs lie above the frozen reference's.
    """
    rows = minibatch.sequences
    width = max(len(s.response_ids) for s in rows)

    def padded(values: Seq[Seq[float]]) -> torch.Tensor:
        return torch.tensor([[*v, *[0.0] * (width - len(v))] for v in values], dtype=torch.float64)

    def column(values: Seq[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    by_row = [1.0] * len(rows) if ratios is None else list(ratios)
    spread = [[r] * len(s.response_ids) if isinstance(r, float) else list(r) for r, s in zip(by_row, rows, strict=True)]
    logp = [[o + math.log(r) for o, r in zip(s.old_logprobs, rs, strict=True)] for s, rs in zip(rows, spread, strict=True)]
    return LossInputs(
        logprobs=padded(logp),
        old_logprobs=padded([s.old_logprobs for s in rows]),
        mask=padded([[1.0] * len(s.response_ids) for s in rows]),
        advantages=column([s.advantage for s in rows]),
        weights=column([s.weight for s in rows]),
        is_peer=torch.tensor([s.is_peer for s in rows]),
        source_mean=column([s.source_mean_logprob for s in rows]),
        minibatch_index=minibatch.index,
        unanimous=torch.tensor([s.unanimous for s in rows]),
        ref_logprobs=padded([[x - ref for x in v] for v in logp]),
    )


def loss_at(method: Method, minibatch: Minibatch, x: LossInputs) -> float:
    return float(method.loss()(x, Totals.of(minibatch))[0])


def objective(method: Method, minibatch: Minibatch, ratios: Seq[Seq[float] | float] | None = None) -> float:
    """J of eq. 10: minus the loss."""
    return -loss_at(method, minibatch, loss_inputs(minibatch, ratios))


def gradient(method: Method, minibatch: Minibatch, x: LossInputs) -> list[list[float]]:
    """dLoss/dlogprob of every response's tokens, by autograd."""
    logp = x.logprobs.clone().requires_grad_()
    value, _ = method.loss()(replace(x, logprobs=logp), Totals.of(minibatch))
    value.backward()
    assert logp.grad is not None
    assert not logp.grad[x.mask == 0].any()
    return [logp.grad[i, : len(s.response_ids)].tolist() for i, s in enumerate(minibatch.sequences)]


def slopes(method: Method, minibatch: Minibatch, x: LossInputs, step: float = 1e-6) -> list[list[float]]:
    """The same by central finite differences."""

    def at(i: int, t: int, by: float) -> float:
        logp = x.logprobs.clone()
        logp[i, t] += by
        return loss_at(method, minibatch, replace(x, logprobs=logp))

    return [
        [(at(i, t, step) - at(i, t, -step)) / (2 * step) for t in range(len(s.response_ids))]
        for i, s in enumerate(minibatch.sequences)
    ]


def flat(values: Seq[Seq[float]]) -> list[float]:
    return [x for v in values for x in v]
