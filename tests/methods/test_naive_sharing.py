"""Naive sharing: every peer response counts as one's own; the union of the groups is normalised, nothing is corrected."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from graft.exchange import exchange
from graft.methods import METHODS
from tests.graft import tiny
from tests.methods.baseline_situations import (
    SMALL,
    Scripted,
    contents,
    counted,
    evaluate,
    exact,
    group,
    minibatches,
    moved,
    numeric,
    ratio_inputs,
    recorded,
    settings,
    stepped,
)

NAIVE = METHODS["naive_sharing"]


def advantages(own: list[float], peer: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(own, peer) advantages of learner a."""
    groups = {"a": group("p0", "a", own), "b": group("p0", "b", peer)}
    mine = NAIVE.bound("own_advantage")(groups, "a", "a", {"a": 0.1, "b": 0.9})
    return mine, NAIVE.bound("peer_advantage")(groups, "b", "a", {"a": 0.1, "b": 0.9})


def test_advantages_over_the_union() -> None:
    # 2 successes of 8: mean .25, ss = 2 * .5625 + 6 * .0625 = 1.5, std = sqrt(1.5/7) = .462910:
    # .75/.462911 = 1.620182, -.25/.462911 = -.540061. Capabilities play no part.
    own, peer = advantages([0.0] * 4, [1.0, 0.0, 1.0, 0.0])
    assert own == pytest.approx([-0.540061] * 4, abs=1e-6)
    assert peer == pytest.approx([1.620182, -0.540061, 1.620182, -0.540061], abs=1e-6)


def test_two_unanimous_groups_that_disagree_teach() -> None:
    # 4 of 8: +-.5 / sqrt(2/7) = +-.935413, where each group alone would give 0.
    own, peer = advantages([1.0] * 4, [0.0] * 4)
    assert own == pytest.approx([0.935413] * 4, abs=1e-6)
    assert peer == pytest.approx([-0.935413] * 4, abs=1e-6)


@pytest.mark.parametrize("r", [0.0, 1.0, 0.1])
def test_eight_equal_rewards_are_exactly_zero(r: float) -> None:
    assert advantages([r] * 4, [r] * 4) == ((0.0,) * 4, (0.0,) * 4)


def test_groups_of_one_compare_with_each_other() -> None:
    # mean .5, std = sqrt(.5) = .707107: +-.5/.707108 = +-.707106.
    own, peer = advantages([0.0], [1.0])
    assert own == pytest.approx((-0.707106,), abs=1e-6)
    assert peer == pytest.approx((0.707106,), abs=1e-6)


def test_every_response_of_every_prompt_moves_with_weight_one() -> None:
    # Whatever the rewards, and however unlikely under the receiver (mean -9 against -1: s = e^-8).
    groups = {"a": counted("a", [0, 4, 2]), "b": counted("b", [4, 4, 0])}
    receivers = {"a": Scripted(means={f"b p1 r{i}": -9.0 for i in range(4)}), "b": Scripted()}
    got = exchange(groups, NAIVE, np.random.default_rng(0), receivers=receivers)
    for receiver, source in (("a", "b"), ("b", "a")):
        batches = minibatches(NAIVE, got, receiver, 2)
        both = [[(q, receiver, 4), (q, source, 4)] for q in ("p0", "p1", "p2")]
        assert contents(batches) == [both[0] + both[1], both[2]]
        assert {s.weight for m in batches for s in m.sequences} == {1.0}
    rows = [r for r in got.report.rows if r.receiver == "a"]
    assert [(r.prompt_id, r.index) for r in rows] == [(f"p{q}", i) for q in range(3) for i in range(4)]
    assert [r.score for r in rows] == pytest.approx([1.0] * 4 + [math.exp(-8)] * 4 + [1.0] * 4)
    # The ratio's denominator is the receiver's own old policy, not the source's.
    assert {x for s in got.peer["a"][1].sequences for x in s.old_logprobs} == {-9.0}


def test_an_inexchangeable_response_leaves_and_the_statistics_stay() -> None:
    # b's first success holds a special token of its tokenizer: it is not trained on, but it was part of the union of 8.
    texts = ["<|user|>", "fine", "good", "well"]
    groups = {"a": counted("a", [0]), "b": (group("p0", "b", [1.0, 1.0, 0.0, 0.0], SMALL, texts=texts),)}
    receivers = {"a": Scripted(), "b": Scripted(SMALL)}
    got = exchange(groups, NAIVE, np.random.default_rng(0), receivers=receivers)
    assert got.report.reasons("a") == {"admitted": 3, "special token": 1}
    (batch,) = minibatches(NAIVE, got, "a", 1)
    assert [s.advantage for s in batch.sequences] == pytest.approx([-0.540061] * 4 + [1.620182] + [-0.540061] * 2, abs=1e-6)


def test_a_prompt_whose_peers_all_fall_away_keeps_its_own_group() -> None:
    groups = {
        "a": counted("a", [1, 1]),
        "b": (group("p0", "b", [0.0] * 4, SMALL, texts=["<|user|>"] * 4), counted("b", [0, 0])[1]),
    }
    groups["b"] = (groups["b"][0], group("p1", "b", [0.0] * 4, SMALL))
    got = exchange(groups, NAIVE, np.random.default_rng(0), receivers={"a": Scripted(), "b": Scripted(SMALL)})
    assert contents(minibatches(NAIVE, got, "a", 1)) == [[("p0", "a", 4)], [("p1", "a", 4), ("p1", "b", 4)]]


def test_three_models_share_everything() -> None:
    # Union of 12 with 3 successes: mean .25, ss = 3 * .5625 + 9 * .0625 = 2.25, std = sqrt(2.25/11) = .452267;
    # .75/.452268 = 1.658309, -.25/.452268 = -.552770.
    groups = {"a": counted("a", [0]), "b": counted("b", [1]), "c": counted("c", [2])}
    got = moved(NAIVE, groups)
    (batch,) = minibatches(NAIVE, got, "a", 1)
    assert contents([batch]) == [[("p0", "a", 4), ("p0", "b", 4), ("p0", "c", 4)]]
    expected = [-0.552770] * 4 + [1.658309] + [-0.552770] * 3 + [1.658309] * 2 + [-0.552770] * 2
    assert [s.advantage for s in batch.sequences] == pytest.approx(expected, abs=2e-6)


def test_a_minibatch_by_hand() -> None:
    # own  a = -.5: rho 1, .5 -> -.5, -.4 (clipped)   sum -.9
    # peer a = 1.5: rho 1, 1.5, .5 -> 1.5, 1.92 (clipped), .75   sum 4.17
    # loss = -3.27 / 5 tokens = -.654; gradients -rho a / 5: .1, 0; -.3, 0, -.15. The source's mean (-7) plays no part.
    x = ratio_inputs([[1.0, 0.5], [1.0, 1.5, 0.5]], [-0.5, 1.5], peer=[False, True], source_mean=[-7.0, -7.0])
    value, gradient, metrics = evaluate(NAIVE, x)
    assert value == pytest.approx(-0.654, abs=1e-12)
    torch.testing.assert_close(gradient, exact([[0.1, 0.0, 0.0], [-0.3, 0.0, -0.15]]), atol=1e-12, rtol=0)
    assert metrics == {"clipped_own": 1.0, "clipped_peer": 1.0}


def test_gradient_is_the_numeric_one() -> None:
    x = ratio_inputs([[1.0, 1.4, 0.7], [0.9, 0.6], [1.3, 1.05, 0.75]], [1.2, -0.7, -0.4], peer=[False, True, True])
    _, gradient, _ = evaluate(NAIVE, x)
    torch.testing.assert_close(gradient, numeric(NAIVE, x), atol=1e-8, rtol=0)


def test_a_model_alone_has_nobody_to_share_with() -> None:
    got = moved(NAIVE, {"a": counted("a", [1])})
    assert got.peer["a"] == ()
    assert [s.advantage for s in got.own["a"][0].sequences] == pytest.approx([1.499997] + [-0.499999] * 3, abs=1e-6)


def test_a_step_on_two_real_policies(tiny_dirs: dict[str, Path]) -> None:
    # p0: a fails and b has 2 of 4; p1: both pass. All of it is trained on by both, in one minibatch per prompt.
    # Equal tokenizers, because random models rarely write text that crosses.
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    seen = {name: recorded(p) for name, p in policies.items()}
    result = stepped(NAIVE, policies, ["0/2", "4/4"], settings(2, 1))
    for name, batches in seen.items():
        assert [len(m.sequences) for m in batches] == [
            4 + sum(r.weight is not None for r in result.exchange.report.rows if (r.receiver, r.prompt_id) == (name, q))
            for q in dict.fromkeys(s.prompt_id for m in batches for s in m.sequences)
        ]
        assert all(s.advantage == 0 for s in batches[1].sequences)
        assert result.metrics["models"][name]["peer_tokens"] > 0
    values = {round(s.advantage, 5) for s in seen["a"][0].sequences if not s.is_peer}
    assert values == {-0.54006}
    with pytest.raises(ValueError, match="needs at least two"):
        stepped(NAIVE, {"a": policies["a"]}, ["1", "1"], settings(2, 1))
