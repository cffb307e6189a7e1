"""Token losses. Shapes: B sequences, T response tokens (right padded), mask [B, T] is 1 on response tokens.

Every loss has the signature ``(inputs, **hyperparameters) -> (losses [B, T], metrics)``. Metrics are SUMS and counts, so that
micro-batches add up. Gradient flows through ``inputs.logprobs`` only; everything else is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from graft.aggregation import Aggregation, Totals

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. ``logprobs``, ``old_logprobs``, ``mask`` [B,T]; ``advantages``, ``weights``, ``is_peer``, ``source_mean`` [B]."""

    logprobs: Tensor
    old_logprobs: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    is_peer: Tensor
    source_mean: Tensor
    minibatch_index: int = 0

    def __post_init__(self) -> None:
        shape = self.logprobs.shape
        rows = (self.advantages, self.weights, self.is_peer, self.source_mean)
        if self.old_logprobs.shape != shape or self.mask.shape != shape or any(x.shape != shape[:1] for x in rows):
            raise ValueError(f"loss inputs disagree in shape: logprobs {tuple(shape)}, mask {tuple(self.mask.shape)}")


LossResult = tuple[Tensor, dict[str, Tensor]]


class TokenLoss(Protocol):
    """The signature above."""

    __name__: str

    def __call__(self, inputs: LossInputs, *args: Any, **hyperparameters: Any) -> LossResult: ...


def token_ratio(inputs: LossInputs) -> Tensor:
    """rho [B,T] of eq. 9; the log-ratio is bounded to +-20 BEFORE exp (a bound after exp leaves NaN gradients) and 0 on padding."""
    log_ratio = torch.where(inputs.mask.bool(), inputs.logprobs - inputs.old_logprobs, 0.0)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def token_clip(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossResult:
    """-w min(rho a, clip(rho, 1-low, 1+high) a), eq. 10's summand; no dual clip (GRPO and DAPO have none).

    Metrics by table 9's definition: a token is clipped where the clipped term is strictly smaller.
    """
    rho, a = token_ratio(inputs), inputs.advantages[:, None]
    plain, clipped = rho * a, rho.clamp(1 - clip_low, 1 + clip_high) * a
    losses = -inputs.weights[:, None] * torch.minimum(plain, clipped) * inputs.mask
    hit = ((clipped < plain) & inputs.mask.bool()).sum(1)
    return losses, {"clipped_own": hit[~inputs.is_peer].sum(), "clipped_peer": hit[inputs.is_peer].sum()}


@dataclass(frozen=True)
class MinibatchLoss:
    """A method's whole loss: own rows by ``own``, peer rows by ``peer``, reduced by ``aggregation``.

    ``zero_at_zero_advantage`` declares that a row with w a = 0 has loss and gradient exactly 0, which lets a policy skip its
    forward pass; the row still counts in the totals.
    """

    own: Callable[[LossInputs], LossResult]
    peer: Callable[[LossInputs], LossResult]
    aggregation: Aggregation
    zero_at_zero_advantage: bool

    def __call__(self, inputs: LossInputs, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar contribution of one micro-batch to the minibatch's loss, and its metric sums."""
        losses, metrics = self.own(inputs)
        if self.peer is not self.own and bool(inputs.is_peer.any()):
            peer_losses, peer_metrics = self.peer(inputs)
            losses = torch.where(inputs.is_peer[:, None], peer_losses, losses)
            metrics = {k: v for k, v in metrics.items() if not k.endswith("_peer")} | {
                k: v for k, v in peer_metrics.items() if k.endswith("_peer")
            }
        return self.aggregation(losses, inputs.mask, inputs.is_peer, totals), metrics
