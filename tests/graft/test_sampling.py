"""Drawing tokens: counter-based streams, inverse CDF, independence of the batch, EOS."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from graft.policies.base import PolicyLimitError
from graft.policies.sampling import _outside_nucleus, draw, sample_seed, uniforms
from graft.policies.torch_policy import TorchPolicy
from graft.types import Prompt, SamplingSettings, StepKey
from tests.graft import tiny

KEY = StepKey(0, "train/a", 1)
FULL = SamplingSettings(1.0, 1.0, tiny.LIMIT)
KINDS = pytest.mark.parametrize("kind", tiny.KINDS)


@KINDS
def test_samples_do_not_depend_on_the_batch(frozen: TorchPolicy) -> None:
    prompts = tiny.prompts(6)
    whole = frozen.generate(prompts, n=4, key=KEY, sampling=FULL)
    ends = {len(r.ids) for g in whole for r in g.responses}
    assert len(ends) > 4
    assert min(ends) < tiny.LIMIT
    ids = {g.prompt.id: [r.ids for r in g.responses] for g in whole}
    for part in (prompts[3:4], prompts[::-1], prompts[1:4]):
        got = frozen.generate(part, n=4, key=KEY, sampling=FULL)
        assert [g.prompt.id for g in got] == [p.id for p in part]
        assert all([r.ids for r in g.responses] == ids[g.prompt.id] for g in got)
    fewer = frozen.generate(prompts, n=2, key=KEY, sampling=FULL)
    assert all([r.ids for r in g.responses] == ids[g.prompt.id][:2] for g in fewer)


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_samples_do_not_depend_on_decode_rows(tiny_dirs: dict[str, Path], quick: TorchPolicy, rows: int) -> None:
    other = tiny.policy(tiny_dirs["quick"], decode_rows=rows)
    want, got = (p.generate(tiny.prompts(5), n=4, key=KEY, sampling=FULL) for p in (quick, other))
    assert [r.ids for g in got for r in g.responses] == [r.ids for g in want for r in g.responses]


def test_a_lower_limit_only_cuts(quick: TorchPolicy) -> None:
    whole = quick.generate(tiny.prompts(4), n=4, key=KEY, sampling=FULL)
    short = quick.generate(tiny.prompts(4), n=4, key=KEY, sampling=replace(FULL, max_response_tokens=6))
    assert [r.ids for g in short for r in g.responses] == [r.ids[:6] for g in whole for r in g.responses]


@KINDS
def test_eos_is_kept_exactly_where_it_was_sampled(frozen: TorchPolicy) -> None:
    responses = [r for g in frozen.generate(tiny.prompts(6), n=8, key=KEY, sampling=FULL) for r in g.responses]
    assert {r.finish_reason for r in responses} == {"eos", "length"}
    for r in responses:
        assert (r.ids[-1] == frozen.codec.eos_id) == (r.finish_reason == "eos")
        assert frozen.codec.eos_id not in r.ids[:-1]
        assert 1 <= len(r.ids) <= tiny.LIMIT
        assert r.finish_reason == "eos" or len(r.ids) == tiny.LIMIT
        assert r.text == frozen.codec.decode(r.ids[:-1] if r.finish_reason == "eos" else r.ids)


def test_over_long_prompts_are_refused_by_name(quick: TorchPolicy) -> None:
    with pytest.raises(PolicyLimitError, match=r"prompt 'big' is .* over max_prompt_tokens=64"):
        quick.generate([Prompt("big", "x" * 80, "1")], n=1, key=KEY, sampling=FULL)


def test_streams_are_distinct_and_extend() -> None:
    parts = itertools.product((0, 1), ("train/a", "train/b"), (1, 11), ((), (1,)))
    keys = [StepKey(*part) for part in parts]
    seeds = [sample_seed(k, q, i) for k in keys for q in ("p1", "p11") for i in (0, 1, 11)]
    assert len(set(seeds)) == len(seeds) == 96
    u = uniforms(KEY, tiny.prompts(2), 2, 8)
    assert u.shape == (4, 8)
    assert len(np.unique(u)) == 32
    assert u.min() >= 0
    assert u.max() < 1
    assert np.array_equal(u[:, :3], uniforms(KEY, tiny.prompts(2), 2, 3))
    # A change of the scheme would silently change every run. From `printf '0|train/a|1|()|p0|0' | b2sum -l 64`, little endian.
    assert sample_seed(StepKey(0, "train/a", 1), "p0", 0) == int.from_bytes(bytes.fromhex("e64766e219cb7bdf"), "little")


def test_draws_follow_the_softmax() -> None:
    # Expected counts of 20000 draws; chi-square over 8 tokens (7 degrees of freedom) stays under 24.3 (p = 0.001).
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 1.5, -2.0, 0.2])
    u = torch.from_numpy(np.random.default_rng(1).random(20000))
    for temperature in (1.0, 0.6):
        ids, logps = draw(logits.expand(20000, 8), u, SamplingSettings(temperature, 1.0, 1))
        expected = torch.softmax(logits / temperature, -1).double() * 20000
        seen = torch.bincount(ids, minlength=8).double()
        assert float(((seen - expected) ** 2 / expected).sum()) < 24.3
        assert torch.allclose(logps, torch.log_softmax(logits / temperature, -1)[ids])


def test_top_p_keeps_the_smallest_set_and_full_logprobs() -> None:
    # p = .5, .3, .15, .05: top_p .7 needs two tokens, .8 reached exactly needs no third; renormalised .625/.375.
    p = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=torch.float64)
    u = torch.from_numpy(np.random.default_rng(2).random(20000))
    ids, logps = draw(p.log().expand(20000, 4), u, SamplingSettings(1.0, 0.7, 1))
    seen = torch.bincount(ids, minlength=4).double() / 20000
    assert seen[[0, 2]].tolist() == [0.0, 0.0]
    assert float(seen[1]) == pytest.approx(0.625, abs=0.015)
    assert torch.allclose(logps.double(), p.log()[ids], atol=1e-6)
    assert set(draw(p.log().expand(20000, 4), u, SamplingSettings(1.0, 0.9, 1))[0].tolist()) == {1, 2, 3}
    assert set(draw(p.log().expand(20000, 4), u, SamplingSettings(1.0, 0.01, 1))[0].tolist()) == {1}


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_the_ends_of_the_unit_interval_never_hit_a_token_of_probability_zero(top_p: float) -> None:
    logits = torch.tensor([[-math.inf, 1.0, 0.3, -0.2, -math.inf]]).expand(2, 5)
    ids, logps = draw(logits, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64), SamplingSettings(1.0, top_p, 1))
    assert torch.isfinite(logps).all()
    assert set(ids.tolist()) <= {1, 2, 3}


@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.7, 0.95, 0.999]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_nucleus_from_candidates_is_that_of_a_full_sort(seed: int, top_p: float, tied: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 700, generator=generator) * torch.tensor([[0.01], [1.0], [6.0]])  # flat, middling, peaked
    if tied:
        logits = logits.round()
    p = torch.softmax(logits, -1)
    ranked, order = p.sort(dim=-1, descending=True, stable=True)
    expected = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, ranked.cumsum(-1) - ranked >= top_p)
    assert torch.equal(_outside_nucleus(p, top_p), expected)


def test_rows_that_share_a_distribution_draw_from_it() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    owner = torch.tensor([1, 0, 0, 1])
    u = torch.tensor([0.1, 0.2, 0.9, 0.97], dtype=torch.float64)
    for sampling in (SamplingSettings(1.0, 1.0, 1), SamplingSettings(0.6, 0.9, 1)):
        shared = draw(logits, u, sampling, owner)
        apart = draw(logits[owner], u, sampling)
        assert torch.equal(shared[0], apart[0])
        assert torch.equal(shared[1], apart[1])
    assert len(set(draw(logits, u, SamplingSettings(1.0, 1.0, 1), owner)[0].tolist())) > 1
