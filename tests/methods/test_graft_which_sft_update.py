"""SGT's 0.1 NLL of one success, drawn uniformly, on the prompts that GRAFT selects; the receiver's failed group stays."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, SGT = METHODS["graft_which_sft_update"], METHODS["sgt"]


def test_differs_from_sgt_in_the_selection_alone() -> None:
    assert METHOD.parent == "sgt"
    assert changed(METHOD, SGT) == {"selection"}
    assert METHOD.hyperparameters["nll_weight"] == 0.1


def test_one_success_joins_the_failed_group_in_its_place() -> None:
    got = at.moved(METHOD)
    assert at.names(at.trained(got, METHOD, "b")) == [["b0", "a00"], ["b1"], ["b2"], ["b3"], ["b4"]]
    assert at.names(at.trained(got, METHOD, "b", 3)) == [["b0", "a00", "b1", "b2"], ["b3", "b4"]]
    assert at.direction(got, "a", "b") == (1, 1, 1, 1, 1, 1)
    assert at.direction(got, "b", "a") == (1, 1, 1, 1, 1, 1)


def test_balanced_and_mixed_as_graft() -> None:
    # SGT takes p0, p1 (all correct) and p2; GRAFT: C_ab = p0 (3), p2 (1), C_ba = p3: m = 1, the larger count.
    counts = {"a": (3, 4, 1, 0), "b": (0, 0, 0, 1)}
    assert {k[:2] for k in at.weights(at.moved(SGT, counts), "b")} == {"a0", "a1", "a2"}
    assert {k[:2] for k in at.weights(at.moved(METHOD, counts), "b")} == {"a0"}
    assert at.moved(METHOD, {"a": (3, 4), "b": (0, 0)}).report.rows == ()


def test_successes_are_drawn_uniformly() -> None:
    # b has 3 of 4 on p1: 300 draws give 100 each, with a spread of 8; its failure never.
    made = at.groups(at.CROSSING)
    draws = [METHOD.bound("transfer")(made["a"][1], made["b"][1], np.random.default_rng(seed)) for seed in range(300)]
    assert all(d.keep_own and len(d.indices) == 1 for d in draws)
    seen = Counter(d.indices[0] for d in draws)
    assert set(seen) == {0, 1, 2}
    assert all(68 < c < 132 for c in seen.values())
    assert {name for seed in range(20) for name in at.weights(at.moved(METHOD, seed=seed), "a")} == {"b10", "b11", "b12"}


def test_no_gate_and_weight_one() -> None:
    got = at.moved(METHOD, scores={"a00": 0.001})
    assert at.weights(got, "b") == {"a00": 1.0}


def test_the_loss_is_two_means_side_by_side() -> None:
    # b's p0: 40 own tokens of advantage 0. a00 is 7 tokens, read at s = .5: log pi = -1 - .693147 = -1.693147.
    # loss = 0 + .1 * 1.693147; over all 47 tokens it would be .025217.
    got = at.moved(METHOD, scores={"a00": 0.5})
    minibatch = at.trained(got, METHOD, "b")[0]
    assert at.names([minibatch]) == [["b0", "a00"]]
    assert at.loss_at(METHOD, minibatch, at.loss_inputs(minibatch)) == pytest.approx(0.1693147, abs=1e-6)


def test_value_and_gradient_on_two_responses() -> None:
    # own a = 2, rho 1, 1.5 (clipped): J_own = (2 + 2.56) / 2 = 2.28. Peer: log-probs -1 + log .5, -1, -1 and a = -9 (unused):
    # NLL mean (1.693147 + 1 + 1) / 3 = 1.231049. loss = -2.28 + .1231049 = -2.156895.
    # dL/dlogp: own -2/2 = -1, 0; peer -.1/3 each.
    ratios = [[1, 1.5], [0.5, 1, 1]]
    minibatch = Minibatch(0, (at.row(ratios[0], 2.0), at.row(ratios[1], -9.0, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    assert at.loss_at(METHOD, minibatch, x) == pytest.approx(-2.156895, abs=1e-6)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-1, 0, -1 / 30, -1 / 30, -1 / 30], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_the_nll_is_a_mean_over_all_transferred_tokens() -> None:
    # 1 token at -3 and 3 tokens at -1: .1 * (3 + 3) / 4 = .15, not .1 * (3 + 1) / 2 = .2.
    one, three = at.row([1], 0.0, old=-3.0, peer=True), at.row([1, 1, 1], 0.0, peer=True)
    minibatch = Minibatch(0, (one, three))
    assert at.loss_at(METHOD, minibatch, at.loss_inputs(minibatch)) == pytest.approx(0.15, abs=1e-12)


def test_own_side_is_grpos_and_without_a_peer_nothing_else() -> None:
    got, grpo = at.moved(METHOD), at.moved(METHODS["grpo"])
    assert got.own == grpo.own
    minibatch = at.trained(got, METHOD, "b")[1]
    assert at.objective(METHOD, minibatch, [1.1] * 4) == at.objective(METHODS["grpo"], minibatch, [1.1] * 4) != 0


@pytest.mark.parametrize("counts", [{"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}, {"a": (2, 2), "b": (1, 1)}])
def test_nothing_moves_where_graft_moves_nothing(counts: dict[str, tuple[int, ...]]) -> None:
    got = at.moved(METHOD, counts)
    assert got.report.rows == ()
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"], ["b1"]]


def test_groups_of_one_are_never_mixed() -> None:
    assert not any(at.moved(METHOD, {"a": (1, 0), "b": (0, 1)}, n=1).peer.values())
