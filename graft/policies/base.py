"""The Policy protocol: all that the loop asks of an engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Protocol

from graft.losses import MinibatchLoss
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, Prompt, SamplingSettings, StepKey

TokenPair = tuple[tuple[int, ...], tuple[int, ...]]


class Policy(Protocol):
    """One trainable model with its sampler.

    ``generate``: unverified rollout groups in prompt order; a sample depends on (key, prompt id, index) and the weights, not on
    what else is in the batch. ``score``: log-probs [T] of response ids after prompt ids, under the current weights and the
    training temperature. ``update``: exactly one optimiser step on the whole minibatch. ``sync``: new weights to the sampler.
    ``memory``: bytes by what holds them (weights, optimiser, and on a GPU the peak of its allocator, all models on it together).
    """

    name: str

    @property
    def codec(self) -> TextCodec: ...
    @property
    def max_response_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    def generate(self, prompts: Seq[Prompt], *, n: int, key: StepKey, sampling: SamplingSettings) -> tuple[Group, ...]: ...
    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]: ...
    def update(self, minibatch: Minibatch, loss: MinibatchLoss) -> dict[str, float]: ...
    def sync(self) -> None: ...
    def save(self, directory: Path) -> None: ...
    def load(self, directory: Path) -> None: ...
    def export(self, directory: Path) -> None: ...
    def memory(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class PolicyLimitError(ValueError):
    """A prompt or response does not fit the model; the message says which and by how much."""
