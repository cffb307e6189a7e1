"""The paper's setting: the committed configuration is what composes, and every value that the paper states of it holds.

Each row of table 3 and of ``setup_values.csv`` either equals a value of the configuration or is named here with the reason why it is
none; a row that is neither fails.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.config import load_config, resolve
from experiments.engine import loop_settings
from experiments.errors import UserError
from experiments.resolved import steps_of, text
from experiments.run_record import RunRecord

ROOT = Path(__file__).parents[2]
REPORTED = ROOT / "paper_tables" / "reported"
COMMITTED = ROOT / "docs" / "configs" / "graft-pair1-paper-h200x4.yaml"
PAPER = ("method=graft", "pair=1", "scale=paper", "cluster=h200x4")


@cache
def recipe(method: str = "graft") -> dict[str, Any]:
    (plan, *_), _ = resolve([f"method={method}", *PAPER[1:]])
    return dict(plan.recipe)


def training(method: str = "graft") -> Any:
    return loop_settings(RunRecord(Path("unwritten"), {"recipe": recipe(method)}))


def test_the_committed_configuration_is_what_composes():
    assert text(PAPER) == COMMITTED.read_text(encoding="utf-8"), "meant? then: make paper-config, and say why in the commit"
    assert COMMITTED.read_text(encoding="utf-8").startswith(f"# Written by: python -m experiments.resolved {' '.join(PAPER)}\n")


def test_a_changed_value_shows():
    # The one test above would be worth nothing if the text did not follow the values.
    assert text([*PAPER, "method.delta=0.7"]) != text(PAPER)
    shown = yaml.safe_load(text([*PAPER, "method.delta=0.7", "policy.sleep=false"]))
    assert (shown["config"]["method"]["delta"], shown["config"]["policy"]["sleep"]) == (0.7, False)


def test_mistakes_are_user_errors():
    with pytest.raises(UserError, match="nonsense"):
        text([*PAPER, "nonsense=1"])


def rows(name: str) -> dict[str, str]:
    with open(REPORTED / name, encoding="utf-8", newline="") as f:
        return {row["name"]: row["value"] for row in csv.DictReader(f)}


def table_3() -> dict[str, Any]:
    """What the configuration says, by the names of the paper's table 3."""
    t, m = recipe()["training"], recipe()["method"]
    return {
        "training_epochs": t["epochs"],
        "prompt_batch_size": t["prompts_per_step"],
        "rollouts_per_prompt_per_model": m["n"],
        "minibatch_size": training().minibatch_prompts,
        "max_prompt_length": t["max_prompt_tokens"],
        "max_response_length": t["max_response_tokens"],
        "rollout_temperature": t["temperature"],
        "rollout_top_p": t["top_p"],
        "learning_rate": t["learning_rate"],
        "adam_beta1": t["beta1"],
        "adam_beta2": t["beta2"],
        "weight_decay": t["weight_decay"],
        "max_gradient_norm": t["max_grad_norm"],
        "ppo_clip_eps_low": m["clip_low"],
        "ppo_clip_eps_high": m["clip_high"],
        "grpo_advantage_eps": m["advantage_eps"],
        "precision": t["precision"],
    }


# name -> (the only value that the code has, why it is no configuration value)
FIXED_BY_CODE = {
    "optimization_epochs_per_rollout_batch": ("1", "graft.schedule emits every sequence exactly once; tested there"),
    "optimizer": ("AdamW", "policies have one optimiser"),
    "lr_schedule": ("constant", "policies have no schedule"),
    "lr_warmup": ("none", "policies have no schedule"),
    "kl_regularization": ("none", "kl_coef is a hyperparameter of methods with a KL term, which graft is not"),
    "entropy_bonus": ("none", "no loss has one"),
}


def test_table_3():
    reported, mine = rows("table3_hyperparameters.csv"), table_3()
    assert reported.keys() == mine.keys() | FIXED_BY_CODE.keys()
    assert {k: type(v)(reported[k]) for k, v in mine.items()} == mine
    assert {k: reported[k] for k in FIXED_BY_CODE} == {k: v for k, (v, _) in FIXED_BY_CODE.items()}
    assert "kl_coef" not in recipe()["method"]


def setup_values() -> dict[str, Any]:
    """What the configuration says, by the names of ``setup_values.csv``."""
    config = load_config(PAPER)
    evaluation, hacpo = recipe()["evaluation"], recipe("hacpo")["method"]
    items = {f"eval_{b['stands_for']}_problems": b["items"] for b in evaluation["benchmarks"]}
    table_4 = yaml.safe_load((ROOT / "paper_tables" / "specs" / "table4.yaml").read_text(encoding="utf-8"))
    table_9 = yaml.safe_load((ROOT / "paper_tables" / "specs" / "table9.yaml").read_text(encoding="utf-8"))
    assert config.policy.engine == "verl"
    assert config.cluster.joint is not None
    assert config.cluster.joint.gpus == config.policy.gpus
    return items | {
        "train_problems": recipe()["data"]["train"]["items"],
        "graft_delta": recipe()["method"]["delta"],
        "minibatches_per_rollout_batch": training().prompts_per_step // training().minibatch_prompts,
        # 7,500 problems fill 58 batches of 128; 58 a pass, 3 passes: 174
        "steps_full_run": training().steps(recipe()["data"]["train"]["items"]),
        "gpus_per_run": config.policy.gpus,
        "rollout_tensor_parallel": config.policy.tensor_parallel,
        "eval_temperature": evaluation["temperature"],
        "eval_top_p": evaluation["top_p"],
        "eval_samples_per_problem": evaluation["samples"],
        "eval_runs_per_checkpoint": len(evaluation["seeds"]),
        "validation_interval": recipe()["training"]["validation_every"],
        "independent_training_runs_stability": len(table_4["seeds"]),
        "hacpo_clip_delta_low": hacpo["clip_low"],
        "hacpo_clip_delta_high": hacpo["clip_high"],
        "hacpo_peer_clip_lower_bound_initial": hacpo["peer_lower"],
        "hacpo_peer_clip_lower_bound_step_increment": hacpo["peer_lower_step"],
        "hacpo_peer_loss_coef": float(hacpo["peer_alpha"]),
        "hacpo_minibatch_size": training("hacpo").minibatch_prompts,
        "hacpo_kl_coef": hacpo["kl_coef"],
        "sgt_lambda": recipe("sgt")["method"]["nll_weight"],
        "luffy_gamma": recipe("graft_which_luffy_update")["method"]["shaping_gamma"],
        "clip_dynamics_steps_last": table_9["steps"]["paper"],
    }


NO_CONFIGURATION = {
    "graft_delta_selected_on_pair": "how the authors chose delta; all pairs use the one value",
    "vllm_version": "the version of a package, which no configuration chooses; the requirements do",
    "graft_selected_step_smollm3-3b_pair1": "a result of the paper's run",
    "graft_selected_step_qwen3-1.7b_pair1": "a result of the paper's run",
    "graft_joint_gpu_h_at_step_165": "a result of the paper's run",
    "graft_joint_gpu_h_at_step_160": "a result of the paper's run",
    "clip_dynamics_steps_first": "steps are counted from 1, so table 9 starts at the first",
}


def test_setup_values():
    reported, mine = rows("setup_values.csv"), setup_values()
    assert not mine.keys() & NO_CONFIGURATION.keys()
    assert reported.keys() == mine.keys() | NO_CONFIGURATION.keys()
    assert {k: type(v)(reported[k]) for k, v in mine.items()} == mine


def test_other_pairs_and_independent_runs_have_as_many_steps():
    plans = [
        p for pair in "123" for method in ("graft", "grpo") for p in resolve([f"method={method}", f"pair={pair}", *PAPER[2:]])[0]
    ]
    assert {steps_of(p) for p in plans} == {174}
