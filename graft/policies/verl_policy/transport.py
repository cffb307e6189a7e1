"""Rows on their way to the training workers and back: one TensorDict per data-parallel rank.

Written against verl 0.9.1's engine: jagged ``input_ids``, ``position_ids``, ``prompts``, ``responses``, ``response_mask`` and
``loss_mask`` are what it reads; every further field reaches the loss as it was sent, cut into the same micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from graft.aggregation import Totals
from graft.losses import LossInputs, MinibatchLoss
from graft.policies.base import TokenPair
from graft.policies.verl_policy.settings import VerlSettings
from graft.types import Minibatch, Sequence

# Filler for a rank that has too few rows: a real token pair, so that every forward pass is an ordinary one, and no loss of it.
FILLER: TokenPair = ((0,), (0,))


def spread(lengths: Seq[int], ranks: int, multiple: int) -> list[list[int | None]]:
    """Row numbers of each rank, equally many, a multiple of ``multiple`` and at least one; None is filler.

    Longest first to the rank with the fewest tokens that still has room, so that ranks wait little for each other.
    """
    per_rank = max(1, -(-len(lengths) // (ranks * multiple))) * multiple
    rows: list[list[int | None]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min((r for r in range(ranks) if len(rows[r]) < per_rank), key=lambda r: (tokens[r], r))
        rows[rank].append(i)
        tokens[rank] += lengths[i]
    return [[*mine, *[None] * (per_rank - len(mine))] for mine in rows]


def jagged(rows: Seq[Seq[float]], dtype: torch.dtype) -> Tensor:
    """Nested tensor of rows of different lengths."""
    return torch.nested.as_nested_tensor([torch.tensor(list(row), dtype=dtype) for row in rows], layout=torch.jagged)


def token_fields(pairs: Seq[TokenPair], *, counts: Seq[bool]) -> dict[str, Tensor]:
    """What the engine reads of (prompt ids, response ids) pairs; ``counts`` is False for filler, whose mask is 0."""
    masks = [[int(real)] * len(response) for (_, response), real in zip(pairs, counts, strict=True)]
    mask = jagged(masks, torch.int64)
    return {
        "input_ids": jagged([p + r for p, r in pairs], torch.int64),
        "position_ids": jagged([range(len(p) + len(r)) for p, r in pairs], torch.int64),
        "prompts": jagged([p for p, _ in pairs], torch.int64),
        "responses": jagged([r for _, r in pairs], torch.int64),
        "response_mask": mask,
        "loss_mask": mask.clone(),
    }


def engine_values(settings: VerlSettings) -> dict[str, Any]:
    """How the engine is to compute a batch: cut into micro-batches by tokens or by rows, at the training temperature."""
    return {
        "temperature": settings.temperature,
        "use_dynamic_bsz": settings.tokens_per_gpu is not None,
        "max_token_len_per_gpu": settings.tokens_per_gpu or settings.longest,
        "micro_batch_size_per_gpu": settings.rows_per_gpu,
    }


def scoring_batch(pairs: Seq[TokenPair | None], settings: VerlSettings) -> Any:
    """One rank's TensorDict for log-probs without a loss; None is filler."""
    from verl.utils import tensordict_utils as tu

    fields = token_fields([p or FILLER for p in pairs], counts=[p is not None for p in pairs])
    return tu.get_tensordict(fields, engine_values(settings) | {"compute_loss": False, "calculate_entropy": False})


def training_batch(rows: Seq[Sequence | None], minibatch: Minibatch, loss: MinibatchLoss, settings: VerlSettings) -> Any:
    """One rank's TensorDict of a minibatch; None is filler. The denominators are the whole minibatch's, whatever is sent."""
    from verl.utils import tensordict_utils as tu

    pairs = [FILLER if s is None else (s.prompt_ids, s.response_ids) for s in rows]
    fields = token_fields(pairs, counts=[s is not None for s in rows])
    fields |= {
        "advantages": torch.tensor([0.0 if s is None else s.advantage for s in rows]),
        "weights": torch.tensor([0.0 if s is None else s.weight for s in rows]),
        "is_peer": torch.tensor([s is not None and s.is_peer for s in rows]),
        "source_mean": torch.tensor([0.0 if s is None else s.source_mean_logprob for s in rows]),
        "unanimous": torch.tensor([0 if s is None else s.unanimous for s in rows]),
        "old_logprobs": jagged([(0.0,) if s is None else s.old_logprobs for s in rows], torch.float32),
    }
    if any(s is not None and s.ref_logprobs for s in minibatch.sequences):
        given = [(0.0,) if s is None else s.ref_logprobs or (0.0,) * len(s.response_ids) for s in rows]
        fields["ref_logprobs"] = jagged(given, torch.float32)
    return tu.get_tensordict(
        fields,
        engine_values(settings)
        | {
            "calculate_entropy": loss.needs_entropies,
            "minibatch_index": minibatch.index,
            "totals": list(astuple(Totals.of(minibatch))),
            "global_token_num": [len(p) + len(r) for p, r in pairs],
        },
    )


def loss_on_worker(
    model_output: Mapping[str, Tensor], data: Any, dp_group: object = None, *, loss: MinibatchLoss
) -> tuple[Tensor, dict[str, float]]:
    """verl's loss signature around OUR loss: (scalar to differentiate, metric sums of this micro-batch).

    FSDP averages gradients over the data-parallel ranks and the totals are those of the whole minibatch, hence the factor.
    """
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    logprobs = no_padding_2_padding(model_output["log_probs"], data)

    def padded(name: str) -> Tensor:
        """[B,T] of a jagged field, zeros behind each row."""
        return torch.nested.to_padded_tensor(data[name], 0.0, output_size=tuple(logprobs.shape))

    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=padded("old_logprobs"),
        mask=padded("response_mask").float(),
        advantages=data["advantages"],
        weights=data["weights"],
        is_peer=data["is_peer"],
        source_mean=data["source_mean"],
        minibatch_index=tu.get(data, "minibatch_index"),
        unanimous=data["unanimous"],
        ref_logprobs=padded("ref_logprobs") if "ref_logprobs" in data.keys() else None,
        entropies=no_padding_2_padding(model_output["entropy"], data).detach() if loss.needs_entropies else None,
    )
    value, metrics = loss(inputs, Totals(*tu.get(data, "totals")))
    return value * tu.get(data, "dp_size"), {name: float(x) for name, x in metrics.items()}


def summed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of all ranks and micro-batches added up, by name; what is no number of our loss is left out."""

    def total(value: Any) -> float:
        """Sum over nested lists."""
        return sum(map(total, value)) if isinstance(value, list | tuple) else float(value)

    return {name: total(value) for name, value in metrics.items() if isinstance(value, list | tuple)}
