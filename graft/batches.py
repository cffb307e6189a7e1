"""Which prompts a step takes, and the sizes of a run. Pure functions of the seed and the step's number: nothing is carried over."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from graft.types import Prompt, SamplingSettings

LogprobSource = Literal["sampler", "recomputed"]


@dataclass(frozen=True)
class LoopSettings:
    """Sizes of one run. A step takes ``prompts_per_step`` prompts; an epoch drops the prompts that do not fill a step.

    ``old_logprobs`` names pi_old of OWN responses: the sampler's log-probs, or the training engine's, recomputed before the first
    update (verl's default). In fp32 on the torch engine the two agree within 1e-5; in bf16, or with another sampler, they do not.
    ``peer_logprobs`` names what counts as a peer's generation log-probs: its sampler's, or those of its own training engine before
    any update of the step (which then serve as ``old_logprobs``, too).
    """

    seed: int
    epochs: int
    prompts_per_step: int
    minibatch_prompts: int
    n: int
    sampling: SamplingSettings
    max_steps: int | None = None
    old_logprobs: LogprobSource = "sampler"
    peer_logprobs: LogprobSource = "sampler"

    def __post_init__(self) -> None:
        for name in ("old_logprobs", "peer_logprobs"):
            if getattr(self, name) not in ("sampler", "recomputed"):
                raise ValueError(f"{name} {getattr(self, name)!r} is not known; use sampler or recomputed")
        if self.peer_logprobs == "recomputed" and self.old_logprobs == "sampler":
            raise ValueError("peer_logprobs=recomputed recomputes every response's log-probs; set old_logprobs=recomputed, too")

    def steps_per_epoch(self, prompts: int) -> int:
        return prompts // self.prompts_per_step

    def steps(self, prompts: int) -> int:
        """Total steps: epochs x full batches, at most ``max_steps``. ValueError when not even one batch fits."""
        total = self.epochs * self.steps_per_epoch(prompts)
        if total == 0:
            raise ValueError(f"{prompts} prompts do not fill one step of {self.prompts_per_step}; lower prompts_per_step")
        return total if self.max_steps is None else min(total, self.max_steps)


def generator(seed: int, stream: str, *numbers: int) -> np.random.Generator:
    """A private generator for (seed, stream, numbers): nothing is carried from step to step, so nothing is lost on restart."""
    words = [seed, *numbers, *stream.encode()]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def batch(prompts: Seq[Prompt], settings: LoopSettings, step: int) -> tuple[Prompt, ...]:
    """The prompts of ``step`` (from 1): consecutive slices of a permutation drawn per epoch from the seed alone."""
    epoch, position = divmod(step - 1, settings.steps_per_epoch(len(prompts)))
    order = generator(settings.seed, "order", epoch).permutation(len(prompts))
    first = position * settings.prompts_per_step
    return tuple(prompts[i] for i in order[first : first + settings.prompts_per_step])


def refill(prompts: Seq[Prompt], settings: LoopSettings, step: int, round_: int) -> tuple[Prompt, ...]:
    """Further prompts for ``step``'s round 2, 3, ...: slices of a permutation drawn per step, without the step's own batch.

    Drawn anew each step, so that a step stays a function of its number and all methods have equally many steps. () when the
    prompts are used up.
    """
    taken = {p.id for p in batch(prompts, settings, step)}
    order = generator(settings.seed, "refill", step).permutation(len(prompts))
    others = [prompts[i] for i in order if prompts[i].id not in taken]
    first = (round_ - 2) * settings.prompts_per_step
    return tuple(others[first : first + settings.prompts_per_step])
