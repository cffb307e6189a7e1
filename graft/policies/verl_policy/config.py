"""Our settings as verl's configuration. All that verl is told stands here."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from graft.policies.verl_policy.settings import VerlSettings
from graft.types import OptimiserSettings

DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def verl_values(path: Path, settings: VerlSettings, optimiser: OptimiserSettings, world: int) -> dict[str, Any]:
    """What deviates from verl's defaults for one model on ``world`` GPUs.

    Weights and moments stay in float32; ``precision`` is that of forward and backward passes and of the sampler. The optimiser has
    no schedule: the learning rate is constant (paper, table 3).
    """
    dynamic, budget = settings.tokens_per_gpu is not None, settings.tokens_per_gpu or settings.longest
    dtype = DTYPES[settings.precision]
    fsdp = {
        "strategy": "fsdp2",
        "model_dtype": "fp32",
        "dtype": settings.precision,
        "mixed_precision": {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        "param_offload": settings.offload,
        "optimizer_offload": settings.offload,
    }
    optim = {
        "lr": optimiser.learning_rate,
        "betas": [optimiser.beta1, optimiser.beta2],
        "weight_decay": optimiser.weight_decay,
        "clip_grad": optimiser.max_grad_norm,
        "lr_warmup_steps": 0,
        "lr_scheduler_type": "constant",
        "override_optimizer_config": {"eps": optimiser.eps},
    }
    actor = {
        "strategy": "fsdp2",
        "fsdp_config": fsdp,
        "optim": optim,
        "grad_clip": optimiser.max_grad_norm,
        "use_dynamic_bsz": dynamic,
        "ppo_max_token_len_per_gpu": budget,
        "ppo_micro_batch_size_per_gpu": settings.rows_per_gpu,
    }
    rollout = {
        "name": "vllm",
        "tensor_model_parallel_size": settings.tensor_parallel,
        "dtype": settings.precision,
        "gpu_memory_utilization": settings.memory_utilization,
        "free_cache_engine": settings.sleep,
        "enable_sleep_mode": settings.sleep,
        "load_format": "auto",
        "max_model_len": settings.longest,
        "log_prob_max_token_len_per_gpu": budget,
        "log_prob_micro_batch_size_per_gpu": settings.rows_per_gpu,
        "checkpoint_engine": {"backend": "naive"},
    }
    model = {"path": str(path), "enable_gradient_checkpointing": settings.gradient_checkpointing}
    return {
        "data": {"max_prompt_length": settings.max_prompt_tokens, "max_response_length": settings.max_response_tokens},
        "trainer": {"n_gpus_per_node": world, "nnodes": 1, "device": settings.device},
        "actor_rollout_ref": {"model": model, "actor": actor, "rollout": rollout},
    }


def verl_config(values: dict[str, Any], overrides: Seq[str]) -> Any:
    """verl's composed configuration with ``values`` and, last, ``overrides`` (``key=value``; ``+key=value`` for a new key).

    ValueError for an override of a key that verl does not have.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    instance = GlobalHydra.instance()
    outer, instance.hydra = instance.hydra, None  # there is one Hydra per process, and a run may have been started by its own
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config: Any = compose("ppo_trainer")
    finally:
        GlobalHydra.instance().hydra = outer  # composing replaced the instance
    OmegaConf.set_struct(config, False)
    config = OmegaConf.merge(config, values)
    for override in overrides:
        key, _, _ = override.partition("=")
        missing = object()
        if not key.startswith("+") and OmegaConf.select(config, key, default=missing) is missing:
            raise ValueError(f"policy.overrides: verl's configuration has no key {key}; write +{key}=... to add one")
        config = OmegaConf.merge(config, OmegaConf.from_dotlist([override.removeprefix("+")]))
    OmegaConf.resolve(config)
    return config
