"""GRAFT by hand: which groups move, what weighs how much, eq. 10, what is trained on and in what order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graft.aggregation import Totals
from graft.compatibility import score
from graft.cotrain import _update
from graft.exchange import exchange
from graft.methods import METHODS
from graft.types import Minibatch
from tests.graft import tiny
from tests.methods import graft_situations as at

GRAFT = METHODS["graft"]
RNG = np.random.default_rng(0)


def kept(scores: list[float], **changes: float) -> list[float | None]:
    return [a.weight for a in GRAFT.with_hyperparameters(**changes).bound("admission")(scores, RNG)]


def test_the_gate_is_strict_and_the_weight_is_capped_at_one() -> None:
    # w = 1[s > .8] min(s, 1)
    assert kept([0.79, 0.8, 0.81, 0.95, 1.0, 1.3]) == [None, None, 0.81, 0.95, 1.0, 1.0]
    assert kept([0.69, 0.7, 0.71, 0.79], delta=0.7) == [None, None, 0.71, 0.79]
    assert kept([0.81, 0.9, 0.91], delta=0.9) == [None, None, 0.91]


def test_the_score_is_a_ratio_of_per_token_means() -> None:
    # log .8 = -.22314 per token: a receiver at -1.22314 against a sender at -1 stands on the threshold.
    assert score(-1.22314, -1.0) == pytest.approx(0.8, abs=1e-5)
    assert score(-1.22, -1.0) > 0.8 > score(-1.2232, -1.0)


# b's own successes on the last m prompts make |C_ba| = m; C_ab = {p0: 7, p1: 5, p2: 5, p3: 1} of 8.
@pytest.mark.parametrize(("m", "there"), [(0, []), (1, ["a0"]), (2, ["a0", "a1", "a2"]), (3, ["a0", "a1", "a2"])])
def test_balancing_keeps_ties_and_nothing_at_zero(m: int, there: list[str]) -> None:
    counts = {"a": (7, 5, 5, 1, 0, 0, 0), "b": (0, 0, 0, 0, *[2] * m, *[0] * (3 - m))}
    got = at.moved(GRAFT, counts, n=8)
    assert sorted({name[:2] for name in at.weights(got, "b")}) == there
    assert sorted({name[:2] for name in at.weights(got, "a")}) == [f"b{4 + i}" for i in range(m)]
    # Counts may differ between the directions: m = 2 moves three prompts there and two back.
    assert at.direction(got, "a", "b") == (4, m, len(there), len(there), 8 * len(there), 8 * len(there))
    assert at.direction(got, "b", "a")[:3] == (m, m, m)


def test_m_of_all_candidates_moves_all_of_them() -> None:
    counts = {"a": (7, 5, 5, 1, 0, 0, 0, 0), "b": (0, 0, 0, 0, 1, 1, 1, 1)}
    got = at.moved(GRAFT, counts, n=8)
    assert at.direction(got, "a", "b")[:3] == (4, 4, 4)
    assert at.direction(got, "b", "a")[:3] == (4, 4, 4)


def test_candidates_are_all_fail_at_the_receiver_and_mixed_at_the_source() -> None:
    # p0: a is all correct; p1: b has one success; p2: both fail; p3: a candidate; p4: the way back.
    counts = {"a": (4, 2, 0, 1, 0), "b": (0, 1, 0, 0, 3)}
    got = at.moved(GRAFT, counts)
    assert {name[:2] for name in at.weights(got, "b")} == {"a3"}
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 4, 4)


def test_one_of_eight_keeps_the_source_groups_advantages() -> None:
    # mean .125, std sqrt((.875^2 + 7*.125^2)/7) = sqrt(.125) = .353553; .875/.353554 = 2.474867, -.125/.353554 = -.353552.
    # The success is dropped (s = .5), and still the others' advantages come from the full group.
    got = at.moved(GRAFT, {"a": (1, 0), "b": (0, 1)}, {"a00": 0.5}, n=8)
    assert at.advantages(got, "a")["b10"] == pytest.approx(2.474867, abs=1e-6)
    assert at.advantages(got, "b") == {f"a0{j}": pytest.approx(-0.353552, abs=1e-6) for j in range(1, 8)}
    assert got.report.reasons("b") == {"admitted": 7, "below delta": 1}


def test_replaced_groups_are_gone_and_all_others_stay() -> None:
    got = at.moved(GRAFT)
    assert [g.prompt_id for g in got.own["b"]] == ["p1", "p2", "p3", "p4"]
    assert [g.prompt_id for g in got.own["a"]] == ["p0", "p2", "p3", "p4"]
    assert at.own_advantages(got, "b", "p2") == [0.0] * 4
    assert at.own_advantages(got, "b", "p3") == [0.0] * 4
    # 2 of 4: mean .5, std sqrt(4 * .25 / 3) = .577350, a = +-.866024
    assert at.own_advantages(got, "b", "p4") == pytest.approx([0.866024, 0.866024, -0.866024, -0.866024], abs=1e-6)


def test_own_minibatches_come_first_and_grafted_groups_last() -> None:
    got = at.moved(GRAFT, {"a": (1, 0, 2, 3, 2), "b": (0, 3, 2, 3, 2)})
    assert at.names(at.trained(got, GRAFT, "b")) == [["b1"], ["b2"], ["b3"], ["b4"], ["a0"]]
    minibatches = at.trained(got, GRAFT, "b", 2)
    assert at.names(minibatches) == [["b1", "b2"], ["b3", "b4"], ["a0"]]
    assert [m.index for m in minibatches] == [0, 1, 2]
    # Three a minibatch: five prompts stay five, so the grafted one fills up the last.
    assert at.names(at.trained(got, GRAFT, "b", 3)) == [["b1", "b2", "b3"], ["b4", "a0"]]
    assert at.names(at.trained(got, GRAFT, "a")) == [["a0"], ["a2"], ["a3"], ["a4"], ["b1"]]


SCORES = {"a00": 0.79, "a01": 0.81, "a02": 0.95, "a03": 1.3}


def test_eq_10_from_the_exchange_to_the_objective() -> None:
    # a's 1 of 4 has a = 1.5, -.5, -.5, -.5. b reads s = .79 (dropped), .81, .95, 1.3 (w = 1) on 9, 11 and 13 of ITS tokens.
    # rho = 1: J = -.5 (.81*9 + .95*11 + 1*13) / (9 + 11 + 13) = -.5 * 30.74 / 33 = -.465758.
    # With the dropped 7 tokens in the denominator it would be -.384250, with weights in it -.5.
    got = at.moved(GRAFT, scores=SCORES)
    minibatch = at.trained(got, GRAFT, "b")[-1]
    assert at.names([minibatch]) == [["a01", "a02", "a03"]]
    assert [s.weight for s in minibatch.sequences] == pytest.approx([0.81, 0.95, 1.0])
    assert minibatch.tokens == 33
    assert at.objective(GRAFT, minibatch) == pytest.approx(-0.465758, abs=1e-5)
    # rho = .5, 1, 2 with a < 0: min(rho a, clip a) = -.4, -.5, -1: J = -(.81*9*.4 + .95*11*.5 + 13*1) / 33 = -.640636.
    assert at.objective(GRAFT, minibatch, [0.5, 1.0, 2.0]) == pytest.approx(-0.640636, abs=1e-5)


def test_eq_10_and_its_gradient_on_two_responses() -> None:
    # own  a = 2,  w = 1,   rho 1, 1.5, .5 -> min terms 2, 2.56, 1     sum 5.56
    # peer a = -1, w = .85, rho 1, .5      -> min terms -1, -.8        sum -1.8, times .85 = -1.53
    # J = (5.56 - 1.53) / 5 = .806; dL/dlogp = -w rho a / 5 where not clipped: -.4, 0, -.2 and +.17, 0.
    minibatch = Minibatch(0, (at.row([1, 1.5, 0.5], 2.0), at.row([1, 0.5], -1.0, weight=0.85, peer=True)))
    x = at.loss_inputs(minibatch, [[1, 1.5, 0.5], [1, 0.5]])
    assert -at.loss_at(GRAFT, minibatch, x) == pytest.approx(0.806, abs=1e-12)
    got = at.gradient(GRAFT, minibatch, x)
    assert at.flat(got) == pytest.approx([-0.4, 0, -0.2, 0.17, 0], abs=1e-12)
    assert at.flat(at.slopes(GRAFT, minibatch, x)) == pytest.approx(at.flat(got), abs=1e-8)
    # The sender's own log-probs are in w and nowhere else.
    other = replace(x, source_mean=x.source_mean - 3)
    assert at.loss_at(GRAFT, minibatch, other) == at.loss_at(GRAFT, minibatch, x)


def test_old_logprobs_of_grafted_responses_are_the_receivers() -> None:
    # s = .81: the receiver's mean is -1 + log .81 = -1.210721 on every token, while the sender's is -1.
    s = at.peers(at.moved(GRAFT, scores=SCORES), "b")["a01"]
    assert s.old_logprobs == (pytest.approx(-1.210721, abs=1e-6),) * 9
    assert s.source_mean_logprob == -1.0
    assert s.prompt_ids == (2, 1)  # b's rendering of p0


def test_clipped_tokens_are_counted_apart() -> None:
    # a > 0: only rho > 1.28; a < 0: only rho < .8. Own: 1 of 3. Peer: 1 of 2.
    minibatch = Minibatch(0, (at.row([1, 1.5, 0.5], 2.0), at.row([1.5, 0.5], -1.0, peer=True)))
    _, metrics = GRAFT.loss()(at.loss_inputs(minibatch, [[1, 1.5, 0.5], [1.5, 0.5]]), Totals.of(minibatch))
    assert {k: int(v) for k, v in metrics.items()} == {"clipped_own": 1, "clipped_peer": 1}


def test_failed_groups_that_are_not_replaced_dilute() -> None:
    # b's p2 (all fail, 40 tokens) with the grafted p0 (40 tokens) in one minibatch: 80 tokens under the sum of p0 alone.
    # rho = 1, w = 1: sum = 1.5*7 - .5*(9+11+13) = -6, J = -6/80 = -.075, to 1e-5 for eps.
    got = at.moved(GRAFT, {"a": (1, 0, 0), "b": (0, 1, 0)})
    minibatch = at.trained(got, GRAFT, "b", 2)[-1]
    assert at.names([minibatch]) == [["a0"]]
    both = Minibatch(0, (*got.own["b"][1].sequences, *minibatch.sequences))
    assert both.tokens == 80
    assert at.objective(GRAFT, both) == pytest.approx(-0.075, abs=1e-5)


def test_all_dropped_by_the_gate_counts_nowhere() -> None:
    # All of a's responses score .5: b's p0 has lost its own group and gets nothing. Five prompts, four optimiser steps.
    got = at.moved(GRAFT, scores={f"a0{j}": 0.5 for j in range(4)})
    assert at.weights(got, "b") == {}
    assert at.names(at.trained(got, GRAFT, "b")) == [["b1"], ["b2"], ["b3"], ["b4"]]
    assert [m.index for m in at.trained(got, GRAFT, "b")] == [0, 1, 2, 3]
    # In minibatches of three, b4 shares the last with the emptied p0: its own tokens are the whole denominator.
    last = at.trained(got, GRAFT, "b", 3)[-1]
    assert at.names([last]) == [["b4"]]
    assert last.tokens == 40
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 4, 0)


@pytest.mark.parametrize(
    "counts",
    [
        {"a": (1, 2), "b": (2, 3)},  # nobody fails
        {"a": (1, 1), "b": (0, 0)},  # one direction only: m = 0
        {"a": (4, 0), "b": (0, 4)},  # all-correct peers
        {"a": (0, 0), "b": (0, 0)},
    ],
)
def test_nothing_moves(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(GRAFT, counts)
    assert got.report.rows == ()
    assert not any(got.peer.values())
    assert at.names(at.trained(got, GRAFT, "b")) == [["b0"], ["b1"]]


def test_a_group_of_one_is_never_mixed() -> None:
    got = at.moved(GRAFT, {"a": (1, 0), "b": (0, 1)}, n=1)
    assert not any(got.peer.values())
    assert [s.advantage for g in got.own["a"] for s in g.sequences] == [0.0, 0.0]


def test_the_receivers_tokenizer_counts_and_refuses() -> None:
    # b's limit of 10 tokens lets 7 and 9 through, not 11 and 13; a refused response is not scored.
    made = at.groups(at.CROSSING)
    readers = {"a": at.Reader(at.CODECS["a"]), "b": at.Reader(at.CODECS["b"], max_response_tokens=10)}
    got = exchange(made, GRAFT, RNG, receivers=readers)
    assert {k: len(s.response_ids) for k, s in at.peers(got, "b").items()} == {"a00": 7, "a01": 9}
    assert readers["b"].asked == ["a00", "a01"]
    assert got.report.reasons("b") == {"admitted": 2, "over length": 2}


def test_a_real_policy_steps_on_what_was_kept_and_not_on_nothing(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"], "a")
    ids = ((70, 71, 72), (40, 41, 42))
    (old,) = policy.score([ids])
    before = policy.weights_sha256()
    assert _update(policy, GRAFT.bound("order")((), (), 1, RNG), GRAFT, 1) == []
    assert policy.weights_sha256() == before
    grafted = tiny.sequence(ids[1], old, 1.5, weight=0.9, source="b", prompt=ids[0])
    (metrics,) = _update(policy, (Minibatch(0, (grafted,)),), GRAFT, 1)
    # rho = 1: loss = -w a = -1.35
    assert metrics["loss"] == pytest.approx(-1.35, abs=1e-5)
    assert policy.weights_sha256() != before
    # Beside five tokens of a failed group (advantage 0, not even computed) it is diluted: -1.35 * 3 / 8 = -.50625.
    (old,) = policy.score([ids])
    failed = tiny.sequence((50, 51, 52, 53, 54), (-1.0,) * 5, 0.0)
    diluted = Minibatch(0, (failed, replace(grafted, old_logprobs=old)))
    assert _update(policy, (diluted,), GRAFT, 2)[0]["loss"] == pytest.approx(-0.50625, abs=1e-5)
