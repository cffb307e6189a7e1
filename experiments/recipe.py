"""A validated configuration -> the recipe of each of its runs: all that decides their results, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.donors import Donor
from experiments.errors import UserError
from experiments.tasks import describe_prompt_set

if TYPE_CHECKING:
    from experiments.config import Config


def chosen_models(config: Config) -> tuple[str, ...]:
    """Slots of the pair, or the one that ``model`` names. UserError for slots without a checkpoint at this scale."""
    missing = [m for m in config.pair.models if m not in config.scale.slots]
    if missing:
        known = ", ".join(config.scale.slots)
        raise UserError(f"pair {config.pair.name}: scale {config.scale.name} has no model {', '.join(missing)}; it has {known}")
    names = {m: config.scale.slots[m].name for m in config.pair.models}
    if len(set(names.values())) < len(names):
        raise UserError(f"pair {config.pair.name}: two slots use one model name ({', '.join(names.values())}); give each its own")
    if config.model is None:
        return config.pair.models
    slots = tuple(slot for slot, name in names.items() if config.model in (slot, name))
    if not slots:
        raise UserError(
            f"model={config.model} is not in pair {config.pair.name}, which has {', '.join([*names, *names.values()])}"
        )
    return slots


def recipes(config: Config, donors: Mapping[str, Donor]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(cell, recipe) of each run. ``donors``: of each receiver of a method with a stored peer; it has no other receivers."""
    slots = chosen_models(config)
    if config.method.name == "base":
        return [_recipe(config, (slot,), joint=False) for slot in slots]
    method = config.method.build()
    own, prompts = config.method.minibatches, config.scale.training.prompts_per_step
    if own and prompts % own:
        raise UserError(f"method.minibatches={own} does not divide scale.training.prompts_per_step={prompts} evenly")
    if method.joint and config.model is not None:
        raise UserError(
            f"method {method.name} trains its models in one run; model= selects one model of an independent method only"
        )
    if method.stored:
        return [_with_donor(config, slot, donor) for slot, donor in donors.items()]
    groups = [slots] if method.joint else [(slot,) for slot in slots]
    return [_recipe(config, group, joint=method.joint) for group in groups]


def _with_donor(config: Config, slot: str, donor: Donor) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run of one model, which belongs to its pair because its peer does."""
    cell, recipe = _recipe(config, (slot,), joint=False)
    return cell | {"pair": config.pair.name}, recipe | {"donor": donor.section()}


def _recipe(config: Config, slots: tuple[str, ...], *, joint: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    models = [
        {"name": config.scale.slots[s].name, "stands_for": s, "source": identity(config.scale.slots[s].source)} for s in slots
    ]
    base = config.method.name == "base"
    files = (config.data.root, config.data.golds, config.data.pins)
    benchmarks = [
        {"name": b.name, "stands_for": b.stands_for} | describe_prompt_set(b.source, *files) for b in config.data.benchmarks
    ]
    if (most := config.scale.evaluation.max_items) is not None:
        benchmarks = [b | {"items": min(b["items"], most)} for b in benchmarks]
    training = config.scale.training.model_dump()
    if base:  # nothing of the training enters the recipe of an untouched model, so it is one run whatever trains beside it
        training = {k: training[k] for k in ("max_prompt_tokens", "max_response_tokens", "precision")}
    if training.get("peer_logprobs") == "sampler":  # so that recipes from before there was a choice stay what they are
        del training["peer_logprobs"]
    recipe: dict[str, Any] = {
        "method": {"name": "base"} if base else config.method.model_dump(),
        "models": models,
        "training": training,
        "policy": config.policy.recipe(),
        "data": {"prompt_suffix": config.data.prompt_suffix},
        "evaluation": config.scale.evaluation.model_dump(mode="json", exclude={"max_items"}) | {"benchmarks": benchmarks},
        "seed": 0 if base else config.seed,
    }
    if not base:
        recipe["data"]["train"] = describe_prompt_set(config.data.train, *files)
        if config.scale.training.selection == "held_out":
            if config.data.validation is None:
                raise UserError(
                    "selection=held_out needs data.validation, a prompt set that no benchmark contains; this data group has none"
                )
            recipe["data"]["validation"] = describe_prompt_set(config.data.validation, *files)
    cell = {
        "method": config.method.name,
        "pair": config.pair.name if joint else None,
        "models": [m["name"] for m in models],
        "scale": config.scale.name,
        "seed": recipe["seed"],
    }
    return cell, recipe


def identity(source: str) -> str:
    """What a model IS, for the fingerprint: a package or hub name as it stands, a local directory by its weights' hash."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return source
    files = sorted(path.glob("*.safetensors"))
    return f"sha256:{_digest(tuple((f, s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()]))}"


@lru_cache(maxsize=16)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    """SHA-256 over the files' bytes; size and time of change are in the key, so that a sweep reads them once."""
    digest = hashlib.sha256()
    for file, _, _ in files:
        with open(file, "rb") as f:
            while block := f.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
