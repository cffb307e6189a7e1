"""The Ray actor of one GPU of one model: verl's FSDP worker with our entry points. Imported on the workers and the driver.

Every method here runs on all ranks of the model at once; those that gather tensors must.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from graft.losses import MinibatchLoss
from graft.policies.verl_policy.transport import loss_on_worker


class PolicyWorker(ActorRolloutRefWorker):
    """``replica_base``: the number of the model's first sampler; verl counts every model's from 0."""

    def __init__(self, config: Any, role: str, replica_base: int = 0):
        super().__init__(config, role)
        self.replica_base = replica_base

    def start(self) -> None:
        """Load the model; name its sampler by a number that no other model of the job has."""
        self.init_model()
        if self.rollout is not None:
            mine = f"-replica-{self.rollout.replica_rank}-"
            self.rollout.replica_rank += self.replica_base
            self.rollout.zmq_handle = self.rollout.zmq_handle.replace(mine, f"-replica-{self.rollout.replica_rank}-")

    def use_loss(self, loss: MinibatchLoss) -> None:
        """The loss of all further ``train_rows``."""
        self.actor.set_loss_fn(partial(loss_on_worker, loss=loss))

    def score_rows(self, data: Any) -> list[list[float]]:
        """Log-probs of every row's response tokens under the training weights."""
        output = self.actor.infer_batch(data)
        return [row.tolist() for row in response_from_nested(output["log_probs"], data["response_mask"]).unbind()]

    def train_rows(self, data: Any) -> dict[str, Any]:
        """One optimiser step on this rank's rows of a minibatch; the metrics of all ranks. Learning rates are never stepped."""
        return dict(tu.get(self.actor.train_batch(data), "metrics"))

    # ---- state

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Names and (sharded) parameters as the training engine holds them."""
        yield from self.actor.engine.module.named_parameters()

    def save(self, directory: str) -> None:
        """This rank's shards of weights and moments as safetensors."""
        weights = {name: local(p).contiguous() for name, p in self.parameters()}
        save_file(weights, shard(directory, "weights"))
        names = {p: name for name, p in self.parameters()}
        moments = self.actor.engine.optimizer.state.items()
        state = {f"{names[p]}/{k}": local(v).contiguous() for p, s in moments for k, v in s.items()}
        save_file(state, shard(directory, "optimiser"))

    def load(self, directory: str) -> None:
        """Restore what ``save`` wrote with as many GPUs."""
        weights = load_file(shard(directory, "weights"))
        state = load_file(shard(directory, "optimiser"))
        optimiser = self.actor.engine.optimizer
        optimiser.state.clear()
        with torch.no_grad():
            for name, p in self.parameters():
                local(p).copy_(weights[name])
                mine = {k.rpartition("/")[2]: v for k, v in state.items() if k.rpartition("/")[0] == name}
                if mine:
                    optimiser.state[p] = {k: v if k == "step" else like(p, v) for k, v in mine.items()}

    def full(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters, one at a time, on the CPU."""
        for name, p in self.parameters():
            whole = p.detach().to(self.actor.device_name)
            yield name, (whole.full_tensor() if isinstance(whole, DTensor) else whole).cpu()

    def export(self, directory: str, dtype: str) -> None:
        """A Hugging Face model in ``dtype`` (config and weights); rank 0 writes, all gather."""
        first = torch.distributed.get_rank() == 0
        weights = {name: w.to(getattr(torch, dtype)).clone() for name, w in self.full() if first}
        if first:
            with torch.device("meta"):
                skeleton = AutoModelForCausalLM.from_config(self.actor.engine.module.config, dtype=getattr(torch, dtype))
            skeleton.save_pretrained(directory, state_dict=weights)

    def sha256(self) -> str:
        """Hash of names, shapes and bytes of all parameters; that of a torch policy with the same weights."""
        first = torch.distributed.get_rank() == 0
        kept = sorted(
            (name, w) for name, w in self.full() if first
        )  # all gather, one keeps; names differ, so tensors are not compared
        digest = hashlib.sha256()
        for name, w in kept:
            digest.update(f"{name}{tuple(w.shape)}".encode())
            digest.update(w.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def memory(self) -> dict[str, int]:
        """Bytes of this rank's shards, and the peak of the GPU's allocator."""
        moments = self.actor.engine.optimizer.state.values()
        held = {
            "weights": sum(local(p).nbytes for _, p in self.parameters()),
            "optimiser": sum(local(v).nbytes for s in moments for v in s.values()),
        }
        return held | ({"gpu_peak": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {})


def local(tensor: Tensor) -> Tensor:
    """This rank's part, without gradient; the tensor itself where it is not sharded. Shares memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def like(parameter: Tensor, part: Tensor) -> Tensor:
    """A moment with this rank's ``part``, sharded as its parameter is."""
    part = part.to(local(parameter).device)
    if not isinstance(parameter, DTensor):
        return part
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())


def shard(directory: str, what: str) -> Path:
    """``weights.rank-0-of-4.safetensors``."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return Path(directory) / f"{what}.rank-{rank}-of-{world}.safetensors"
