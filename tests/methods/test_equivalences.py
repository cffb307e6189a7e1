"""Where two methods must be one: the same sequences, the same gradients, the same weights bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graft.composition import Method
from graft.exchange import Exchange, exchange
from graft.methods import METHODS
from graft.policies.torch_policy import TorchPolicy
from graft.types import Group, Minibatch, SamplingSettings, StepKey
from tests.graft import tiny
from tests.methods import graft_situations as at

GRAFT, GRPO = METHODS["graft"], METHODS["grpo"]
Groups = dict[str, tuple[Group, ...]]


def same(one: Exchange, other: Exchange) -> bool:
    return one.own == other.own and one.peer == other.peer


# ---- real policies


def sampled(policies: Mapping[str, TorchPolicy], wins: Mapping[str, Seq[int]]) -> Groups:
    """Groups of 4 from the policies; the first k responses of a group are declared correct."""
    settings = SamplingSettings(1.0, 1.0, tiny.LIMIT)
    groups = {}
    for name, policy in policies.items():
        made = policy.generate(tiny.prompts(len(wins[name])), n=4, key=StepKey(0, f"train/{name}", 1), sampling=settings)
        groups[name] = tuple(
            replace(g, responses=tuple(replace(r, reward=float(j < k)) for j, r in enumerate(g.responses)))
            for g, k in zip(made, wins[name], strict=True)
        )
    return groups


def learn(policy: TorchPolicy, method: Method, got: Exchange, prompts: int, seed: int = 0) -> list[dict[str, float]]:
    minibatches = method.bound("order")(got.own[policy.name], got.peer[policy.name], prompts, np.random.default_rng(seed))
    return [policy.update(m, method.loss()) for m in minibatches]


@pytest.fixture
def pair(tiny_dirs: dict[str, Path]) -> dict[str, TorchPolicy]:
    return {"a": tiny.policy(tiny_dirs["quick"], "a"), "b": tiny.policy(tiny_dirs["small"], "b")}


NO_CANDIDATE, ONE_DIRECTION, ALL_CORRECT = (
    {"a": (1, 2, 0, 4), "b": (3, 2, 0, 4)},
    {"a": (1, 2, 0, 4), "b": (0, 2, 0, 4)},  # m = 0
    {"a": (4, 2, 0, 4), "b": (0, 2, 4, 4)},
)


@pytest.mark.parametrize(
    ("name", "wins"),
    [
        ("graft", NO_CANDIDATE),
        ("graft", ONE_DIRECTION),
        ("graft", ALL_CORRECT),
        ("peer_first", NO_CANDIDATE),
        ("pooled_groups", NO_CANDIDATE),
        ("graft_which_luffy_update", NO_CANDIDATE),
    ],
)
def test_without_candidates_graft_is_grpo_bit_for_bit(
    tiny_dirs: dict[str, Path], pair: dict[str, TorchPolicy], name: str, wins: dict[str, Seq[int]]
) -> None:
    groups = sampled(pair, wins)
    joint = exchange(groups, METHODS[name], np.random.default_rng(0), receivers=pair)
    for model, kind in (("a", "quick"), ("b", "small")):
        alone = tiny.policy(tiny_dirs[kind], model)
        start = alone.weights_sha256()
        single = exchange({model: groups[model]}, GRPO, np.random.default_rng(1))
        assert joint.own[model] == single.own[model]
        assert joint.peer[model] == ()
        first = Minibatch(0, tuple(s for g in single.own[model][:2] for s in g.sequences))
        ours, theirs = tiny.gradients(pair[model], first, METHODS[name].loss()), tiny.gradients(alone, first, GRPO.loss())
        assert ours[1] == theirs[1]
        assert all(torch.equal(ours[0][k], g) for k, g in theirs[0].items())
        # Two updates each: the second sees ratios off 1.
        assert learn(pair[model], METHODS[name], joint, 2) == learn(alone, GRPO, single, 2)
        assert pair[model].weights_sha256() == alone.weights_sha256() != start


@pytest.mark.parametrize("name", ["peer_first", "peer_uniform"])
def test_peer_order_is_irrelevant_in_a_single_minibatch(tiny_dirs: dict[str, Path], name: str) -> None:
    method = METHODS[name]
    pair = {m: tiny.policy(tiny_dirs["quick"], m) for m in "ab"}  # one tokenizer, so that everything crosses
    groups = sampled(pair, {"a": (1, 0, 2), "b": (0, 2, 2)})
    mine, grafts = (exchange(groups, m, np.random.default_rng(0), receivers=pair) for m in (method, GRAFT))
    assert same(mine, grafts)
    rng = np.random.default_rng(3)
    (one,), (other,) = (m.bound("order")(mine.own["b"], mine.peer["b"], 3, rng) for m in (method, GRAFT))
    assert any(s.is_peer and s.weight * s.advantage for s in one.sequences)
    assert sorted(map(hash, one.sequences)) == sorted(map(hash, other.sequences))
    ours, theirs = tiny.gradients(pair["b"], one, method.loss()), tiny.gradients(pair["b"], other, GRAFT.loss())
    scale = max(1.0, theirs[1]["grad_norm"])
    assert theirs[1]["grad_norm"] > 1e-3
    assert all(float((ours[0][k] - g).abs().max()) < 1e-6 * scale for k, g in theirs[0].items())
    # With two minibatches they are other steps.
    (early, *_), (late, *_) = (m.bound("order")(mine.own["b"], mine.peer["b"], 1, rng) for m in (METHODS["peer_first"], GRAFT))
    assert early.sequences != late.sequences


def test_two_identical_copies_score_one(tiny_dirs: dict[str, Path]) -> None:
    copies = {m: tiny.policy(tiny_dirs["quick"], m) for m in "ab"}
    groups = sampled(copies, {"a": (1, 0, 2, 0), "b": (0, 2, 0, 3)})
    got = exchange(groups, GRAFT, np.random.default_rng(0), receivers=copies)
    scored = [r for r in got.report.rows if r.score is not None]
    assert len(scored) > 10
    assert all(r.score == pytest.approx(1.0, abs=1e-5) and r.weight == pytest.approx(1.0, abs=1e-5) for r in scored)
    # Ids cross unchanged, and the receiver's old log-probs are the sender's within float error.
    sent = {r.ids: r.logprobs for gs in groups.values() for g in gs for r in g.responses}
    for gs in got.peer.values():
        for s in (s for g in gs for s in g.sequences):
            assert s.old_logprobs == pytest.approx(sent[s.response_ids], abs=1e-4)
    # So the gate is out of play: GRAFT trains on what it would train on without one, weights within float error.
    ungated = exchange(groups, METHODS["wo_compat_gate"], np.random.default_rng(0), receivers=copies)
    for model in "ab":
        pairs = zip(got.peer[model], ungated.peer[model], strict=True)
        for s, t in ((s, t) for g, h in pairs for s, t in zip(g.sequences, h.sequences, strict=True)):
            assert replace(s, weight=1.0) == t


# ---- letters: what is trained on, and the loss


RISEN = {f"{m}{q}{j}": 1.0 + 0.3 * (j + 1) for m in "ab" for q in range(5) for j in range(4)}
SPREAD = {name: 0.5 + 0.13 * i for i, name in enumerate(f"{m}{q}{j}" for m in "ab" for q in range(2) for j in range(4))}


def test_delta_0_with_scores_above_one_is_wo_compat_gate() -> None:
    zero, ungated = GRAFT.with_hyperparameters(delta=0.0), METHODS["wo_compat_gate"]
    assert same(at.moved(zero, scores=RISEN), at.moved(ungated, scores=RISEN))
    # One score below 1 tells them apart.
    low = {**RISEN, "a02": 0.99}
    assert not same(at.moved(zero, scores=low), at.moved(ungated, scores=low))


def test_wo_floor_is_graft_at_delta_0() -> None:
    zero = GRAFT.with_hyperparameters(delta=0.0)
    assert same(at.moved(METHODS["wo_floor"], scores=SPREAD), at.moved(zero, scores=SPREAD))
    assert not same(at.moved(METHODS["wo_floor"], scores=SPREAD), at.moved(GRAFT, scores=SPREAD))
    tiny_scores = {name: 1e-6 for name in SPREAD}
    assert same(at.moved(METHODS["wo_floor"], scores=tiny_scores), at.moved(zero, scores=tiny_scores))
    assert len(at.weights(at.moved(zero, scores=tiny_scores), "b")) == 4


def test_success_only_without_floor_is_success_only_at_delta_0() -> None:
    zero = METHODS["success_only"].with_hyperparameters(delta=0.0)
    assert same(at.moved(METHODS["success_only_wo_floor"], scores=SPREAD), at.moved(zero, scores=SPREAD))


@pytest.mark.parametrize("seed", range(5))
def test_random_admission_that_admits_everything_is_wo_floor(seed: int) -> None:
    high = {name: 0.81 + 0.02 * i for i, name in enumerate(SPREAD)}
    mine = at.moved(METHODS["random_admission"], scores=high, seed=seed)
    assert same(mine, at.moved(METHODS["wo_floor"], scores=high))
    assert same(mine, at.moved(GRAFT, scores=high))  # nor does GRAFT drop any
    assert len(at.weights(mine, "b")) == 4


@pytest.mark.parametrize("name", ["success_only", "graft", "graft_which_sft_update"])
def test_an_all_correct_source_group_moves_nothing(name: str) -> None:
    got = at.moved(METHODS[name], {"a": (4, 0), "b": (0, 4)})
    assert got.report.rows == ()
    assert same(got, at.moved(GRPO, {"a": (4, 0), "b": (0, 4)}))


def test_wo_balancing_is_graft_where_nothing_needs_balancing() -> None:
    # Two candidates each way of different counts, no all-correct source.
    counts = {"a": (1, 3, 0, 0, 2), "b": (0, 0, 2, 1, 2)}
    assert same(at.moved(METHODS["wo_balancing"], counts, SPREAD), at.moved(GRAFT, counts, SPREAD))
    for other in ({"a": (1, 3, 0), "b": (0, 0, 2)}, {"a": (1, 4, 0), "b": (0, 0, 2)}):
        assert not same(at.moved(METHODS["wo_balancing"], other), at.moved(GRAFT, other))


@pytest.mark.parametrize("seed", range(8))
def test_sft_on_grafts_prompts_is_sgt_where_graft_selects_the_rescue_set(seed: int) -> None:
    method, sgt = METHODS["graft_which_sft_update"], METHODS["sgt"]
    counts = {"a": (2, 3, 0, 0, 2), "b": (0, 0, 2, 3, 2)}
    mine, theirs = at.moved(method, counts, seed=seed), at.moved(sgt, counts, seed=seed)
    assert same(mine, theirs)
    for one, other in zip(at.trained(mine, method, "b", 2), at.trained(theirs, sgt, "b", 2), strict=True):
        assert one == other
        assert at.objective(method, one) == at.objective(sgt, other)
    # An all-correct source is in the rescue set alone.
    unlike = {"a": (2, 4, 0, 0), "b": (0, 0, 2, 3)}
    assert not same(at.moved(method, unlike, seed=seed), at.moved(sgt, unlike, seed=seed))


def test_hacpo_on_grafts_prompts_is_hacpo_where_graft_selects_all() -> None:
    # One prompt each way and nothing else in the batch but prompts that teach nothing (both fail).
    counts = {"a": (2, 0), "b": (0, 1)}
    capability = {"a": 0.5, "b": 0.25}
    method, hacpo = METHODS["graft_which_hacpo_update"], METHODS["hacpo"]
    mine, theirs = (at.moved(m, counts, capability=capability) for m in (method, hacpo))
    assert mine.own == theirs.own
    heard = {k: a for k, a in at.advantages(mine, "b").items() if k[:2] == "a0"}
    assert heard == {k: a for k, a in at.advantages(theirs, "b").items() if k[:2] == "a0"}
    # a failed p1, so its text there is silent for b, where HACPO pushes it down.
    assert {a for k, a in at.advantages(mine, "b").items() if k[:2] == "a1"} == {0.0}
    assert all(a < 0 for k, a in at.advantages(theirs, "b").items() if k[:2] == "a1")


@pytest.mark.parametrize("ratio", [0.81, 1.0, 1.27])
def test_the_sequence_ratio_is_the_token_ratio_where_all_tokens_agree(ratio: float) -> None:
    minibatch = at.trained(at.moved(GRAFT, scores=SPREAD), GRAFT, "b", 5)[0]
    ratios = [ratio] * len(minibatch.sequences)
    x = at.loss_inputs(minibatch, ratios)
    one, other = METHODS["wo_token_ratio"], GRAFT
    assert at.loss_at(one, minibatch, x) == pytest.approx(at.loss_at(other, minibatch, x), abs=1e-12)
    assert at.flat(at.gradient(one, minibatch, x)) == pytest.approx(at.flat(at.gradient(other, minibatch, x)), abs=1e-12)
