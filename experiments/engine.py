"""From a frozen run record to live policies, prompts and settings. Engines are loaded by name inside functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.errors import UserError
from experiments.run_record import RunRecord
from graft.batches import LoopSettings
from graft.composition import Method
from graft.cotrain import Scorer
from graft.methods import build_method
from graft.types import OptimiserSettings, SamplingSettings

if TYPE_CHECKING:
    from experiments.config import Options
    from graft.policies.base import Policy
    from graft.policies.torch_policy import TorchPolicy
    from graft.verifier import Verifier


def set_threads(threads: int) -> None:
    """One torch thread pool of this size; also for tokenizers, whose own pool would compete with it."""
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def devices(options: Options) -> dict[str, str | int]:
    """What this process occupies, for the ledger: the GPUs it sees, or its CPU threads."""
    import torch

    if torch.device(options.device).type == "cuda":
        return {"kind": "gpu", "count": torch.cuda.device_count()}
    return {"kind": "cpu", "count": options.threads}


def memory(policies: Mapping[str, Policy]) -> dict[str, dict[str, int]]:
    """Bytes by model, and the process's own peak under ``process`` (RSS, its verifier not included)."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    return {name: policy.memory() for name, policy in policies.items()} | {"process": {"peak_rss": peak}}


@cache
def shared_verifier() -> Verifier:
    """One verifier per process: its worker takes seconds to import math-verify, and brief runs share a process."""
    from graft.verifier import Verifier

    return Verifier()


def method_of(record: RunRecord) -> Method:
    """The recipe's method with its hyperparameters."""
    section = record.config["recipe"]["method"]
    return build_method(section["name"], {k: v for k, v in section.items() if k not in ("name", "n", "minibatches")})


def loop_settings(record: RunRecord) -> LoopSettings:
    recipe = record.config["recipe"]
    t = recipe["training"]
    return LoopSettings(
        seed=recipe["seed"],
        epochs=t["epochs"],
        prompts_per_step=t["prompts_per_step"],
        minibatch_prompts=t["prompts_per_step"] // own if (own := recipe["method"]["minibatches"]) else t["minibatch_prompts"],
        n=recipe["method"]["n"],
        sampling=SamplingSettings(t["temperature"], t["top_p"], t["max_response_tokens"]),
        max_steps=t["max_steps"],
        old_logprobs=t["old_logprobs"],
        peer_logprobs=t.get("peer_logprobs", "sampler"),
    )


@dataclass(frozen=True)
class Engine:
    """The live models of one run. ``reference``: a model's frozen base policy, loaded when first asked for."""

    policies: Mapping[str, Policy]
    reference: Callable[[str], Scorer]

    def close(self) -> None:
        """Release everything, however far the run came."""
        for policy in self.policies.values():
            policy.close()


def open_engine(record: RunRecord, options: Options) -> Engine:
    """The engine that the recipe names, with base weights."""
    if record.config["recipe"]["policy"]["engine"] == "verl":
        from experiments.verl_engine import open_verl

        return open_verl(record, options)
    reference = cache(lambda name: build_policy(record, name, options.model_paths, options.device))
    return Engine(build_policies(record, options.model_paths, options.device), reference)


def build_policies(record: RunRecord, paths: Mapping[str, str], device: str) -> dict[str, TorchPolicy]:
    """One policy per model of the recipe, with its base weights."""
    return {m["name"]: build_policy(record, m["name"], paths, device) for m in record.config["recipe"]["models"]}


def build_policy(record: RunRecord, name: str, paths: Mapping[str, str], device: str) -> TorchPolicy:
    """The recipe's model ``name``. UserError when a directory's weights are no longer those of the recipe."""
    from graft.policies.torch_policy import TorchPolicy, TorchSettings

    recipe = record.config["recipe"]
    settings = TorchSettings(
        **limits(recipe),
        decode_rows=recipe["policy"]["decode_rows"],
        train_rows=recipe["policy"]["train_rows"],
        device=device,
    )
    suffix = recipe["data"]["prompt_suffix"]
    return TorchPolicy(name, model_path(record, name, paths), settings, optimiser_settings(recipe), prompt_suffix=suffix)


def limits(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What every engine's settings take from the recipe's training section."""
    t = recipe["training"]
    return {
        "max_prompt_tokens": t["max_prompt_tokens"],
        "max_response_tokens": t["max_response_tokens"],
        "temperature": t.get("temperature", 1.0),
        "precision": t["precision"],
    }


def optimiser_settings(recipe: Mapping[str, Any]) -> OptimiserSettings:
    """AdamW as the recipe has it; zeros for a model that is not trained."""
    t = recipe["training"]
    values = (t.get(k, 0.0) for k in ("learning_rate", "beta1", "beta2", "weight_decay"))
    return OptimiserSettings(*values, max_grad_norm=t.get("max_grad_norm", 1.0))


def model_path(record: RunRecord, name: str, paths: Mapping[str, str]) -> Path:
    """Where the recipe's model lies. UserError when a directory's weights are no longer those of the recipe."""
    from experiments.recipe import identity
    from experiments.tiny import resolve_model_path

    model = next(m for m in record.config["recipe"]["models"] if m["name"] == name)
    source = paths.get(name, model["source"])
    if identity(source) != model["source"]:
        raise UserError(f"{source} no longer holds the weights that run {record.path.name} was frozen with ({model['source']})")
    return local_copy(resolve_model_path(source))


def local_copy(source: str) -> Path:
    """A directory as it is; a hub name's snapshot in the cache, fetched if need be. UserError where the hub is not to be had.

    Every reader is given a directory, so that all read the same files (an EOS id may stand in generation_config.json alone).
    """
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as e:
        raise UserError(
            f"model {source} is neither a directory nor in the Hugging Face cache, and the hub did not give it ({e}); fetch it where "
            "there is a network (hf download), or give scale.models.<slot>.source=<directory>"
        ) from e
