"""Whose turn the GPUs' memory is, among models that share them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal, Protocol

Phase = Literal["sampling", "training"]


class Sleeper(Protocol):
    """A model as the turns see it. ``stale``: its sampler's weights are older than its own."""

    name: str
    stale: bool

    def sleep(self) -> None: ...
    def bring_weights(self) -> None: ...


class Turns:
    """Before a phase everyone who shares the GPUs puts the sampler to sleep, and one who samples wakes with fresh weights.

    Waking is bringing weights: verl frees a sleeping sampler's weights, so that nothing may be sampled between sleep and sync.
    Without ``sleep`` every sampler keeps its memory, and only stale weights are brought. ``shared``: all models are on all GPUs.
    """

    def __init__(self, *, sleep: bool, shared: bool):
        self.sleep, self.shared = sleep, shared
        self.awake: set[str] = set()

    def enter(self, policy: Sleeper, phase: Phase, everyone: Seq[Sleeper]) -> None:
        """Give ``policy`` the memory of its GPUs for a phase."""
        if self.sleep:
            for other in everyone if self.shared else (policy,):
                if other.name in self.awake and (phase == "training" or other is not policy):
                    other.sleep()
                    self.awake.discard(other.name)
        if phase == "sampling" and (policy.stale or (self.sleep and policy.name not in self.awake)):
            if self.sleep and policy.name in self.awake:  # new weights go to a sampler that sleeps
                policy.sleep()
            policy.bring_weights()
            self.awake.add(policy.name)
