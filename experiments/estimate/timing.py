"""Seconds of a step: tokens -> FLOPs and bytes -> seconds, phase by phase and model by model.

P, L, Q as in ``shapes``; g: GPUs of a model; tp: tensor parallel; a token attends to half of its sequence on average.

    sampling   prefill of each prompt once: forward FLOPs / (g x peak x sample_share); decoding: per step of a replica's batch the
               weights (c P / tp) and the batch's KV cache are read at bandwidth x bandwidth_share, or its FLOPs take longer, plus
               decode_overhead_ms. Steps of decoding: responses of a replica x mean length / batch, at least the longest response.
    scoring    (2 P + attention) per token of prompt and response: own ones as often as they are scored, and those of the peer
    update     three times that; four times with gradient checkpointing (6 P, 8 P)
    sync       c P bytes into the sampler, and switch_seconds; with offload the trainer's 12 P / g bytes there and back
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from experiments.estimate.memory import GB, Model
from experiments.estimate.setting import Assumptions, Gpu, Load, Placement

PHASES = ("sampling", "scoring", "update", "sync")


@dataclass(frozen=True)
class Cost:
    """One phase of one model in one step. ``tokens`` passed through the model, ``flops`` of all its GPUs, wall ``seconds`` (None: no
    GPU is named)."""

    phase: str
    model: str
    tokens: float
    flops: float
    seconds: float | None


@dataclass(frozen=True)
class RunTime:
    """``step``: wall seconds of one step by phase; ``gpu_hours``: GPUs x steps x seconds of a step / 3600, without validation,
    checkpoints and evaluation (as the paper counts)."""

    step: dict[str, float]
    steps: int
    gpus: int

    @property
    def step_seconds(self) -> float:
        return sum(self.step.values())

    @property
    def hours(self) -> float:
        return self.steps * self.step_seconds / 3600

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours


def costs(model: Model, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> tuple[Cost, ...]:
    """All phases of one model in one step."""
    return tuple(function(model, load, place, facts) for function in (sampling, scoring, update, sync))


def sampling(model: Model, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> Cost:
    """Prefill and decoding of ``responses x sampled_share`` responses."""
    gpu, a = facts
    shape, responses = model.shape, load.responses * a.sampled_share
    prompt_tokens, new_tokens = load.prompts * a.sampled_share * load.prompt_tokens, responses * load.response_tokens
    context = load.prompt_tokens + load.response_tokens / 2
    prefill = shape.forward_flops(prompt_tokens, load.prompt_tokens / 2)
    decode = shape.forward_flops(new_tokens, context)
    total = Cost("sampling", model.name, prompt_tokens + new_tokens, prefill + decode, None)
    if gpu is None:
        return total
    speed = place.share * gpu.bf16 * a.sample_share
    steps = decode_steps(model, load)
    replicas = place.share / place.tensor_parallel
    weights = steps * place.width * shape.parameters / place.tensor_parallel
    cache = new_tokens / replicas * context * model.sampler.kv_bytes_per_token
    reading = (weights + cache) / (gpu.bandwidth * a.bandwidth_share)
    seconds = prefill / speed + max(reading, decode / speed) + steps * a.decode_overhead_ms / 1000
    return Cost("sampling", model.name, total.tokens, total.flops, seconds)


def decode_steps(model: Model, load: Load) -> float:
    """Decoding steps of one replica: its responses x mean length / batch, where the batch is what its KV cache holds of typical
    sequences (at least 1); never fewer than the longest response has tokens."""
    batch = max(1, min(model.sampler.needed, model.sampler.typical))
    return max(load.longest_response, model.sampler.needed * load.response_tokens / batch)


def scoring(model: Model, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> Cost:
    """Forward passes without gradients: own responses ``scored`` times, and the peer's that are offered."""
    gpu, a = facts
    tokens = load.responses * load.typical * (load.scored + (a.transferred_share if load.exchanges else 0.0))
    flops = model.shape.forward_flops(tokens, load.typical / 2)
    seconds = None if gpu is None else flops / (place.share * gpu.bf16 * a.score_share)
    return Cost("scoring", model.name, tokens, flops, seconds)


def update(model: Model, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> Cost:
    """Forward and backward passes over ``responses x trained_share`` sequences."""
    gpu, a = facts
    tokens = load.responses * load.typical * a.trained_share
    flops = (4 if place.checkpointing else 3) * model.shape.forward_flops(tokens, load.typical / 2)
    seconds = None if gpu is None else flops / (place.share * gpu.bf16 * a.train_share)
    return Cost("update", model.name, tokens, flops, seconds)


def sync(model: Model, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> Cost:
    """New weights for the sampler; moving the trainer's state, where it waits on the CPU."""
    gpu, a = facts
    if gpu is None or place.engine == "torch":
        return Cost("sync", model.name, 0.0, 0.0, None if gpu is None else 0.0)
    p = model.shape.parameters
    seconds = place.width * p / (a.sync_gb_per_s * GB) + a.switch_seconds
    if place.offload:
        seconds += 2 * 12 * p / place.share / (a.host_gb_per_s * GB)
    return Cost("sync", model.name, 0.0, 0.0, seconds)


def run_time(found: Iterable[Cost], load: Load, place: Placement, a: Assumptions) -> RunTime | None:
    """Phases of all models as one wall clock: one after another when colocated, the slower one when side by side. None without a GPU."""
    by_phase: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for cost in found:
        if cost.seconds is None:
            return None
        by_phase[cost.phase].append(cost.seconds)
    together = max if place.layout == "side_by_side" else sum
    step = {phase: float(together(seconds)) for phase, seconds in by_phase.items()}
    return RunTime(step | {"verification": a.verify_seconds}, load.steps, place.gpus)
