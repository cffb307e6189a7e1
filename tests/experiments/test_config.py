"""Configs: every YAML composes, unknown keys and impossible values are errors, every field reaches the fingerprint."""

from __future__ import annotations

import re

import pytest

from experiments.compose import CONF
from experiments.config import load_config, resolve
from experiments.errors import UserError
from experiments.run_record import fingerprint


def only(*overrides):
    plans, _ = resolve(overrides)
    assert len(plans) == 1
    return plans[0]


def choices():
    for group in ("method", "pair", "scale", "data", "policy", "cluster"):
        for file in sorted((CONF / group).glob("*.yaml")):
            if file.stem != "base" or group == "method":
                yield f"{group}={file.stem}"


@pytest.mark.parametrize("choice", choices())
def test_every_yaml_composes(choice):
    plans, _ = resolve([choice])
    assert plans
    assert all(p.deviations == {} for p in plans)


def test_joint_method_is_one_run_and_independent_one_per_model():
    assert only("method=graft").cell["models"] == ["tiny-smollm3", "tiny-qwen3"]
    plans, _ = resolve(["method=grpo", "pair=1"])
    assert [p.cell["models"] for p in plans] == [["tiny-smollm3"], ["tiny-qwen3"]]
    assert all(p.cell["pair"] is None for p in plans)


def test_a_group_is_a_pair_of_any_size():
    plan = only("method=graft", "group=all")
    assert plan.cell["models"] == ["tiny-smollm3", "tiny-qwen3", "tiny-llama"]
    assert plan.recipe == only("method=graft", "pair=all").recipe
    assert plan.name.startswith("graft-all-cpu-s0-")
    assert len(resolve(["method=grpo", "group=all"])[0]) == 3


@pytest.mark.parametrize(("scale", "method", "prompts"), [("cpu", "grpo", 8), ("cpu", "hacpo", 16), ("paper", "hacpo", 64)])
def test_minibatch_prompts_of_a_step(scale, method, prompts, tmp_path):
    from experiments.engine import loop_settings
    from experiments.run_record import RunRecord

    # Table 3: 32 of 128 prompts for GRPO and GRAFT (8 of 32 here); appendix B: 64 of 128 for HACPO.
    overrides = [f"method={method}", f"scale={scale}", "data=arithmetic"]
    plan = resolve(overrides)[0][0]
    record = RunRecord.create(tmp_path, cell=plan.cell, recipe=plan.recipe, deviations={})
    assert loop_settings(record).minibatch_prompts == prompts


def test_independent_run_is_shared_by_the_pairs_that_need_it():
    first = {p.name for p in resolve(["method=grpo", "pair=1"])[0]}
    second = {p.name for p in resolve(["method=grpo", "pair=2"])[0]}
    assert len(first & second) == 1  # qwen3 is in both pairs


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("method.n=1", "method.n"),
        ("method.delta=-0.1", "delta"),
        ("+method.gamma=1", "gamma"),
        ("+nonsense=1", "nonsense"),
        ("scale.training.epochs=0", "epochs"),
        ("+scale.training.lr=1", "scale.training.lr"),
        ("nonsense=1", "nonsense"),
        ("pair=9", "pair"),
        ("pair.models=[qwen3-1.7b,qwen3-1.7b]", "twice"),
        ("pair.models=[qwen3-1.7b,unheard]", "unheard"),
        ("scale.models.qwen3.name=tiny-smollm3", "one model name"),
        ("data.train=unheard-set", "unheard-set"),
        ("model=tiny-qwen3", "model="),
        ("seed=-1", "seed"),
        ("scale.evaluation.seeds=[1,1]", "repeats a seed"),
        ("scale.training.precision=float8", "precision"),
        ("experiment=a/b", "experiment"),
    ],
)
def test_mistakes_are_user_errors_that_name_the_key(override, says):
    with pytest.raises(UserError, match=says):
        resolve([override])


# Every scientific field: a changed value changes the fingerprint. Together with METHODS' rule that a hyperparameter must have a
# reader, no knob is dead.
CHANGES = {
    "method.n": 4,
    "method.delta": 0.7,
    "method.clip_low": 0.1,
    "method.clip_high": 0.3,
    "method.advantage_eps": 1e-4,
    "scale.training.epochs": 2,
    "scale.training.max_steps": 7,
    "scale.training.prompts_per_step": 16,
    "scale.training.minibatch_prompts": 4,
    "scale.training.temperature": 0.9,
    "scale.training.top_p": 0.9,
    "scale.training.max_prompt_tokens": 63,
    "scale.training.max_response_tokens": 40,
    "scale.training.learning_rate": 1e-3,
    "scale.training.beta1": 0.8,
    "scale.training.beta2": 0.9,
    "scale.training.weight_decay": 0.1,
    "scale.training.max_grad_norm": 0.5,
    "scale.training.precision": "bfloat16",
    "scale.training.old_logprobs": "recomputed",
    "scale.training.validation_every": 4,
    "scale.training.validation_samples": 3,
    "scale.training.selection": "held_out",
    "scale.evaluation.seeds": "[7]",
    "scale.evaluation.samples": 4,
    "scale.evaluation.temperature": 0.7,
    "scale.evaluation.top_p": 0.9,
    "policy.decode_rows": 64,
    "policy.train_rows": 32,
    "data.train": "arith-validation",
    "data.prompt_suffix": "x",
    "seed": 1,
}


@pytest.mark.parametrize(("key", "value"), CHANGES.items())
def test_every_scientific_field_changes_the_fingerprint(key, value):
    plain, changed = only("scale=cpu"), only("scale=cpu", f"{key}={value}")
    assert fingerprint(plain.recipe) != fingerprint(changed.recipe)
    assert bool(changed.deviations) == (key != "seed")  # the seed is part of the cell, everything else sets the run apart


VERL = {
    "policy.layout": "side_by_side",
    "policy.gpus": 2,
    "policy.tensor_parallel": 1,
    "policy.tokens_per_gpu": 512,
    "policy.rows_per_gpu": 4,
    "policy.gradient_checkpointing": "false",
    "policy.overrides": "['actor_rollout_ref.rollout.max_num_seqs=8']",
}


@pytest.mark.parametrize(("key", "value"), VERL.items())
def test_every_key_that_can_change_a_verl_runs_numbers_changes_its_fingerprint(key, value):
    plain, changed = only("scale=cpu", "policy=verl"), only("scale=cpu", "policy=verl", f"{key}={value}")
    assert fingerprint(plain.recipe) != fingerprint(changed.recipe)


@pytest.mark.parametrize("key", ["memory_utilization=0.3", "sleep=false", "offload=true", "rollout_timeout=9", "sync_timeout=9"])
def test_memory_and_timeouts_stay_out_of_a_verl_runs_fingerprint(key):
    assert only("scale=cpu", "policy=verl").name == only("scale=cpu", "policy=verl", f"policy.{key}").name


def test_peer_logprobs_change_the_fingerprint_only_where_they_are_not_the_default():
    """Runs from before there was a choice are those of the default, and are found again."""
    recomputed = "scale.training.old_logprobs=recomputed"
    plain = only("scale=cpu", recomputed)
    assert only("scale=cpu", recomputed, "scale.training.peer_logprobs=sampler").name == plain.name
    assert only("scale=cpu", recomputed, "scale.training.peer_logprobs=recomputed").name != plain.name
    assert "peer_logprobs" not in plain.recipe["training"]


@pytest.mark.parametrize(
    "override", ["logger=wandb", "checkpoint_every=3", "resume=never", "runs_root=/tmp/x", "cluster.threads=2", "experiment=e"]
)
def test_what_only_changes_execution_stays_out_of_the_fingerprint(override):
    assert only().name == only(override).name


def test_values_with_commas_equal_signs_and_braces_survive():
    from experiments.compose import override

    for text in ("a,b", "a=b", "{a}", "it's", "é ü", "a b"):
        assert only(override("data.prompt_suffix", text)).recipe["data"]["prompt_suffix"] == text


def test_where_the_data_lie_is_no_deviation(tmp_path):
    plain, _ = resolve(["method=grpo", "pair=1"])
    rooted, options = resolve(["method=grpo", "pair=1", f"data.root={tmp_path}", "scale.training.epochs=2"])
    assert [p.deviations for p in plain] == [{}, {}]
    assert [p.deviations for p in rooted] == [{"training.epochs": 2}, {"training.epochs": 2}]
    assert options.data_root == str(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["cluster.joint.gpus=2"], "cluster.joint asks for 2 GPUs, policy.gpus takes 4"),
        (["method=grpo", "cluster.independent.gpus=2"], "cluster.independent asks for 2 GPUs, policy.gpus takes 4"),
        (["cluster.evaluation.gpus=1"], "cluster.evaluation asks for 1 GPUs, policy.tensor_parallel takes 2"),
        (["scale.training.top_p=0.9"], "log-probs at top_p=0.9 are not those of training"),
        (["scale.training.old_logprobs=sampler", "scale.training.peer_logprobs=recomputed"], "set old_logprobs=recomputed, too"),
        (["policy.tokens_per_gpu=0"], "policy.tokens_per_gpu: Input should be"),
        (["policy.tokens_per_gpu=1000"], "tokens_per_gpu=1000 holds no sequence of 6144 tokens"),
        (["policy.gpus=3"], "tensor_parallel=2 does not divide a model's 3 GPUs evenly"),
        (["policy.layout=side_by_side", "group=all"], "4 GPUs cannot be shared evenly by 3 models"),
        (["policy.decode_rows=4"], "decode_rows"),
    ],
)
def test_what_a_verl_run_cannot_be(overrides, says):
    with pytest.raises(UserError, match=re.escape(says)) as error:
        load_config(["scale=paper", "cluster=h200x4", *overrides])
    assert len(str(error.value)) < 400  # a rule about several keys does not print the whole configuration


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=grpo", "group=all", "policy.layout=side_by_side"],  # one model a run: nobody is beside it
        ["method=grpo", "cluster.joint.gpus=1"],  # a joint run's job is not asked for
        ["method=base", "cluster.joint.gpus=1", "cluster.independent.gpus=1"],  # samples on tensor_parallel GPUs
    ],
)
def test_what_a_verl_run_does_not_use_is_not_held_against_it(overrides):
    assert load_config(["scale=paper", "cluster=h200x4", *overrides]).policy.engine == "verl"


def test_every_key_of_the_verl_policy_is_in_the_recipe_or_among_the_options():
    """And each one arrives: none is read from the YAML and then dropped."""
    from dataclasses import fields

    from graft.policies.verl_policy.settings import VerlSettings

    section = load_config(["scale=paper"]).policy
    kept = {**section.recipe(), **section.placement(), "device": section.device}
    assert {k: v for k, v in kept.items() if k != "lm_eval"} == section.model_dump(mode="json")
    of_the_scale = {"max_prompt_tokens", "max_response_tokens", "temperature", "precision"}
    assert {f.name for f in fields(VerlSettings)} - of_the_scale == set(kept) - {"engine", "lm_eval"}


def test_a_hub_name_becomes_the_snapshot_of_the_cache(tmp_path, monkeypatch):
    """A cache as the hub's own library lays it out; offline, so nothing is asked."""
    from huggingface_hub import constants

    from experiments.engine import local_copy

    folder = tmp_path / "models--owner--name"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_copy("owner/name") == snapshot
    assert local_copy(str(snapshot)) == snapshot
    with pytest.raises(UserError, match="model owner/other is neither a directory nor in the Hugging Face cache"):
        local_copy("owner/other")
