"""What the formulas are given besides shapes: GPU facts, assumptions, and one run's sizes and placement, read from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiments.config import Config, RunPlan
from experiments.errors import UserError
from experiments.resolved import steps_of
from graft.policies.verl_policy.settings import VerlSettings

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Gpu:
    """``memory`` in bytes, ``bf16`` in dense FLOP/s, ``bandwidth`` of its memory in bytes/s."""

    name: str
    memory: float
    bf16: float
    bandwidth: float
    source: str


@dataclass(frozen=True)
class Assumptions:
    """Values, units and reasons are in assumptions.yaml."""

    prompt_tokens: float
    response_tokens: float
    longest_response: float
    train_share: float
    score_share: float
    sample_share: float
    bandwidth_share: float
    decode_overhead_ms: float
    sync_gb_per_s: float
    host_gb_per_s: float
    switch_seconds: float
    verify_seconds: float
    transferred_share: float
    trained_share: float
    sampled_share: float
    logit_bytes_update: float
    logit_bytes_score: float
    process_gb: float
    sampler_workspace_gb: float


@dataclass(frozen=True)
class Load:
    """What a step asks of each model. Lengths in tokens, the means no longer than the limits. ``scored``: passes over own responses
    without gradients (old log-probs, a reference). ``exchanges``: there are peer responses to score."""

    prompts: int
    n: int
    prompt_tokens: float
    response_tokens: float
    longest_response: float
    limit: int
    scored: int
    reference: bool
    exchanges: bool
    steps: int

    @property
    def responses(self) -> int:
        return self.prompts * self.n

    @property
    def typical(self) -> float:
        """Mean length of a whole sequence."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True)
class Placement:
    """How the run's models lie on devices; keys as in policy/verl.yaml. ``share``: GPUs of each model. ``micro_tokens``: most tokens of
    a micro-batch on one GPU. ``width``: bytes of a number in the compute precision. For the torch engine: one device, no sampler of
    its own, ``decode_rows`` responses at a time."""

    engine: str
    layout: str
    gpus: int
    share: int
    tensor_parallel: int
    micro_tokens: int
    checkpointing: bool
    width: int
    memory_utilization: float
    sleep: bool
    offload: bool
    decode_rows: int = 0


@cache
def gpus() -> dict[str, Gpu]:
    """gpus.yaml, by the name that cluster configurations use."""
    return {name: Gpu(name, **facts) for name, facts in yaml.safe_load((HERE / "gpus.yaml").read_text(encoding="utf-8")).items()}


@cache
def assumption_table() -> Mapping[str, Mapping[str, Any]]:
    """assumptions.yaml: name -> value, unit, why."""
    return yaml.safe_load((HERE / "assumptions.yaml").read_text(encoding="utf-8"))


def assumptions(given: Mapping[str, str]) -> Assumptions:
    """The defaults with ``given`` in their place. UserError for unknown names, for what is no number, or not positive."""
    known = [f.name for f in fields(Assumptions)]
    values = {name: float(assumption_table()[name]["value"]) for name in known}
    for name, text in given.items():
        if name not in known:
            raise UserError(f"assume.{name} is not known; known: {', '.join(known)}")
        try:
            values[name] = float(text)
        except ValueError:
            raise UserError(f"assume.{name}={text} is not a number") from None
        least = 0.0 if name in ("transferred_share", "verify_seconds", "switch_seconds", "decode_overhead_ms") else 1e-9
        most = 1.0 if name in ("train_share", "score_share", "sample_share", "bandwidth_share") else float("inf")
        if not least <= values[name] <= most:
            raise UserError(
                f"assume.{name}={text}: give a number {'from 0' if least == 0 else 'above 0'}{' to 1' if most == 1 else ''}"
            )
    return Assumptions(**values)


def gpu_of(config: Config, plan: RunPlan, named: str | None) -> Gpu | None:
    """The GPU that the cluster names for this run, or ``named``; None for an engine on the CPU. UserError where nobody says which."""
    asked = config.cluster.joint if len(plan.recipe["models"]) > 1 else config.cluster.independent
    name = named or (asked.gpu_type if asked else None)
    if name is None:
        if config.policy.device == "cpu":
            return None
        raise UserError(
            f"cluster {config.cluster.name} names no gpu_type, so nobody knows the GPU: use cluster=h200x4, or gpu={'|'.join(gpus())}"
        )
    if name not in gpus():
        raise UserError(
            f"GPU type {name} is not known; known: {', '.join(gpus())}. Its facts are one line in experiments/estimate/gpus.yaml."
        )
    return gpus()[name]


def load_of(config: Config, plan: RunPlan, a: Assumptions) -> Load:
    """Sizes of a step of this run."""
    t = plan.recipe["training"]
    method = config.method.build()
    response = min(a.response_tokens, t["max_response_tokens"])
    return Load(
        prompts=t["prompts_per_step"],
        n=plan.recipe["method"]["n"],
        prompt_tokens=min(a.prompt_tokens, t["max_prompt_tokens"]),
        response_tokens=response,
        longest_response=max(response, min(a.longest_response, t["max_response_tokens"])),
        limit=t["max_prompt_tokens"] + t["max_response_tokens"],
        scored=(t["old_logprobs"] == "recomputed") + method.needs_reference,
        reference=method.needs_reference,
        exchanges=method.joint or method.stored,
        steps=steps_of(plan),
    )


def placement_of(config: Config, plan: RunPlan) -> Placement:
    """Where the run's models lie. UserError where they cannot be placed so."""
    t, p = plan.recipe["training"], config.policy
    limit = t["max_prompt_tokens"] + t["max_response_tokens"]
    width = 2 if t["precision"] == "bfloat16" else 4
    if p.engine == "torch":
        return Placement("torch", "colocated", 1, 1, 1, p.train_rows * limit, False, width, 0.0, False, False, p.decode_rows)
    shared = {k: getattr(p, k) for k in ("layout", "gpus", "tensor_parallel", "tokens_per_gpu", "rows_per_gpu")}
    try:
        settings = VerlSettings(t["max_prompt_tokens"], t["max_response_tokens"], precision=t["precision"], **shared)
        share = settings.gpus_of_a_model(len(plan.recipe["models"]))
    except ValueError as e:
        raise UserError(f"policy: {e}") from e
    micro = p.tokens_per_gpu or p.rows_per_gpu * limit
    rest = {k: getattr(p, k) for k in ("memory_utilization", "sleep", "offload")}
    return Placement("verl", p.layout, p.gpus, share, p.tensor_parallel, micro, p.gradient_checkpointing, width, **rest)


def changed(a: Assumptions) -> dict[str, float]:
    """Assumptions that are not the defaults."""
    return {k: v for k, v in asdict(a).items() if v != float(assumption_table()[k]["value"])}
