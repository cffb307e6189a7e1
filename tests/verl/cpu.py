"""verl on a CPU: the environment and the overrides that the tests give it (tests/verl/plugin is their platform)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from graft.policies.verl_policy.settings import VerlSettings

PLUGIN = Path(__file__).parent / "plugin"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OVERRIDES = (
    f"+{MODEL}.override_config.attn_implementation=sdpa",
    f"{MODEL}.use_remove_padding=false",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    f"{ROLLOUT}.enforce_eager=true",
    f"{ROLLOUT}.max_num_seqs=64",
    # Seeded requests whose prompt is cut rewind their generator, which torch has not for the CPU.
    f"{ROLLOUT}.enable_chunked_prefill=false",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=16",
    f"+{ROLLOUT}.engine_kwargs.vllm.worker_extension_cls=graft_cpu_vllm.CpuWorkerExtension",
)


def environment() -> dict[str, str]:
    """Variables that every process must have before it imports verl or vLLM."""
    path = os.pathsep.join([str(PLUGIN), str(PLUGIN.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "graft_cpu_platform",
        "VERL_ENGINE_DEVICE": "cuda",  # the engines are registered for it; the platform decides where they run
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_DEDUP_LOGS": "0",
    }


def settings(**changes: Any) -> VerlSettings:
    """Two tiny models' settings: float32, one logical GPU, nothing asleep."""
    values = {
        "max_prompt_tokens": 48,
        "max_response_tokens": 24,
        "precision": "float32",
        "gpus": 1,
        "tensor_parallel": 1,
        "tokens_per_gpu": 512,
        "rows_per_gpu": 2,
        "gradient_checkpointing": False,
        "sleep": False,
        "rollout_timeout": 300.0,
        "sync_timeout": 120.0,
        "train_timeout": 300.0,
        "device": "cpu",
        "overrides": OVERRIDES,
    }
    return VerlSettings(**values | changes)


def command_line() -> tuple[str, ...]:
    """The same settings as overrides of a run's configuration."""
    quoted = ",".join(f"'{o}'" for o in OVERRIDES)
    values = {"gpus": 1, "tensor_parallel": 1, "tokens_per_gpu": 1024, "gradient_checkpointing": "false", "sleep": "false"}
    values |= {"rollout_timeout": 300, "sync_timeout": 120, "train_timeout": 300}
    return ("policy=verl", "policy.device=cpu", f"policy.overrides=[{quoted}]", *(f"policy.{k}={v}" for k, v in values.items()))
