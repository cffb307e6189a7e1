"""Token losses. Shapes: B sequences, T response tokens (right padded), mask [B, T] is 1 on response tokens.

Every loss has the signature ``(inputs, **hyperparameters) -> (losses [B, T], metrics)``. Metrics are SUMS and counts, so that
micro-batches add up. Gradient flows through ``inputs.logprobs`` only; everything else is a constant. ``declares`` says what a
loss needs and whether it vanishes where w a = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from graft.aggregation import Aggregation, Totals
from graft.types import Sequence

MAX_LOG_RATIO = 20.0
MAX_SEQUENCE_LOG_RATIO = 10.0
MAX_KL = 10.0


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. ``logprobs``, ``old_logprobs``, ``mask`` [B,T]; ``advantages``, ``weights``, ``is_peer``, ``source_mean`` [B].

    ``unanimous`` [B] is -1, 0 or +1 (all-fail, mixed, all-pass group; 0 where not given). ``ref_logprobs`` and ``entropies`` [B,T]
    (the policy's own, nats, detached) are there only for a loss that declares that it needs them.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    is_peer: Tensor
    source_mean: Tensor
    minibatch_index: int = 0
    unanimous: Tensor | None = None
    ref_logprobs: Tensor | None = None
    entropies: Tensor | None = None

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


@dataclass(frozen=True, slots=True)
class Traits:
    """``vanishes``: loss and gradient of a row are exactly 0 where w a = 0, so a policy need not compute it.

    ``source_mean``: it reads the source's own mean log-prob of a peer response.
    """

    vanishes: bool = False
    reference: bool = False
    entropies: bool = False
    source_mean: bool = False


TRAITS: dict[TokenLoss, Traits] = {}
Function = TypeVar("Function", bound=TokenLoss)


def declares(
    *, vanishes: bool = False, reference: bool = False, entropies: bool = False, source_mean: bool = False
) -> Callable[[Function], Function]:
    """Decorator of every token loss: its traits."""

    def register(function: Function) -> Function:
        """Note the traits; the function itself stays as it is."""
        TRAITS[function] = Traits(vanishes, reference, entropies, source_mean)
        return function

    return register


def needed(value: Tensor | None, what: str) -> Tensor:
    """The tensor, or a ValueError that names the trait to declare."""
    if value is None:
        raise ValueError(f"this loss needs {what}; declare it (losses.declares), so that the policy computes it")
    return value


def token_ratio(inputs: LossInputs) -> Tensor:
    """rho [B,T] of eq. 9; the log-ratio is bounded to +-20 BEFORE exp (a bound after exp leaves NaN gradients) and 0 on padding."""
    log_ratio = torch.where(inputs.mask.bool(), inputs.logprobs - inputs.old_logprobs, 0.0)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over response tokens [B]; 0 for an empty row."""
    return torch.where(mask.bool(), values, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def sequence_ratio(inputs: LossInputs) -> Tensor:
    """s [B] of GSPO (arXiv 2507.18071): exp of the mean token log-ratio, bounded to 10 before exp."""
    mean = sequence_mean(inputs.logprobs - inputs.old_logprobs, inputs.mask)
    return mean.clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()


def _clipped(ratio: Tensor, advantage: Tensor, inputs: LossInputs, clip_low: float, clip_high: float) -> LossResult:
    """-w min(ratio a, clip(ratio) a) on response tokens; ratio and advantage broadcast to [B,T]."""
    plain, clipped = ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    losses = -inputs.weights[:, None] * torch.minimum(plain, clipped) * inputs.mask
    hit = ((clipped < plain) & inputs.mask.bool()).sum(1)
    return losses, _clip_counts(hit, inputs)


def _clip_counts(hit: Tensor, inputs: LossInputs) -> dict[str, Tensor]:
    return {"clipped_own": hit[~inputs.is_peer].sum(), "clipped_peer": hit[inputs.is_peer].sum()}


@declares(vanishes=True)
def token_clip(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossResult:
    """-w min(rho a, clip(rho, 1-low, 1+high) a), eq. 10's summand; no dual clip (GRPO and DAPO have none).

    Metrics by table 9's definition: a token is clipped where the clipped term is strictly smaller.
    """
    return _clipped(token_ratio(inputs), inputs.advantages[:, None], inputs, clip_low, clip_high)


@declares(vanishes=True)
def sequence_clip(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossResult:
    """The same with GSPO's sequence ratio in place of the token ratio; every token of a response carries the response's term.

    Under ``seq_mean_token_mean`` this is GSPO; under ``token_mean`` a response weighs by its length. A clipped response counts with
    all its tokens.
    """
    return _clipped(sequence_ratio(inputs)[:, None], inputs.advantages[:, None], inputs, clip_low, clip_high)


@declares(reference=True)
def sequence_clip_kl(inputs: LossInputs, *, clip_low: float, clip_high: float, kl_coef: float) -> LossResult:
    """``sequence_clip`` plus kl_coef times k3 = exp(-x) + x - 1 per token, x = log pi - log pi_ref (HACPO's own loss).

    -x is bounded to +-20 and k3 to +-10, as in verl's low_var_kl. The KL term knows neither w nor a.
    """
    losses, metrics = sequence_clip(inputs, clip_low=clip_low, clip_high=clip_high)
    x = torch.where(inputs.mask.bool(), inputs.logprobs - needed(inputs.ref_logprobs, "reference log-probs"), 0.0)
    minus = (-x).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = (minus.expm1() - minus).clamp(-MAX_KL, MAX_KL) * inputs.mask
    return losses + kl_coef * k3, metrics | {"kl_own": k3[~inputs.is_peer].sum().detach()}


@declares(vanishes=True, source_mean=True)
def stepwise_clip(inputs: LossInputs, *, peer_lower: float, peer_lower_step: float, peer_alpha: float) -> LossResult:
    """HACPO's peer term: -w c sg[c]^alpha a with c = clip(s, lower_m, 1), lower_m = min(1, lower + m step).

    s = exp(mean log-prob of the receiver's tokens - the SOURCE's mean over its own tokens), bounded to +-10 before exp; m = the
    minibatch's index in the step, own ones counted. The capability coefficient is in a. Outside [lower_m, 1] there is no gradient
    at all, for either sign of a (no min with an unclipped term); such a response counts as clipped with all its tokens.
    """
    log_s = sequence_mean(inputs.logprobs, inputs.mask) - inputs.source_mean
    s = log_s.clamp(-MAX_SEQUENCE_LOG_RATIO, MAX_SEQUENCE_LOG_RATIO).exp()
    lower = min(1.0, peer_lower + inputs.minibatch_index * peer_lower_step)
    c = s.clamp(lower, 1.0)
    losses = -(inputs.weights * inputs.advantages * c * c.detach() ** peer_alpha)[:, None] * inputs.mask
    silenced = ((s < lower) | (s > 1.0)) & (inputs.weights * inputs.advantages != 0)  # a row that says nothing is not clipped
    outside = silenced[:, None] & inputs.mask.bool()
    return losses, _clip_counts(outside.sum(1), inputs)


@declares(vanishes=True)
def shaped_probability(inputs: LossInputs, *, shaping_gamma: float) -> LossResult:
    """LUFFY's off-policy term (arXiv 2504.14945): -w f(p) a with f(p) = p / (p + gamma), p the policy's probability of the token.

    The behaviour probability is 1, there is no clip, and the gradient flows through p: a gamma p / (p + gamma)^2 per token.
    """
    p = torch.where(inputs.mask.bool(), inputs.logprobs, 0.0).exp()
    losses = -(inputs.weights * inputs.advantages)[:, None] * p / (p + shaping_gamma) * inputs.mask
    return losses, _clip_counts(torch.zeros_like(inputs.is_peer, dtype=torch.long), inputs)


@declares()
def nll(inputs: LossInputs, *, nll_weight: float) -> LossResult:
    """-nll_weight w log pi per token, whatever the advantage (SGT's supervised term on a peer's success)."""
    losses = -nll_weight * inputs.weights[:, None] * torch.where(inputs.mask.bool(), inputs.logprobs, 0.0)
    return losses * inputs.mask, _clip_counts(torch.zeros_like(inputs.is_peer, dtype=torch.long), inputs)


@declares(entropies=True)
def entropy_shaped(inputs: LossInputs, *, clip_low: float, clip_high: float, zvp_alpha: float) -> LossResult:
    """RL-ZVP (arXiv 2509.21880): ``token_clip`` with token advantages in unanimous groups.

    With H the policy's token entropy as a constant: all-pass +alpha H_t; all-fail -alpha (max_k H_k - H_t), so the most
    uncertain token of a failed response is left alone. Mixed groups keep their advantage.
    """
    h = needed(inputs.entropies, "entropies").detach() * inputs.mask
    unanimous = needed(inputs.unanimous, "the groups' unanimity")[:, None]
    top = h.max(1, keepdim=True).values
    shaped = torch.where(unanimous > 0, zvp_alpha * h, -zvp_alpha * (top - h))
    advantage = torch.where(unanimous == 0, inputs.advantages[:, None].expand_as(h), shaped)
    return _clipped(token_ratio(inputs), advantage, inputs, clip_low, clip_high)


@dataclass(frozen=True)
class MinibatchLoss:
    """A method's whole loss: own rows by ``own``, peer rows by ``peer``, reduced by ``aggregation``.

    A row whose loss declares that it vanishes at w a = 0 need not be computed there; it still counts in the totals.
    """

    own: Callable[[LossInputs], LossResult]
    peer: Callable[[LossInputs], LossResult]
    aggregation: Aggregation
    own_traits: Traits = Traits()
    peer_traits: Traits = Traits()

    @property
    def needs_entropies(self) -> bool:
        return self.own_traits.entropies or self.peer_traits.entropies

    def computes(self, row: Sequence) -> bool:
        """Whether the row can move a weight."""
        vanishes = self.peer_traits.vanishes if row.is_peer else self.own_traits.vanishes
        return not vanishes or row.weight * row.advantage != 0

    def __call__(self, inputs: LossInputs, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar contribution of one micro-batch to the minibatch's loss, and its metric sums."""
        if self.peer is self.own or not bool(inputs.is_peer.any()):
            losses, metrics = self.own(inputs)
        elif bool(inputs.is_peer.all()):
            losses, metrics = self.peer(inputs)
        else:
            losses, metrics = self.own(inputs)
            peer_losses, peer_metrics = self.peer(inputs)
            losses = torch.where(inputs.is_peer[:, None], peer_losses, losses)
            metrics = {k: peer_metrics.get(k, v) if k.endswith("_peer") else v for k, v in metrics.items()}
        return self.aggregation(losses, inputs.mask, inputs.is_peer, totals), metrics
