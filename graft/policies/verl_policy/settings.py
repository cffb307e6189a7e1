"""What a verl policy is told. Frozen, checked on construction, free of verl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["colocated", "side_by_side"]


@dataclass(frozen=True)
class VerlSettings:
    """Limits, precision and placement of one run's models.

    ``gpus`` of one node are shared by all models of the run: ``colocated`` puts every model on all of them, one phase after
    another; ``side_by_side`` gives each its own equal share. A model's data-parallel size is the number of its GPUs;
    ``tensor_parallel`` of them together sample one response. ``tokens_per_gpu`` bounds a micro-batch in tokens (prompt and
    response), ``rows_per_gpu`` instead in rows; neither changes a result beyond float rounding.

    ``sleep``: the sampler gives its memory back while models train. ``offload``: weights and optimiser wait on the CPU while
    nothing trains. Timeouts are seconds: of one call to ``generate``, of bringing weights to the sampler, of one training call.
    ``overrides`` are further Hydra overrides of verl's own configuration, last and unchecked.
    """

    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float = 1.0
    precision: str = "bfloat16"
    gpus: int = 4
    layout: Layout = "colocated"
    tensor_parallel: int = 2
    tokens_per_gpu: int | None = 32768
    rows_per_gpu: int = 8
    gradient_checkpointing: bool = True
    memory_utilization: float = 0.4
    sleep: bool = True
    offload: bool = False
    rollout_timeout: float = 3600
    sync_timeout: float = 300
    train_timeout: float = 3600
    device: str = "cuda"
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision {self.precision!r} is not known; use float32 or bfloat16")
        if self.tokens_per_gpu is not None and self.tokens_per_gpu < self.longest:
            raise ValueError(
                f"tokens_per_gpu={self.tokens_per_gpu} holds no sequence of {self.longest} tokens, prompt and response at their limits"
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_prompt_tokens + self.max_response_tokens

    def gpus_of_a_model(self, models: int) -> int:
        """GPUs of each of ``models`` models. ValueError when the GPUs cannot be shared so."""
        if self.layout == "side_by_side" and self.gpus % models:
            raise ValueError(f"{self.gpus} GPUs cannot be shared evenly by {models} models; use layout colocated or other gpus")
        share = self.gpus // models if self.layout == "side_by_side" else self.gpus
        if share % self.tensor_parallel:
            raise ValueError(f"tensor_parallel={self.tensor_parallel} does not divide a model's {share} GPUs evenly")
        return share
