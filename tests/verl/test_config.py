"""Our settings in verl's own configuration (real verl, no Ray)."""

from __future__ import annotations

from pathlib import Path

import pytest

from graft.policies.verl_policy.config import verl_config, verl_values
from graft.policies.verl_policy.settings import VerlSettings
from graft.types import OptimiserSettings

pytestmark = pytest.mark.verl
PAPER = OptimiserSettings(learning_rate=1e-6, beta1=0.9, beta2=0.999, weight_decay=0.01, max_grad_norm=1.0)


def values(**changes) -> dict:
    return verl_values(Path("/models/a b='c'"), VerlSettings(2048, 4096, **changes), PAPER, 4)


def test_what_verl_is_told() -> None:
    config = verl_config(values(tensor_parallel=2, offload=True), ())
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "/models/a b='c'"  # a path is a value and never parsed
    assert (actor.strategy, actor.fsdp_config.strategy, actor.fsdp_config.model_dtype) == ("fsdp2", "fsdp2", "fp32")
    assert dict(actor.fsdp_config.mixed_precision) == {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    assert (actor.optim.lr, list(actor.optim.betas), actor.optim.weight_decay) == (1e-6, [0.9, 0.999], 0.01)
    assert (actor.optim.clip_grad, actor.optim.lr_scheduler_type, actor.optim.override_optimizer_config.eps) == (
        1.0,
        "constant",
        1e-8,
    )
    assert (actor.fsdp_config.param_offload, actor.fsdp_config.optimizer_offload) == (True, True)
    assert (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu) == (True, 32768)
    assert (rollout.tensor_model_parallel_size, rollout.dtype, rollout.max_model_len) == (2, "bfloat16", 6144)
    assert (rollout.free_cache_engine, rollout.enable_sleep_mode, rollout.response_length) == (True, True, 4096)
    assert rollout.logprobs_mode == "processed_logprobs"  # verl's default: log-probs at the sampling temperature


def test_rows_instead_of_tokens() -> None:
    config = verl_config(values(tokens_per_gpu=None, rows_per_gpu=3), ())
    actor = config.actor_rollout_ref.actor
    assert (actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu) == (False, 3)


def test_overrides_come_last_and_unknown_keys_are_errors() -> None:
    config = verl_config(
        values(), ("actor_rollout_ref.rollout.max_num_seqs=7", "+actor_rollout_ref.rollout.engine_kwargs.vllm.x=y")
    )
    assert config.actor_rollout_ref.rollout.max_num_seqs == 7
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.x == "y"
    with pytest.raises(ValueError, match=r"no key actor_rollout_ref\.rollout\.max_num_seq;"):
        verl_config(values(), ("actor_rollout_ref.rollout.max_num_seq=7",))


def test_it_composes_beside_a_hydra_that_is_open(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    (tmp_path / "mine.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(tmp_path), version_base=None):
        verl_config(values(), ())
        assert compose("mine").a == 1
