"""The only place where a denominator is chosen.

Every aggregation maps token losses [B, T] of ONE micro-batch and the totals of the WHOLE minibatch to a scalar; the sum over
micro-batches is the minibatch's loss, so cutting a minibatch differently never changes the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from graft.types import Minibatch


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole minibatch: response tokens and sequences, all of them and those of peers."""

    tokens: int
    sequences: int
    peer_tokens: int = 0
    peer_sequences: int = 0

    @classmethod
    def of(cls, minibatch: Minibatch) -> Totals:
        peers = [s for s in minibatch.sequences if s.is_peer]
        return cls(minibatch.tokens, len(minibatch.sequences), sum(len(s.response_ids) for s in peers), len(peers))


class Aggregation(Protocol):
    """(losses [B,T], mask [B,T], is_peer [B], totals) -> scalar."""

    __name__: str

    def __call__(
        self, losses: Tensor, mask: Tensor, is_peer: Tensor, totals: Totals, *args: Any, **hyperparameters: Any
    ) -> Tensor: ...


def token_mean(losses: Tensor, mask: Tensor, is_peer: Tensor, totals: Totals) -> Tensor:
    """Sum of token losses over all response tokens of the minibatch (eq. 10; verl's default). 0 for an empty minibatch."""
    return (losses * mask).sum() / max(totals.tokens, 1)


def seq_mean_token_sum(losses: Tensor, mask: Tensor, is_peer: Tensor, totals: Totals) -> Tensor:
    """Sum over tokens, mean over sequences."""
    return (losses * mask).sum() / max(totals.sequences, 1)


def seq_mean_token_mean(losses: Tensor, mask: Tensor, is_peer: Tensor, totals: Totals) -> Tensor:
    """Mean over a sequence's tokens, then over sequences (original GRPO, GSPO). An empty row counts 0 but stays in the divisor."""
    per_sequence = (losses * mask).sum(1) / mask.sum(1).clamp(min=1)
    return per_sequence.sum() / max(totals.sequences, 1)


def token_means_apart(losses: Tensor, mask: Tensor, is_peer: Tensor, totals: Totals) -> Tensor:
    """Token mean over own tokens plus token mean over peer tokens (SGT: L_GRPO + lambda NLL). An absent part is 0."""
    per_sequence = (losses * mask).sum(1)
    own = per_sequence[~is_peer].sum() / max(totals.tokens - totals.peer_tokens, 1)
    return own + per_sequence[is_peer].sum() / max(totals.peer_tokens, 1)


def seq_mean_token_sum_norm(losses: Tensor, mask: Tensor, is_peer: Tensor, totals: Totals, *, norm_tokens: float) -> Tensor:
    """Sum over tokens divided by a constant, mean over sequences (Dr. GRPO, whose constant is the response limit)."""
    return seq_mean_token_sum(losses, mask, is_peer, totals) / norm_tokens
