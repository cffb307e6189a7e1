"""Group rewards -> one advantage per response, and the capability that some advantages compare models by.

Every advantage has the signature ``(groups, source, receiver, capability, **hyperparameters) -> tuple[float, ...]``: ``groups``
maps the models in play for ONE prompt (the receiver and the sources it learns from there) to their rollout groups, and the result
is the advantage of every response of ``source`` as ``receiver`` uses it. Own data is ``source == receiver``. Results are plain
floats: advantages are constants of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from graft.types import Group

CAPABILITY_FLOOR = 1e-8


class Advantage(Protocol):
    """The signature above."""

    __name__: str

    def __call__(
        self,
        groups: Mapping[str, Group],
        source: str,
        receiver: str,
        capability: Mapping[str, float],
        *args: Any,
        **hyperparameters: Any,
    ) -> tuple[float, ...]: ...


class Capability(Protocol):
    """(success rates of all steps so far, this one included, oldest first) -> how capable a model is."""

    __name__: str

    def __call__(self, history: Sequence[float], *args: Any, **hyperparameters: Any) -> float: ...


def _mean_and_std(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased std (divisor n-1), two passes in float64; ValueError on a non-finite reward."""
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"rewards {tuple(rewards)} are not all finite")
    mean = math.fsum(rewards) / len(rewards)
    return mean, math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1))


def _equal(rewards: Sequence[float]) -> bool:
    return all(r == rewards[0] for r in rewards)


def normalise(rewards: tuple[float, ...], *, advantage_eps: float) -> tuple[float, ...]:
    """a_i = (r_i - mean) / (std + eps); paper eq. 1, with verl's conventions.

    std is the unbiased one (divisor n-1), computed in two passes in float64; eps is added to the std and there is no variance
    floor. A group of one, and a group whose rewards are all equal, get exactly 0 (verl gives a group of one A = r; a single
    response carries no comparison, so this core gives it none). Raises ValueError on a non-finite reward.
    """
    mean, std = _mean_and_std(rewards)
    if len(rewards) < 2 or _equal(rewards):
        return (0.0,) * len(rewards)
    return tuple((r - mean) / (std + advantage_eps) for r in rewards)


def source_group(
    groups: Mapping[str, Group], source: str, receiver: str, capability: Mapping[str, float], *, advantage_eps: float
) -> tuple[float, ...]:
    """Normalised within the source's own group, whoever receives it: GRPO for own data, GRAFT's rule for peer data (4.1)."""
    return normalise(groups[source].rewards, advantage_eps=advantage_eps)


def centred(groups: Mapping[str, Group], source: str, receiver: str, capability: Mapping[str, float]) -> tuple[float, ...]:
    """a_i = r_i - mean, no std (Dr. GRPO, arXiv 2503.20783). Equal rewards get exactly 0; ValueError on a non-finite reward."""
    rewards = groups[source].rewards
    mean, _ = _mean_and_std(rewards)
    return (0.0,) * len(rewards) if _equal(rewards) else tuple(r - mean for r in rewards)


def pooled(
    groups: Mapping[str, Group], source: str, receiver: str, capability: Mapping[str, float], *, advantage_eps: float
) -> tuple[float, ...]:
    """Normalised over the union of all groups in play; the source's part. Without a peer in play it is ``source_group``."""
    return _part(groups, source, normalise(_union(groups), advantage_eps=advantage_eps))


def joint_capability(
    groups: Mapping[str, Group],
    source: str,
    receiver: str,
    capability: Mapping[str, float],
    *,
    advantage_eps: float,
    capability_ratio_max: float,
) -> tuple[float, ...]:
    """HACPO's advantage (arXiv 2603.02604, eq. 6-10), peers' responses already times their capability coefficient.

    For learner k: mu = mean over all responses in play of omega(k, j) r with omega(k, j) = P_k / P_j (1 for its own), sigma = the
    unbiased std of the raw rewards, a = (r - mu) / (sigma + eps), and a peer's response times omega(j, k). Guards of the authors'
    code: capabilities are floored at 1e-8 and their ratio is kept in [1/max, max]; equal rewards throughout give exactly 0 (a
    weight must not create a signal); mu > 1 is replaced by the mean of the learner's own rewards.
    """

    def omega(a: str, b: str) -> float:
        """P_a / P_b, guarded."""
        ratio = max(capability[a], CAPABILITY_FLOOR) / max(capability[b], CAPABILITY_FLOOR)
        return min(max(ratio, 1 / capability_ratio_max), capability_ratio_max)

    rewards = _union(groups)
    _, std = _mean_and_std(rewards)
    if len(rewards) < 2 or _equal(rewards):
        return (0.0,) * len(groups[source].responses)
    mu = math.fsum(omega(receiver, j) * r for j, g in groups.items() for r in g.rewards) / len(rewards)
    if mu > 1:
        own = groups[receiver].rewards
        mu = math.fsum(own) / len(own)
    return tuple(omega(source, receiver) * (r - mu) / (std + advantage_eps) for r in groups[source].rewards)


def _union(groups: Mapping[str, Group]) -> tuple[float, ...]:
    return tuple(r for g in groups.values() for r in g.rewards)


def _part(groups: Mapping[str, Group], source: str, values: tuple[float, ...]) -> tuple[float, ...]:
    start = 0
    for name, group in groups.items():
        if name == source:
            return values[start : start + len(group.responses)]
        start += len(group.responses)
    raise ValueError(f"{source!r} is not in play; there are {', '.join(groups)}")


def equal_capability(history: Sequence[float]) -> float:
    """For methods that do not compare models."""
    return 1.0


def windowed_mean(history: Sequence[float], *, capability_window: float) -> float:
    """HACPO's capability: mean success rate of the last ``capability_window`` steps, the current one included (fewer at first)."""
    recent = history[-int(capability_window) :]
    return math.fsum(recent) / len(recent)
