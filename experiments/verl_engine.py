"""A run's models on verl: one Ray session for all of them. Loaded only for recipes whose engine it is."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from experiments.config import Options
from experiments.engine import Engine, limits, model_path, optimiser_settings
from experiments.errors import UserError
from experiments.run_record import RunRecord

ENTERED = ("layout", "gpus", "tensor_parallel", "tokens_per_gpu", "rows_per_gpu", "gradient_checkpointing")


def require_verl() -> None:
    """UserError where verl, Ray or vLLM is not installed."""
    if missing := [name for name in ("verl", "ray", "vllm") if find_spec(name) is None]:
        raise UserError(
            f"policy verl needs {', '.join(missing)}, not installed here: make setup-gpu, or policy=torch (docs/verl.md)"
        )


def open_verl(record: RunRecord, options: Options) -> Engine:
    """Start Ray, every model's workers and servers. UserError for GPUs that cannot be shared as asked, or without verl."""
    require_verl()
    from graft.policies.verl_policy.policy import VerlPolicy
    from graft.policies.verl_policy.session import Session
    from graft.policies.verl_policy.settings import VerlSettings

    recipe = record.config["recipe"]
    policy, names = recipe["policy"], [m["name"] for m in recipe["models"]]
    paths = {name: model_path(record, name, options.model_paths) for name in names}
    try:
        settings = VerlSettings(
            **limits(recipe),
            **{key: policy[key] for key in ENTERED},
            overrides=tuple(policy["overrides"]),
            device=options.device,
            **options.placement,
        )
        session = Session(names, settings)
    except ValueError as e:
        raise UserError(f"policy: {e}") from e
    common = {"optimiser": optimiser_settings(recipe), "prompt_suffix": recipe["data"]["prompt_suffix"]}
    try:
        policies = {name: VerlPolicy(name, paths[name], session, **common) for name in names}
    except BaseException:
        session.close()
        raise
    return Engine(policies, cache(lambda name: VerlPolicy(name, paths[name], session, samples=False, **common)))
