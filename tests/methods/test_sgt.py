"""SGT: where a model's whole group failed, it adds the likelihood of one of its peer's successes to GRPO."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graft.aggregation import Totals
from graft.exchange import exchange
from graft.methods import METHODS
from tests.graft import tiny
from tests.methods.baseline_situations import (
    SMALL,
    Scripted,
    close,
    contents,
    counted,
    evaluate,
    exact,
    group,
    loss_of_nothing,
    minibatches,
    moved,
    numeric,
    plain_gradients,
    plain_logprobs,
    ratio_inputs,
    recorded,
    settings,
    stepped,
)

GRPO, SGT = METHODS["grpo"], METHODS["sgt"]


def test_the_rescue_set_is_all_failed_here_and_any_success_there() -> None:
    # p0: 0 and 1 of 4; p1: 0 and 4 (all pass counts); p2: 1 and 4; p3: 0 and 0; p4: 2 and 0 (the other way round).
    groups = {"a": counted("a", [0, 0, 1, 0, 2]), "b": counted("b", [1, 4, 4, 0, 0])}
    got = SGT.bound("selection")(groups, np.random.default_rng(0))
    assert dict(got.selected) == {("b", "a"): ("p0", "p1"), ("a", "b"): ("p4",)}


def test_one_success_joins_the_failed_group_in_both_directions() -> None:
    groups = {"a": counted("a", [0, 0, 1, 0, 2]), "b": counted("b", [1, 4, 4, 0, 0])}
    got = moved(SGT, groups)
    assert contents(minibatches(SGT, got, "a", 2)) == [
        [("p0", "a", 4), ("p0", "b", 1), ("p1", "a", 4), ("p1", "b", 1)],
        [("p2", "a", 4), ("p3", "a", 4)],
        [("p4", "a", 4)],
    ]
    assert contents(minibatches(SGT, got, "b", 5))[0][-2:] == [("p4", "b", 4), ("p4", "a", 1)]
    rows = got.report.rows
    assert [(r.prompt_id, r.receiver, r.reward, r.weight) for r in rows] == [
        ("p0", "a", 1.0, 1.0),
        ("p1", "a", 1.0, 1.0),
        ("p4", "b", 1.0, 1.0),
    ]
    # Own advantages are those of the own group: 0 where it failed, and untouched elsewhere.
    own = [s.advantage for g in got.own["a"] for s in g.sequences]
    assert own[:8] == [0.0] * 8
    assert own[8:12] == pytest.approx([1.499997] + [-0.499999] * 3, abs=1e-6)


def test_the_draw_is_uniform_over_successes_and_depends_on_the_rng_only() -> None:
    own, peer = group("p0", "a", [0.0] * 5), group("p0", "b", [0.0, 1.0, 1.0, 0.0, 1.0])
    transfer = SGT.bound("transfer")
    drawn = [transfer(own, peer, np.random.default_rng(seed)) for seed in range(600)]
    assert all(t.keep_own and len(t.indices) == 1 for t in drawn)
    counts = Counter(t.indices[0] for t in drawn)
    assert set(counts) == {1, 2, 4}
    # 200 each, sd sqrt(600 * 2/9) = 11.5; six of them.
    assert all(abs(c - 200) < 70 for c in counts.values())
    # Texts, log-probs and names play no part; the same generator state gives the same place.
    other = replace(group("p0", "c", [0.0, 1.0, 1.0, 0.0, 1.0]), prompt_ids=(9,))
    assert [transfer(own, other, np.random.default_rng(seed)) for seed in range(50)] == drawn[:50]


def test_a_step_repeats_its_draw_and_another_seed_changes_it() -> None:
    groups = {"a": counted("a", [0] * 12), "b": counted("b", [3] * 12)}
    picks = [[r.index for r in moved(SGT, groups, seed=seed).report.rows] for seed in (0, 0, 1)]
    assert picks[0] == picks[1] != picks[2]
    assert set(picks[0]) == {0, 1, 2}


def test_a_minibatch_by_hand() -> None:
    # own  a = +1: rho 1, 1.5 -> 1, 1.28; a = -.5: rho 2 -> -1.  GRPO: -(2.28 - 1) / 3 own tokens = -.426667
    # peer: log-probs -1 + log rho = -1, -1 - log 2: NLL = (2 + log 2) / 2 peer tokens = 1.346574; times .1
    # loss = -.426667 + .134657 = -.292009. With one denominator of 5 it would be -.256 + .053863.
    x = ratio_inputs([[1.0, 1.5], [2.0], [1.0, 0.5]], [1.0, -0.5, 2.0], peer=[False, False, True])
    value, gradient, metrics = evaluate(SGT, x)
    assert value == pytest.approx(-1.28 / 3 + 0.1 * (2 + math.log(2)) / 2, abs=1e-12)
    # own -rho a / 3: -1/3, 0 and 1/3; peer -.1/2 whatever rho, a or the source.
    torch.testing.assert_close(gradient, exact([[-1 / 3, 0.0], [1 / 3, 0.0], [-0.05, -0.05]]), atol=1e-12, rtol=0)
    assert metrics == {"clipped_own": 1.0, "clipped_peer": 0.0}


def test_gradient_is_the_numeric_one() -> None:
    x = ratio_inputs([[1.0, 1.4, 0.7], [0.9, 0.6], [1.3, 3.0, 0.1]], [1.2, -0.7, 0.4], peer=[False, False, True])
    _, gradient, _ = evaluate(SGT, x)
    torch.testing.assert_close(gradient, numeric(SGT, x), atol=1e-8, rtol=0)


def test_the_peer_term_knows_no_advantage_no_ratio_and_no_score() -> None:
    def peer(a: float, source: float, old: float) -> tuple[float, list[float]]:
        x = ratio_inputs([[1.0, 0.5, 3.0]], [a], peer=[True], source_mean=[source])
        value, gradient, _ = evaluate(SGT, replace(x, old_logprobs=x.old_logprobs * 0 + old))
        return value, gradient.flatten().tolist()

    plain = peer(1.5, -1.0, -1.0)
    # 3 tokens of log-prob -1, -1 - log 2, -1 + log 3: .1 (3 - log 1.5) / 3.
    assert plain[0] == pytest.approx(0.1 * (3 - math.log(1.5)) / 3, abs=1e-12)
    assert plain[1] == pytest.approx([-0.1 / 3] * 3)
    assert plain == peer(0.0, -1.0, -1.0) == peer(-3.0, -8.0, -20.0)


def test_without_rescue_it_is_grpo() -> None:
    x = ratio_inputs([[1.0, 1.4, 0.7], [0.9, 0.6]], [1.2, -0.7])
    sgt, grpo = evaluate(SGT, x), evaluate(GRPO, x)
    assert sgt[0] == pytest.approx(grpo[0], abs=1e-15)
    assert grpo[0] == pytest.approx(-2.386 / 5)  # as in test_grpo_dynamic
    torch.testing.assert_close(sgt[1], grpo[1], atol=1e-15, rtol=0)
    # Success everywhere, failure everywhere: R is empty and the batches are GRPO's.
    groups = {"a": counted("a", [1, 0, 4]), "b": counted("b", [4, 0, 4])}
    got = moved(SGT, groups)
    assert not any(got.peer.values())
    assert contents(minibatches(SGT, got, "a", 2)) == [[("p0", "a", 4), ("p1", "a", 4)], [("p2", "a", 4)]]


def test_denominators_are_apart_whatever_the_minibatch_holds() -> None:
    # Failed own rows dilute the own mean only; a minibatch of peers alone, or of own rows alone, has one part.
    def value(own_lengths: list[int], peer_lengths: list[int]) -> float:
        lengths = own_lengths + peer_lengths
        peer = [False] * len(own_lengths) + [True] * len(peer_lengths)
        a = [1.0] + [0.0] * (len(lengths) - 1) if own_lengths else [0.0] * len(lengths)
        return evaluate(SGT, ratio_inputs([[1.0] * n for n in lengths], a, peer=peer))[0]

    assert value([2], []) == pytest.approx(-1.0)
    assert value([2, 6], []) == pytest.approx(-2 / 8)
    assert value([2, 6], [3]) == pytest.approx(-2 / 8 + 0.1)  # NLL is 1 per token
    assert value([2], [3, 50]) == pytest.approx(-1.0 + 0.1)
    assert value([], [3]) == pytest.approx(0.1)
    assert loss_of_nothing(SGT) == 0.0


def test_micro_batches_add_up() -> None:
    # Cut row by row under the minibatch's totals: 4 own tokens, 5 peer tokens.
    ratios, a, peer = [[1.0, 1.2], [1.1, 0.9], [1.0, 0.5], [0.7, 1.0, 2.0]], [1.0, -1.0, 2.0, 0.5], [False, False, True, True]
    whole, gradient, _ = evaluate(SGT, ratio_inputs(ratios, a, peer=peer))
    counts = Totals(9, 4, 5, 2)
    parts = [evaluate(SGT, ratio_inputs([ratios[i]], [a[i]], peer=[peer[i]]), counts) for i in range(4)]
    assert sum(p[0] for p in parts) == pytest.approx(whole, abs=1e-12)
    for i, (_, part, _) in enumerate(parts):
        torch.testing.assert_close(part[0], gradient[i, : len(ratios[i])], atol=1e-12, rtol=0)


def test_nll_weight_scales_the_peer_term_only() -> None:
    x = ratio_inputs([[1.0], [1.0]], [1.0, 0.0], peer=[False, True])
    values = [evaluate(SGT.with_hyperparameters(nll_weight=w), x)[0] for w in (0.0, 0.1, 1.0)]
    assert values == pytest.approx([-1.0, -0.9, 0.0], abs=1e-12)


def test_peer_rows_are_always_computed_and_failed_own_rows_never() -> None:
    loss = SGT.loss()
    assert loss.computes(tiny.sequence((1,), (-1.0,), 0.0, source="b"))  # an all-pass peer group has advantage 0
    assert not loss.computes(tiny.sequence((1,), (-1.0,), 0.0))


def test_a_success_that_cannot_be_exchanged_is_not_replaced_by_another() -> None:
    # One draw per prompt: if it falls on a text with a special token, the prompt goes without; the own group stays.
    texts = ["<|user|>", "fine"]
    groups = {"a": counted("a", [0], n=2), "b": (group("p0", "b", [1.0, 1.0], SMALL, texts=texts),)}
    receivers = {"a": Scripted(), "b": Scripted(SMALL)}
    found = set()
    for seed in range(12):
        got = exchange(groups, SGT, np.random.default_rng(seed), receivers=receivers)
        (row,) = got.report.rows
        found.add((row.index, row.reason, len(got.peer["a"][0].sequences)))
        assert contents(minibatches(SGT, got, "a", 1))[0][0] == ("p0", "a", 2)
    assert found == {(0, "special token", 0), (1, "admitted", 1)}


def test_of_two_peers_one_teaches() -> None:
    # c has 3 successes and b 1: c's success joins, once.
    got = moved(SGT, {"a": counted("a", [0]), "b": counted("b", [1]), "c": counted("c", [3])})
    assert contents(minibatches(SGT, got, "a", 1)) == [[("p0", "a", 4), ("p0", "c", 1)]]


def test_one_response_per_group() -> None:
    got = moved(SGT, {"a": counted("a", [0, 1], n=1), "b": counted("b", [1, 0], n=1)})
    assert contents(minibatches(SGT, got, "a", 2)) == [[("p0", "a", 1), ("p0", "b", 1), ("p1", "a", 1)]]
    assert [s.advantage for g in got.own["a"] for s in g.sequences] == [0.0, 0.0]


def test_the_update_is_the_plain_formula(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    minibatch = tiny.mixed_minibatch(policy)
    got, metrics = tiny.gradients(policy, minibatch, SGT.loss())
    tokens = {peer: sum(len(s.response_ids) for s in minibatch.sequences if s.is_peer is peer) for peer in (False, True)}
    total = torch.zeros(())
    for s in minibatch.sequences:
        logp, _ = plain_logprobs(policy, s)
        rho = (logp - torch.tensor(s.old_logprobs)).exp()
        own = -torch.minimum(rho * s.advantage, rho.clamp(0.8, 1.28) * s.advantage)
        total = total + (-0.1 * s.weight * logp if s.is_peer else own).sum() / tokens[s.is_peer]
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-4)
    assert close(got, plain_gradients(policy, total))


def test_a_step_on_two_real_policies(tiny_dirs: dict[str, Path]) -> None:
    # Equal tokenizers, so that every text crosses. p0: a fails, b has 4; p1: both fail; p2: b fails, a has 1.
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    seen = {name: recorded(p) for name, p in policies.items()}
    result = stepped(SGT, policies, ["0/4", "0/0", "1/0"], settings(3, 3))
    ids = [g.prompt.id for g in result.groups["a"]]
    a, b = (contents(seen[name])[0] for name in "ab")
    assert a == [(ids[0], "a", 4), (ids[0], "b", 1), (ids[1], "a", 4), (ids[2], "a", 4)]
    assert b == [(ids[0], "b", 4), (ids[1], "b", 4), (ids[2], "b", 4), (ids[2], "a", 1)]
    (shared,) = [s for s in seen["b"][0].sequences if s.is_peer]
    success = next(r for r in result.groups["a"][2].responses if r.reward == 1.0)
    assert shared.response_ids == success.ids
    # b's own groups are all unanimous, so its loss is .1 NLL of that text under b's weights at the start of the step.
    expected = -0.1 * sum(shared.old_logprobs) / len(shared.old_logprobs)
    assert result.metrics["models"]["b"]["loss_mean"] == pytest.approx(expected, abs=1e-5)
