"""What a selected prompt hands over, and what happens to the receiver's own group.

A transfer has the signature ``(own, peer, rng, **hyperparameters) -> Transferred``: the receiver's and the source's rollout
group of one selected prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.types import Group


@dataclass(frozen=True, slots=True)
class Transferred:
    """``keep_own``: whether the receiver's own group stays in its batch. ``indices``: which peer responses are offered."""

    keep_own: bool
    indices: tuple[int, ...]


class Transfer(Protocol):
    """The signature above."""

    __name__: str

    def __call__(self, own: Group, peer: Group, rng: np.random.Generator) -> Transferred: ...


def nothing(own: Group, peer: Group, rng: np.random.Generator) -> Transferred:
    """No peer data."""
    return Transferred(True, ())


def replace_group(own: Group, peer: Group, rng: np.random.Generator) -> Transferred:
    """GRAFT (4.1): the whole peer group, successes and failures, takes the place of the receiver's failed group."""
    return Transferred(False, tuple(range(len(peer.responses))))


def add_group(own: Group, peer: Group, rng: np.random.Generator) -> Transferred:
    """The peer group joins the receiver's own, which stays (pooled groups, HACPO, naive sharing)."""
    return Transferred(True, tuple(range(len(peer.responses))))


def _successes(group: Group) -> tuple[int, ...]:
    return tuple(i for i, r in enumerate(group.rewards) if r > 0)


def replace_by_successes(own: Group, peer: Group, rng: np.random.Generator) -> Transferred:
    """Only the peer's successes take the place of the receiver's failed group; its failures count nowhere (appendix G)."""
    return Transferred(False, _successes(peer))


def add_one_success(own: Group, peer: Group, rng: np.random.Generator) -> Transferred:
    """One success, drawn uniformly, joins the receiver's own group (SGT). Nothing where the peer has none."""
    successes = _successes(peer)
    return Transferred(True, (successes[int(rng.integers(len(successes)))],) if successes else ())
