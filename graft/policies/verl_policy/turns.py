"""Whose turn the GPUs' memory is, among models that share them."""

from __future__ import annotations

from typing import Literal, Protocol

Phase = Literal["sampling", "training"]


class Sleeper(Protocol):
    """A model as the turns see it. ``stale``: its sampler's weights are older than its own."""

    stale: bool

    def sleep(self) -> None: ...
    def bring_weights(self) -> None: ...


class Turns:
    """Before a phase everyone who shares the GPUs puts the sampler to sleep, and one who samples wakes with fresh weights.

    Waking is bringing weights: verl frees a sleeping sampler's weights, so that nothing may be sampled between sleep and sync.
    Without ``sleep`` every sampler keeps its memory, and only stale weights are brought. ``shared``: all models are on all GPUs. Models
    begin asleep, and are told apart by identity: a frozen copy has the name of its model.
    """

    def __init__(self, *, sleep: bool, shared: bool):
        self.sleep, self.shared = sleep, shared
        self.awake: list[Sleeper] = []

    def enter(self, policy: Sleeper, phase: Phase) -> None:
        """Give ``policy`` the memory of its GPUs for a phase."""
        if self.sleep:
            for other in [m for m in self.awake if m is policy or self.shared]:
                if phase == "training" or other is not policy or policy.stale:  # new weights go to a sampler that sleeps
                    other.sleep()
                    self.awake.remove(other)
        if phase == "sampling" and (policy.stale or (self.sleep and policy not in self.awake)):
            policy.bring_weights()
            if self.sleep:
                self.awake.append(policy)
