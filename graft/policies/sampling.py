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


def sample_seed(key: StepKey, prompt_id: str, index: int) -> int:
    """The 64-bit seed of one response; stored with evaluation rows."""
    text = f"{key.seed}|{key.stream}|{key.step}|{key.extra}|{prompt_id}|{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(key: StepKey, prompts: Seq[Prompt], n: int, tokens: int) -> np.ndarray:
    """[len(prompts) * n, tokens] uniforms in [0, 1), one Philox stream per response."""
    seeds = [sample_seed(key, p.id, i) for p in prompts for i in range(n)]
    return np.stack([np.random.Generator(np.random.Philox(s)).random(tokens) for s in seeds])


def draw(logits: Tensor, u: Tensor, sampling: SamplingSettings) -> tuple[Tensor, Tensor]:
    """One token per row from logits [B, V] and uniforms [B]; returns (ids [B], log-probs [B]).

    Log-probs are those of softmax(logits / temperature) over the FULL vocabulary, which is what ``score`` returns; top-p only
    restricts what can be drawn (smallest set of most probable tokens whose mass reaches top_p, as in nucleus sampling).
    """
    logp = torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
    p = logp.exp()
    if sampling.top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        outside = ranked.cumsum(-1) - ranked >= sampling.top_p
        p = p.masked_fill(torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, outside), 0.0)
    cdf = p.cumsum(-1, dtype=torch.float64)
    # Scaling u by the total mass absorbs rounding and top-p's removed mass; a token of probability 0 can never be hit.
    ids = torch.searchsorted(cdf, (u * cdf[:, -1])[:, None], right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
    return ids, logp.gather(-1, ids[:, None]).squeeze(-1)
