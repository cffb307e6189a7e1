"""Two models with different tokenizers on one (logical) GPU: what vLLM samples is what FSDP trains."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from graft.methods import METHODS
from graft.policies.base import EngineFailure, PolicyLimitError
from graft.types import Group, Minibatch, Prompt, SamplingSettings, Sequence, StepKey
from tests.graft.tiny import OPTIMISER

pytestmark = pytest.mark.verl
PROMPTS = tuple(Prompt(f"p{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(4))
KEY, FULL = StepKey(7, "train/x", 1), SamplingSettings(1.0, 1.0, 16)
Models = dict


@pytest.fixture(scope="module")
def models(opened) -> Models:
    return opened(["quick", "small"], optimiser=replace(OPTIMISER, learning_rate=0.01))


def sampled(policy, prompts=PROMPTS, n: int = 4, key: StepKey = KEY, sampling: SamplingSettings = FULL) -> tuple[Group, ...]:
    return policy.generate(prompts, n=n, key=key, sampling=sampling)


def mismatch(policy, groups: tuple[Group, ...]) -> float:
    """Largest difference between the sampler's log-probs and the training engine's."""
    scores = policy.score([(g.prompt_ids, r.ids) for g in groups for r in g.responses])
    own = [r.logprobs for g in groups for r in g.responses]
    return max(abs(a - b) for x, y in zip(scores, own, strict=True) for a, b in zip(x, y, strict=True))


def step(policy, groups: tuple[Group, ...]) -> None:
    """One real update on the model's own samples."""
    rows = tuple(
        Sequence(g.prompt.id, policy.name, policy.name, g.prompt_ids, r.ids, r.logprobs, 1.0 if i % 2 else -1.0)
        for g in groups
        for i, r in enumerate(g.responses)
    )
    assert policy.update(Minibatch(0, rows), METHODS["grpo"].loss())["grad_norm"] > 1e-3


@pytest.mark.parametrize("name", ["quick", "small"])
def test_the_sampler_has_the_trainers_weights_before_and_after_an_update_and_only_after_a_sync(models: Models, name: str) -> None:
    policy = models[name]
    other = next(p for n, p in models.items() if n != name)
    before, untouched = sampled(policy), sampled(other)
    assert mismatch(policy, before) <= 1e-5
    step(policy, before)
    stale = sampled(policy)
    assert ids(stale) == ids(before)  # without a sync the sampler is where it was,
    assert mismatch(policy, stale) > 1e-3  # and this measure shows it
    policy.sync()
    fresh = sampled(policy)
    assert mismatch(policy, fresh) <= 1e-5
    assert ids(fresh) != ids(before)
    assert ids(sampled(other)) == ids(untouched)  # neither update nor sync reached the other model


def ids(groups: tuple[Group, ...]) -> list[list[tuple[int, ...]]]:
    return [[r.ids for r in g.responses] for g in groups]


def test_a_sample_depends_on_its_own_key_only(models: Models) -> None:
    policy = models["quick"]
    whole = ids(sampled(policy))
    assert ids(sampled(policy, PROMPTS[::-1]))[::-1] == whole
    assert ids(sampled(policy, PROMPTS[1:2])) == whole[1:2]
    assert [g[:2] for g in whole] == ids(sampled(policy, n=2))
    assert ids(sampled(policy, key=replace(KEY, step=2))) != whole
    assert all(len(set(map(tuple, g))) > 1 for g in whole)  # samples of one prompt differ


def test_where_responses_end(models: Models) -> None:
    groups = sampled(models["small"], n=16)
    responses = [r for g in groups for r in g.responses]
    eos = models["small"].codec.eos_ids
    for r in responses:
        assert (r.ids[-1] in eos) == (r.finish_reason == "eos")
        assert r.finish_reason == "eos" or len(r.ids) == 16
        assert not set(r.ids[:-1]) & eos
        assert r.text == models["small"].codec.response_text(r.ids)
    assert {r.finish_reason for r in responses} == {"eos", "length"}


def test_a_temperature_other_than_1_is_that_of_training(opened_hot) -> None:
    hot = SamplingSettings(0.7, 1.0, 16)
    assert mismatch(opened_hot, sampled(opened_hot, sampling=hot)) <= 1e-5
    assert mismatch(opened_hot, sampled(opened_hot)) > 1e-2  # sampled at 1, scored at 0.7


@pytest.fixture
def opened_hot(models: Models):
    """The first model with another training temperature."""
    policy = models["quick"]
    usual, policy.settings = policy.settings, replace(policy.settings, temperature=0.7)
    yield policy
    policy.settings = usual


def test_prompts_are_never_cut(models: Models) -> None:
    with pytest.raises(PolicyLimitError, match="over max_prompt_tokens=48"):
        sampled(models["quick"], (Prompt("long", "apples and oranges " * 20, "1"),))


def test_a_stuck_rollout_ends_in_time_with_its_reason(models: Models) -> None:
    policy = models["quick"]
    usual, policy.settings = policy.settings, replace(policy.settings, rollout_timeout=0.001)
    started = time.monotonic()
    with pytest.raises(EngineFailure, match=r"sampling 16 responses took longer than 0\.001 seconds and counts as stuck"):
        sampled(policy)
    assert time.monotonic() - started < 30
    assert policy.session.broken
    assert policy.memory() == {}  # nothing more is asked of workers that may never answer
    policy.settings = usual
