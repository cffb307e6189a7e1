"""GRAFT's minibatches in an order drawn each step; whole minibatches move, never prompts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["peer_uniform"], METHODS["graft"]


def test_differs_in_the_order_alone() -> None:
    assert changed(METHOD, GRAFT) == {"order"}


@pytest.mark.parametrize("prompts", [1, 2, 3])
def test_grafts_minibatches_and_no_others(prompts: int) -> None:
    got = at.moved(METHOD, scores={"a01": 0.9})
    expected = [m.sequences for m in at.trained(got, GRAFT, "b", prompts)]
    for seed in range(10):
        mine = at.trained(got, METHOD, "b", prompts, seed=seed)
        assert sorted(map(hash, (m.sequences for m in mine))) == sorted(map(hash, expected))
        assert [m.index for m in mine] == list(range(len(expected)))


def test_the_peer_minibatch_comes_at_every_place_equally_often() -> None:
    # Five minibatches, 400 draws: 80 at each place, with a spread of 8.
    got = at.moved(METHOD)
    places = Counter(at.names(at.trained(got, METHOD, "b", seed=seed)).index(["a0"]) for seed in range(400))
    assert sorted(places) == [0, 1, 2, 3, 4]
    assert all(48 < c < 112 for c in places.values())


def test_own_minibatches_move_too_and_prompts_stay_together() -> None:
    got = at.moved(METHOD)
    orders = {tuple(map(tuple, at.names(at.trained(got, METHOD, "b", 2, seed=seed)))) for seed in range(60)}
    # Three minibatches have six orders.
    assert len(orders) == 6
    assert {m for order in orders for m in order} == {("b1", "b2"), ("b3", "b4"), ("a0",)}


def test_a_draw_repeats() -> None:
    got = at.moved(METHOD)
    assert at.trained(got, METHOD, "b", seed=7) == at.trained(got, METHOD, "b", seed=7)


def test_eq_10_is_the_same_at_every_place() -> None:
    # p0: (1.5*7 - .5*33) / 40 = -.15, whether it comes first or last.
    got = at.moved(METHOD)
    for seed in range(6):
        minibatches = at.trained(got, METHOD, "b", seed=seed)
        (grafted,) = [m for m in minibatches if m.sequences[0].is_peer]
        assert at.objective(METHOD, grafted) == pytest.approx(-0.15, abs=1e-5)


def test_gradient_on_two_responses() -> None:
    # own a = 1, rho 1.5 (clipped), 1; peer a = -1, w = .85, rho 2. -w rho a / 3: 0, -1/3, 1.7/3.
    ratios = [[1.5, 1], [2]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0), at.row(ratios[1], -1.0, weight=0.85, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([0, -1 / 3, 1.7 / 3], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_a_group_dropped_whole_leaves_four_to_order() -> None:
    got = at.moved(METHOD, scores={f"a0{j}": 0.5 for j in range(4)})
    for seed in range(5):
        minibatches = at.trained(got, METHOD, "b", seed=seed)
        assert sorted(at.names(minibatches)) == [["b1"], ["b2"], ["b3"], ["b4"]]
        assert [m.index for m in minibatches] == [0, 1, 2, 3]


def test_nothing_to_order() -> None:
    assert METHOD.bound("order")((), (), 2, np.random.default_rng(0)) == ()
    got = at.moved(METHOD, {"a": (1,), "b": (0,)})
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"]]
