"""Drawing tokens: counter-based random numbers and inverse-CDF sampling.

A response's random numbers are a function of (seed, stream, step, prompt id, sample index) alone, so a batch may be cut, ordered
or resumed in any way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from graft.types import Prompt, SamplingSettings, StepKey

CANDIDATES = 64


def sample_seed(key: StepKey, prompt_id: str, index: int) -> int:
    """The 64-bit seed of one response; stored with evaluation rows."""
    text = f"{key.seed}|{key.stream}|{key.step}|{key.extra}|{prompt_id}|{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(key: StepKey, prompts: Seq[Prompt], n: int, tokens: int) -> np.ndarray:
    """[len(prompts) * n, tokens] uniforms in [0, 1), one Philox stream per response."""
    seeds = [sample_seed(key, p.id, i) for p in prompts for i in range(n)]
    return np.stack([np.random.Generator(np.random.Philox(s)).random(tokens) for s in seeds])


def draw(logits: Tensor, u: Tensor, sampling: SamplingSettings, owner: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One token per row from logits [N, V] and uniforms [B]; returns (ids [B], log-probs [B]).

    Row b draws from ``logits[owner[b]]`` (default: its own, N = B), so a distribution that rows share is computed once. Log-probs
    are those of softmax(logits / temperature) over the FULL vocabulary, which is what ``score`` returns; top-p only restricts what
    can be drawn (smallest set of most probable tokens whose mass reaches top_p, as in nucleus sampling).
    """
    owner = torch.arange(len(logits), device=logits.device) if owner is None else owner
    logp = torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
    p = logp.exp()
    if sampling.top_p < 1:
        p = p.masked_fill(_outside_nucleus(p, sampling.top_p), 0.0)
    cdf = p.cumsum(-1, dtype=torch.float64)
    # Scaling u by the total mass absorbs rounding and top-p's removed mass; a token of probability 0 can never be hit.
    ids = torch.searchsorted(cdf[owner], (u * cdf[owner, -1])[:, None], right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
    return ids, logp[owner, ids]


def _outside_nucleus(p: Tensor, top_p: float) -> Tensor:
    """[N, V] bool: what a full stable sort would leave out, from a sort of a few candidates.

    The candidates of every row must hold its nucleus with certainty: the tokens strictly more probable than the last candidate are
    all among them, so their mass must reach ``top_p``; otherwise more candidates are taken, in the end all.
    """
    count = min(CANDIDATES, p.shape[-1])
    while True:
        values, order = p.topk(count, dim=-1)
        certain = torch.where(values > values[:, -1:], values, 0.0).sum(-1)
        if count == p.shape[-1] or bool((certain > top_p).all()):
            break
        count = min(8 * count, p.shape[-1])
    order, place = order.sort(dim=-1)  # topk leaves the order of equal values open; here the lower id comes first
    values, again = values.gather(-1, place).sort(dim=-1, descending=True, stable=True)
    inside = values.cumsum(-1) - values < top_p
    return torch.ones_like(p, dtype=torch.bool).scatter(-1, order.gather(-1, again), ~inside)
