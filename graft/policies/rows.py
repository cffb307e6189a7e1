"""Sequences as an engine takes them: batches of like length, token pairs, and the padded tensors that a loss is given."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from graft.losses import LossInputs
from graft.policies.base import TokenPair
from graft.types import Sequence


def by_length(rows: Seq[Sequence], size: int) -> list[tuple[Sequence, ...]]:
    """Batches of at most ``size`` rows."""
    # Short with short saves padding; prompts and equal responses stay together where lengths tie, so they are shared.
    ordered = sorted(rows, key=lambda s: (len(s.response_ids), s.prompt_ids, s.response_ids)) if len(rows) > size else list(rows)
    return [tuple(ordered[i : i + size]) for i in range(0, len(ordered), size)]


def token_pairs(rows: Seq[Sequence]) -> list[TokenPair]:
    """(prompt ids, response ids) of each row."""
    return [(s.prompt_ids, s.response_ids) for s in rows]


def loss_inputs(rows: tuple[Sequence, ...], logprobs: Tensor, mask: Tensor, index: int, entropies: Tensor | None) -> LossInputs:
    """Rows as ``[B,T]`` tensors beside their current ``logprobs`` and ``mask`` [B,T]; ``index``: the minibatch's number in its step."""
    width, device = logprobs.shape[1], logprobs.device

    def column(values: Seq[float] | Seq[Seq[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    # Padding holds 0 in both log-prob tensors and 0 in the mask: it is never a token, so never a probability of 1.
    def padded(logps: Seq[Seq[float]]) -> Tensor:
        """[B,T] with zeros behind each row."""
        return column([[*row, *[0.0] * (width - len(row))] for row in logps])

    return LossInputs(
        logprobs=logprobs,
        old_logprobs=padded([s.old_logprobs for s in rows]),
        mask=mask.float(),
        advantages=column([s.advantage for s in rows]),
        weights=column([s.weight for s in rows]),
        is_peer=torch.tensor([s.is_peer for s in rows], device=device),
        source_mean=column([s.source_mean_logprob for s in rows]),
        minibatch_index=index,
        unanimous=torch.tensor([s.unanimous for s in rows], device=device),
        ref_logprobs=padded([s.ref_logprobs for s in rows]) if any(s.ref_logprobs for s in rows) else None,
        entropies=entropies,
    )
