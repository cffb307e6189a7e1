"""verl on a CPU: the environment and the overrides that the tests give it (tests/verl/plugin is their platform)."""

from __future__ import annotations

import os
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OVERRIDES = (
    f"+{MODEL}.override_config.attn_implementation=sdpa",
    f"{MODEL}.use_remove_padding=false",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    f"{ROLLOUT}.enforce_eager=true",
    f"{ROLLOUT}.max_num_seqs=64",
    f"{ROLLOUT}.max_num_batched_tokens=1024",
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
