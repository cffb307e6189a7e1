"""Shapes of decoder models and what follows from them: parameters, bytes of a token's KV cache, FLOPs of a token.

Covers Llama, SmolLM3 and Qwen3 (no biases). P: parameters; L: layers; H: hidden size; I: intermediate size; V: vocabulary;
Q = heads x head size; K = key-value heads x head size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiments.errors import UserError

MODELS = Path(__file__).with_name("models.yaml")
# What a config.json of this type means where it is silent; transformers' own defaults.
TYPES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"tied": False, "qk_norm": False, "head_dim": None},
    "smollm3": {"tied": True, "qk_norm": False, "head_dim": None},
    "qwen3": {"tied": False, "qk_norm": True, "head_dim": 128},
}


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes. ``tied``: the output layer is the embedding. ``qk_norm``: queries and keys have norms of their own."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool

    @property
    def query_width(self) -> int:
        """Q = heads x head size."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """K = key-value heads x head size."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """2 H Q (q, o) + 2 H K (k, v) + 3 H I (gate, up, down) + 2 H (norms) + 2 head sizes (norms of q and k, where there are)."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return 2 * self.hidden * (self.query_width + self.kv_width) + 3 * self.hidden * self.intermediate + norms

    @property
    def embedding_parameters(self) -> int:
        """V H: the embedding, which is the largest tensor."""
        return self.vocabulary * self.hidden

    @property
    def outer_parameters(self) -> int:
        """Parameters outside the layers: embedding, output layer unless tied, last norm."""
        return self.embedding_parameters * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """P = L x layer + outer."""
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: P, without the embedding where the output layer is another matrix."""
        return self.parameters - (0 if self.tied else self.embedding_parameters)

    def kv_bytes(self, tensor_parallel: int = 1, width: int = 2) -> int:
        """Bytes of one token's KV cache on one GPU: 2 (K and V) x L x key-value heads / tensor_parallel (rounded up) x head size x width."""
        heads = -(-self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * width

    def forward_flops(self, tokens: float, context: float) -> float:
        """FLOPs of a forward pass over ``tokens`` tokens that attend to ``context`` tokens on average: (2 P + 4 L Q context) tokens."""
        return tokens * (2 * self.multiplied + 4 * self.layers * self.query_width * context)


@dataclass(frozen=True)
class Known:
    """A shape, where it is from, and whether it was checked against more than one source."""

    shape: Shape
    source: str
    verified: bool


def find_shape(source: str) -> Known:
    """The shape of a model: packaged or local directory by its config.json, hub name by models.yaml. UserError for others."""
    from experiments.tiny import resolve_model_path

    if source in table():
        entry = table()[source]
        return Known(Shape(**entry["shape"]), " ".join(entry["source"].split()), entry["verified"])
    file = Path(resolve_model_path(source)) / "config.json"
    if not file.is_file():
        raise UserError(
            f"the shape of {source} is not known: neither a directory with a config.json nor one of {', '.join(table())}. "
            "Give scale.models.<key>.source=<directory of the model>."
        )
    return Known(from_config(json.loads(file.read_text(encoding="utf-8")), str(file)), f"config.json of {source}", True)


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """models.yaml."""
    return yaml.safe_load(MODELS.read_text(encoding="utf-8"))


def from_config(config: Mapping[str, Any], where: str) -> Shape:
    """The shape in a Hugging Face config.json. UserError for architectures that the formulas do not cover."""
    kind = str(config.get("model_type"))
    if kind not in TYPES or config.get("attention_bias") or config.get("mlp_bias"):
        raise UserError(
            f"{where}: model type {kind!r}{' with biases' if kind in TYPES else ''} is not covered; known: {', '.join(TYPES)}, no biases"
        )
    default = TYPES[kind]
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or default["head_dim"] or hidden // heads,
        vocabulary=config["vocab_size"],
        tied=config.get("tie_word_embeddings", default["tied"]),
        qk_norm=default["qk_norm"],
    )
