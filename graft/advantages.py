"""Group rewards -> one advantage per response.

Every advantage has the signature ``(groups, source, receiver, **hyperparameters) -> tuple[float, ...]``: ``groups`` maps each
model to its rollout group for ONE prompt, and the result is the advantage of every response of ``source`` as ``receiver`` uses
it. Own data is ``source == receiver``. Results are plain floats: advantages are constants of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from graft.types import Group


class Advantage(Protocol):
    """The signature above."""

    __name__: str

    def __call__(
        self, groups: Mapping[str, Group], source: str, receiver: str, *args: Any, **hyperparameters: Any
    ) -> tuple[float, ...]: ...


def normalise(rewards: tuple[float, ...], *, advantage_eps: float) -> tuple[float, ...]:
    """a_i = (r_i - mean) / (std + eps); paper eq. 1, with verl's conventions.

    std is the unbiased one (divisor n-1), computed in two passes in float64; eps is added to the std and there is no variance
    floor. A group of one, and a group whose rewards are all equal, get exactly 0 (verl gives a group of one A = r; a single
    response carries no comparison, so this core gives it none). Raises ValueError on a non-finite reward.
    """
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"rewards {rewards} are not all finite")
    if len(rewards) < 2 or all(r == rewards[0] for r in rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return tuple((r - mean) / (std + advantage_eps) for r in rewards)


def source_group(groups: Mapping[str, Group], source: str, receiver: str, *, advantage_eps: float) -> tuple[float, ...]:
    """Normalised within the source's own group, whoever receives it: GRPO for own data, GRAFT's rule for peer data (4.1)."""
    return normalise(groups[source].rewards, advantage_eps=advantage_eps)
