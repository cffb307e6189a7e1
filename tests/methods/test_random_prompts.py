"""Per direction as many prompts as GRAFT selects, drawn from the whole batch; then GRAFT's weighting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["random_prompts"], METHODS["graft"]
SEEDS = range(400)


def drawn(counts: dict[str, tuple[int, ...]], seed: int, source: str, receiver: str) -> list[str]:
    chosen = METHOD.bound("selection")(at.groups(counts), np.random.default_rng(seed))
    return list(chosen.selected[source, receiver])


def test_differs_in_the_selection_alone() -> None:
    assert changed(METHOD, GRAFT) == {"selection"}


def test_every_prompt_is_drawn_equally_often_whatever_its_rewards() -> None:
    # One of five prompts per direction: 400 draws give 80 each, with a spread of 8 (sqrt(400 * .2 * .8)).
    for source, receiver in (("a", "b"), ("b", "a")):
        seen = Counter(q for seed in SEEDS for q in drawn(at.CROSSING, seed, source, receiver))
        assert sum(seen.values()) == 400
        assert all(48 < seen[f"p{i}"] < 112 for i in range(5))


def test_directions_are_drawn_apart() -> None:
    pairs = {(*drawn(at.CROSSING, s, "a", "b"), *drawn(at.CROSSING, s, "b", "a")) for s in SEEDS}
    # All 25 pairs of prompts occur in 400 draws (each is missed with probability .96^400 < 1e-7).
    assert len(pairs) == 25


def test_as_many_as_graft_ties_included_without_repeats() -> None:
    # C_ab = p0, p1 with one success each, C_ba = p2: m = 1, ties make two there, one back.
    counts = {"a": (1, 1, 0, 2), "b": (0, 0, 3, 2)}
    for seed in range(20):
        assert len(set(drawn(counts, seed, "a", "b"))) == 2
        assert len(drawn(counts, seed, "b", "a")) == 1
    d = at.direction(at.moved(METHOD, counts), "a", "b")
    assert d == (2, 2, 2, 2, 8, 8)  # candidates are GRAFT's; m is the number drawn


def test_nothing_is_drawn_where_graft_selects_nothing() -> None:
    for counts in ({"a": (1, 1), "b": (0, 0)}, {"a": (4, 0), "b": (0, 4)}, {"a": (1, 2), "b": (2, 2)}):
        got = at.moved(METHOD, counts)
        assert got.report.rows == ()
        assert at.names(at.trained(got, METHOD, "a")) == [["a0"], ["a1"]]


def situation(prompt: str) -> tuple[int, list[float]]:
    """(seed, b's peer advantages) of the first draw that hands ``prompt`` from a to b."""
    seed = next(s for s in SEEDS if drawn(at.CROSSING, s, "a", "b") == [prompt])
    return seed, list(at.advantages(at.moved(METHOD, seed=seed), "b").values())


def test_even_a_mixed_own_group_is_replaced_and_a_failed_source_teaches_nothing() -> None:
    # p4: b has 2 of 4 and loses them to a's 2 of 4 (+-.866024).
    seed, values = situation("p4")
    assert values == pytest.approx([0.866024, 0.866024, -0.866024, -0.866024], abs=1e-6)
    got = at.moved(METHOD, seed=seed)
    assert at.names(at.trained(got, METHOD, "b")) == [["b0"], ["b1"], ["b2"], ["b3"], ["a4"]]
    # p1: a has no success; p3: a is all correct. Advantage 0 over real tokens.
    for prompt in ("p1", "p3"):
        seed, values = situation(prompt)
        assert values == [0.0] * 4
        minibatch = at.trained(at.moved(METHOD, seed=seed), METHOD, "b")[-1]
        assert minibatch.tokens == 40
        assert at.objective(METHOD, minibatch, [1.7] * 4) == 0.0


def test_normal_weighting_and_eq_10() -> None:
    # p4: a = .866024, .866024, -.866024, -.866024 on 7, 9, 11, 13 tokens; s = .9, .5 (dropped), 2 (w = 1), .85:
    # J = .866024 (.9*7 - 11 - .85*13) / (7 + 11 + 13) = .866024 * -15.75 / 31 = -.439996.
    seed, _ = situation("p4")
    got = at.moved(METHOD, scores={"a40": 0.9, "a41": 0.5, "a42": 2.0, "a43": 0.85}, seed=seed)
    minibatch = at.trained(got, METHOD, "b")[-1]
    assert at.weights(got, "b") == {"a40": pytest.approx(0.9), "a42": 1.0, "a43": pytest.approx(0.85)}
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.439996, abs=1e-5)
    dropped = at.moved(METHOD, scores={f"a4{j}": 0.5 for j in range(4)}, seed=seed)
    assert at.names(at.trained(dropped, METHOD, "b")) == [["b0"], ["b1"], ["b2"], ["b3"]]


def test_gradient_on_two_responses() -> None:
    # own a = 1, rho .5; peer a = -1, w = .95, rho 1, 1.5. dL/dlogp = -w rho a / 3.
    ratios = [[0.5], [1, 1.5]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0), at.row(ratios[1], -1.0, weight=0.95, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-0.5 / 3, 0.95 / 3, 1.425 / 3], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)
