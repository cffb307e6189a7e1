"""The Policy protocol: all that the loop asks of an engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Protocol

from graft.losses import MinibatchLoss
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, Prompt, SamplingSettings, StepKey

TokenPair = tuple[tuple[int, ...], tuple[int, ...]]


class Policy(Protocol):
    """One trainable model with its sampler.

    ``generate``: unverified rollout groups in prompt order; a sample depends on (key, prompt id, index) and the weights, not on
    what else is in the batch. ``score``: log-probs [T] of response ids after prompt ids, under the current weights and the
    training temperature. ``update``: exactly one optimiser step on the whole minibatch. ``sync``: new weights to the sampler.
    ``sampler_apart``: the sampler is another program than the trainer, so that their log-probs may differ beyond rounding.
    ``save`` and ``load``: all that a resumed run needs; ``save_weights``: what the evaluation of this engine reads.
    ``memory``: bytes by what holds them (weights, optimiser, and on a GPU the peak of its allocator, all models on it together).
    """

    name: str

    @property
    def codec(self) -> TextCodec: ...
    @property
    def max_response_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def sampler_apart(self) -> bool: ...
    def generate(self, prompts: Seq[Prompt], *, n: int, key: StepKey, sampling: SamplingSettings) -> tuple[Group, ...]: ...
    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]: ...
    def update(self, minibatch: Minibatch, loss: MinibatchLoss) -> dict[str, float]: ...
    def sync(self) -> None: ...
    def save(self, directory: Path) -> None: ...
    def load(self, directory: Path) -> None: ...
    def save_weights(self, directory: Path) -> None: ...
    def weights_sha256(self) -> str: ...
    def export(self, directory: Path) -> None: ...
    def memory(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class FromSettings:
    """What every engine's policy says of itself from its ``settings`` and its codec."""

    settings: Any
    _codec: TextCodec

    @property
    def codec(self) -> TextCodec:
        return self._codec

    @property
    def max_response_tokens(self) -> int:
        return int(self.settings.max_response_tokens)

    @property
    def temperature(self) -> float:
        return float(self.settings.temperature)


class PolicyLimitError(ValueError):
    """A prompt or response does not fit the model; the message says which and by how much."""


class EngineFailure(RuntimeError):
    """A machine's failure and not the run's: a worker died, a call got stuck, memory ran out. The last checkpoint is intact."""


def render(codec: TextCodec, prompt: Prompt, limit: int, model: str) -> tuple[int, ...]:
    """The prompt's ids for ``model``; PolicyLimitError over ``limit``."""
    ids = codec.render(prompt)
    if len(ids) > limit:
        raise PolicyLimitError(
            f"prompt {prompt.id!r} is {len(ids)} tokens for {model}, over max_prompt_tokens={limit}; "
            "raise the limit or drop the item (prompts are never cut)"
        )
    return ids
