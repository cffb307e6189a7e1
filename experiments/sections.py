"""The sections of a configuration as frozen types: unknown keys and impossible values are errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from experiments.errors import UserError
from graft.composition import Method
from graft.methods import build_method


class Frozen(BaseModel):
    """Unknown keys are errors; a value is set once."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodSection(BaseModel):
    """``name``, ``n``, ``minibatches`` and the method's own hyperparameters, which graft.methods checks (unknown ones are errors).

    ``minibatches``: own minibatches per step; null means the scale's ``minibatch_prompts``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    n: int = Field(default=8, ge=2)
    minibatches: int | None = Field(default=None, ge=1)

    def build(self) -> Method:
        try:
            return build_method(self.name, {k: float(v) for k, v in (self.model_extra or {}).items()})
        except (TypeError, ValueError) as e:
            raise UserError(f"method: {e}") from e


class PairSection(Frozen):
    name: str
    models: tuple[str, ...] = Field(min_length=2)

    @field_validator("models")
    @classmethod
    def _distinct(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({m for m in models if models.count(m) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} twice; a model cannot be its own peer, give the copy another name")
        return models


class ModelSection(Frozen):
    stands_for: str
    name: str
    source: str


class TrainingSection(Frozen):
    """Sizes, optimiser and selection; units are prompts, tokens and steps."""

    epochs: int = Field(ge=1)
    max_steps: int | None = Field(ge=1)
    prompts_per_step: int = Field(ge=1)
    minibatch_prompts: int = Field(ge=1)
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    max_prompt_tokens: int = Field(ge=1)
    max_response_tokens: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    precision: Literal["float32", "bfloat16"]
    old_logprobs: Literal["sampler", "recomputed"]
    peer_logprobs: Literal["sampler", "recomputed"]
    validation_every: int = Field(ge=1)
    validation_samples: int = Field(ge=1)
    selection: Literal["best", "held_out", "last"]

    @model_validator(mode="after")
    def _logprobs(self) -> TrainingSection:
        if self.peer_logprobs == "recomputed" and self.old_logprobs == "sampler":
            raise ValueError("peer_logprobs=recomputed recomputes every response's log-probs; set old_logprobs=recomputed, too")
        return self


class EvaluationSection(Frozen):
    """``max_items``: evenly spaced items of every benchmark instead of all (for smoke runs; it shows in the recipe's ``items``)."""

    seeds: tuple[int, ...] = Field(min_length=1)
    samples: int = Field(ge=1)
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    max_items: int | None = Field(default=None, ge=1)

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"{list(seeds)} repeats a seed; two evaluation runs with one seed are one run")
        return seeds


class ScaleSection(Frozen):
    name: str
    models: Mapping[str, ModelSection]
    training: TrainingSection
    evaluation: EvaluationSection

    @property
    def slots(self) -> dict[str, ModelSection]:
        """Checkpoints by the paper's slug."""
        return {m.stands_for: m for m in self.models.values()}


class BenchmarkSection(Frozen):
    name: str
    source: str
    stands_for: str


class DataSection(Frozen):
    """Prompt sets by name. ``root``, ``golds`` and ``pins`` concern the sets that are read from files (docs/data.md)."""

    train: str
    validation: str | None
    benchmarks: tuple[BenchmarkSection, ...] = Field(min_length=1)
    prompt_suffix: str
    root: str | None
    golds: Literal["paper", "corrected"]
    pins: Literal["strict", "warn", "off"]

    @field_validator("golds", "pins")
    @classmethod
    def _has_a_reader(cls, value: str, info: Any) -> str:
        from experiments.tasks.files import ITEMS

        given = info.data
        sources = {given.get("train"), given.get("validation"), *(b.source for b in given.get("benchmarks", ()))}
        if value not in ("paper", "strict") and not sources & ITEMS.keys():
            raise ValueError(
                "would change nothing: all sets of this data group are generated, their golds and contents are exact"
            )
        return value


class TorchSection(Frozen):
    """graft.policies.torch_policy: one process, one device."""

    engine: Literal["torch"]
    decode_rows: int = Field(ge=1)
    train_rows: int = Field(ge=1)
    device: str

    def recipe(self) -> dict[str, Any]:
        """What enters the fingerprint: all that can change a bit of the result."""
        return self.model_dump(include={"engine", "decode_rows", "train_rows"})

    def placement(self) -> dict[str, Any]:
        """What beside the device is chosen for an attempt and decides no result."""
        return {}


class VerlSection(Frozen):
    """graft.policies.verl_policy: see graft.policies.verl_policy.settings.VerlSettings for the keys (docs/verl.md)."""

    RECIPE: ClassVar[tuple[str, ...]] = (
        "engine",
        "layout",
        "gpus",
        "tensor_parallel",
        "tokens_per_gpu",
        "rows_per_gpu",
        "gradient_checkpointing",
        "overrides",
    )
    engine: Literal["verl"]
    layout: Literal["colocated", "side_by_side"]
    gpus: int = Field(ge=1)
    tensor_parallel: int = Field(ge=1)
    tokens_per_gpu: int | None = Field(ge=1)
    rows_per_gpu: int = Field(ge=1)
    gradient_checkpointing: bool
    overrides: tuple[str, ...]
    memory_utilization: float = Field(gt=0, lt=1)
    sleep: bool
    offload: bool
    rollout_timeout: float = Field(gt=0)
    sync_timeout: float = Field(gt=0)
    train_timeout: float = Field(gt=0)
    device: Literal["cuda", "cpu"]

    def recipe(self) -> dict[str, Any]:
        """What enters the fingerprint: how rows are spread decides the order of sums. Memory and timeouts decide nothing."""
        from experiments.lm_eval_tasks import VERSION

        # lm-eval samples the evaluation; which version is no choice of the user's but decides its rows.
        return self.model_dump(mode="json", include=set(self.RECIPE)) | {"lm_eval": VERSION}

    def placement(self) -> dict[str, Any]:
        """What beside the device is chosen for an attempt and decides no result."""
        return self.model_dump(mode="json", exclude={*self.RECIPE, "device"})


PolicySection = Annotated[TorchSection | VerlSection, Field(discriminator="engine")]
