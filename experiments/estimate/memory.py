"""Bytes on one GPU: the pieces of each model, the phases of a step that they make up, and the peak.

P, L, H, I, V, Q, K as in ``shapes``; g: GPUs of a model (its data-parallel size, over which FSDP2 shards); tp: tensor parallel; c: bytes
of a number in the compute precision (2 for bf16); T: tokens of a micro-batch on one GPU. Master weights, gradients and AdamW's moments
are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.estimate.setting import Assumptions, Gpu, Load, Placement
from experiments.estimate.shapes import Shape

GB = 1e9
# name -> formula; the order is that of the printed table
FORMULAS = {
    "weights": "4 P / g (float32, sharded)",
    "gradients": "4 P / g (float32, sharded)",
    "moments": "8 P / g (AdamW m and v, float32, sharded)",
    "reference": "4 P / g (frozen float32 weights, for a KL term)",
    "gathered": "c (outer + 2 layers): all-gathered weights of embedding and output, this layer and the next",
    "gradient buffers": "(c + 4) x max(outer, layer): gradients before they are reduced and sharded",
    "activations": "T (c L H + layer) with checkpointing, T L layer without; layer = c (8 H + 3 Q + 3 K + 4 I)",
    "logits": "logit_bytes_update x T V",
    "scoring activations": "T layer: no gradients, one layer alive",
    "scoring logits": "logit_bytes_score x T V",
    "sampler": "memory_utilization x memory of the GPU (torch engine: KV cache of decode_rows responses)",
    "sampler weights": "c P / tp (within the sampler)",
    "sync buffer": "(c + 4) V H: the largest tensor, gathered and converted",
    "processes": "2 x process_gb: one process trains, one samples (torch engine: none)",
}


@dataclass(frozen=True)
class Sampler:
    """What fits into one sampler. Bytes are of one GPU; counts are responses at the same time per replica of tp GPUs. ``needed``:
    responses of a step per replica."""

    kv_bytes_per_token: int
    kv_bytes: float
    full: int
    typical: int
    needed: float


@dataclass(frozen=True)
class Model:
    """One model's pieces on one GPU, in bytes, by the names of FORMULAS."""

    name: str
    shape: Shape
    pieces: Mapping[str, float]
    sampler: Sampler


@dataclass(frozen=True)
class Phase:
    """One phase of a step on one GPU. ``parts``: (model, piece) -> bytes that are held during it."""

    kind: str
    model: str
    parts: Mapping[tuple[str, str], float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def layer_bytes(shape: Shape, width: int) -> int:
    """Bytes that one layer keeps of one token for its backward pass, with fused attention: 2 (norm inputs and outputs, and their
    float32 copies: 8 H), queries, keys, values before and after rotation and the attention's output (3 Q + 3 K), gate, up, activated
    gate and product (4 I), each of ``width`` bytes."""
    return width * (8 * shape.hidden + 3 * shape.query_width + 3 * shape.kv_width + 4 * shape.intermediate)


def model_memory(name: str, shape: Shape, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> Model:
    """All pieces of one model. ``facts``: the GPU (None: not known, samplers then have no size) and the assumptions."""
    gpu, a = facts
    p, g, c, tokens = shape.parameters, place.share, place.width, place.micro_tokens
    layer, verl = layer_bytes(shape, c), place.engine == "verl"
    sampler = sampler_memory(shape, load, place, facts)
    kept = c * shape.layers * shape.hidden + layer if place.checkpointing else shape.layers * layer
    allotted = place.memory_utilization * (gpu.memory if gpu else 0.0) if verl else sampler.kv_bytes
    pieces = {
        "weights": 4 * p / g,
        "gradients": 4 * p / g,
        "moments": 8 * p / g,
        "reference": 4 * p / g if load.reference else 0.0,
        # Unsharded, only autocast copies weights, and only into another precision.
        "gathered": float(c * (shape.outer_parameters + 2 * shape.layer_parameters) if verl else (c * p if c != 4 else 0)),
        "gradient buffers": float((c + 4) * max(shape.outer_parameters, shape.layer_parameters) if verl else 0),
        "activations": float(tokens * kept),
        "logits": a.logit_bytes_update * tokens * shape.vocabulary,
        "scoring activations": float(tokens * layer),
        "scoring logits": a.logit_bytes_score * tokens * shape.vocabulary,
        "sampler": allotted,
        "sampler weights": c * p / place.tensor_parallel if verl else 0.0,
        "sync buffer": float((c + 4) * shape.embedding_parameters if verl else 0),
        "processes": 2 * a.process_gb * GB if verl else 0.0,
    }
    assert pieces.keys() == FORMULAS.keys()
    return Model(name, shape, pieces, sampler)


def sampler_memory(shape: Shape, load: Load, place: Placement, facts: tuple[Gpu | None, Assumptions]) -> Sampler:
    """KV cache of one GPU: memory_utilization x memory - c P / tp - workspace; sequences: that / (bytes of a token x length)."""
    gpu, a = facts
    token = shape.kv_bytes(place.tensor_parallel, place.width)
    if place.engine == "torch":
        rows = min(place.decode_rows, load.responses)
        return Sampler(token, float(token * rows * load.limit), rows, rows, load.responses)
    memory = gpu.memory if gpu else 0.0
    weights = place.width * shape.parameters / place.tensor_parallel
    kv = max(0.0, place.memory_utilization * memory - weights - a.sampler_workspace_gb * GB)
    replicas = place.share / place.tensor_parallel
    full, typical = int(kv // (token * load.limit)), int(kv // (token * load.typical))
    return Sampler(token, kv, full, typical, load.responses * a.sampled_share / replicas)


def phases(models: tuple[Model, ...], place: Placement) -> tuple[Phase, ...]:
    """Every phase of a step as one GPU sees it. Side by side, a GPU holds one model only."""
    found = []
    for model in models:
        others = () if place.layout == "side_by_side" else tuple(m for m in models if m is not model)
        for kind, own in own_parts(place).items():
            parts = {(model.name, piece): model.pieces[piece] for piece in own}
            parts |= {(o.name, piece): o.pieces[piece] for o in others for piece in waiting_parts(place)}
            found.append(Phase(kind, model.name, {k: v for k, v in parts.items() if v}))
    return tuple(found)


def waiting_parts(place: Placement) -> tuple[str, ...]:
    """What a model holds while another one has the phase."""
    trainer = () if place.offload else ("weights", "moments", "reference")
    return (*trainer, *(() if place.sleep or place.engine == "torch" else ("sampler",)), "processes")


def own_parts(place: Placement) -> dict[str, tuple[str, ...]]:
    """What a model holds in each of its own phases. Gradients are freed after the update; moments come back for it only."""
    awake = () if place.sleep or place.engine == "torch" else ("sampler",)
    moments, reference = (() if place.offload else ("moments",)), (() if place.offload else ("reference",))
    resident = () if place.offload else ("weights", *moments, *reference)
    update = ("weights", "gradients", "moments", *reference, "gathered", "gradient buffers", "activations", "logits", *awake)
    own = {
        "sample": (*resident, "sampler"),
        "score": ("weights", *moments, "reference", "gathered", "scoring activations", "scoring logits", *awake),
        "update": update,
        "sync": ("weights", *moments, *reference, "sync buffer", *(awake or ("sampler weights",))),
    }
    return {kind: (*parts, "processes") for kind, parts in own.items() if kind != "sync" or place.engine == "verl"}


def peak(found: tuple[Phase, ...]) -> Phase:
    """The phase that holds most."""
    return max(found, key=lambda phase: phase.total)
