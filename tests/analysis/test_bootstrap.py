"""Bootstrap intervals: which noise they show, pairing, by-hand variances, and the stratified bootstraps against their definition."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from analysis.bootstrap import (
    LEVELS,
    _item_means,
    _mean_draws,
    difference_interval,
    improvement_interval,
    iqm_interval,
    mean_interval,
)

Z = 1.959964  # two-sided 95 % quantile of the normal distribution


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def verdicts(*shape: int, share: float = 0.4, seed: int = 1) -> np.ndarray:
    return (rng(seed).random(shape) < share).astype(float)


def test_value_is_the_estimate_and_benchmarks_weigh_the_same():
    # Benchmark 1: 4 items, all right -> 1. Benchmark 2: 2 items, one right -> 0.5. Unweighted: 0.75 (by items it would be 5 / 6).
    one, two = np.ones((1, 2, 4, 1)), np.array([[[[1.0], [0.0]], [[1.0], [0.0]]]])
    interval = mean_interval([one, two], ["items"], rng(), draws=4000)
    assert interval.value == 0.75
    # Only benchmark 2 varies: of its 2 items 0, 1 or 2 draws are right with chance 1/4, 1/2, 1/4 -> 0.5, 0.75, 1.
    assert (interval.low, interval.high) == (0.5, 1.0)
    assert (interval.draws, interval.confidence) == (4000, 0.95)


@pytest.mark.parametrize(
    ("levels", "noise"),
    [
        (["runs"], "noise of evaluation runs; training runs and items held fixed"),
        (["items", "seeds"], "noise of training runs and items; evaluation runs held fixed"),
        (list(LEVELS), "noise of training runs and evaluation runs and items"),
    ],
)
def test_the_interval_says_which_noise_it_shows(levels: list[str], noise: str):
    assert mean_interval([verdicts(2, 3, 5, 4)], levels, rng(), draws=100).noise == noise


def test_only_the_levels_drawn_again_widen_the_interval():
    # Runs and items differ, training runs are equal copies: drawing the latter again gives the estimate every time.
    copies = np.broadcast_to(verdicts(1, 4, 6, 2), (3, 4, 6, 2))
    fixed = mean_interval([copies], ["seeds"], rng(), draws=500)
    assert fixed.low == pytest.approx(fixed.value, abs=1e-12)
    assert fixed.high == pytest.approx(fixed.value, abs=1e-12)
    assert mean_interval([copies], ["runs"], rng(), draws=500).low < fixed.value - 0.01
    # Items alike in every run: no item noise.
    alike = np.broadcast_to(np.array([0.0, 1.0])[None, :, None, None], (1, 2, 7, 1))
    flat = mean_interval([alike], ["items"], rng(), draws=500)
    assert flat.high - flat.low < 1e-12


@pytest.mark.parametrize("level", list(LEVELS))
def test_width_is_the_standard_error_of_that_level(level: str):
    # Level of 40 values v, all else single or constant: the bootstrap's variance of the mean is var(v, divisor n) / n.
    v = rng(3).normal(size=40)
    shape = {"seeds": (40, 1, 1, 1), "runs": (1, 40, 1, 1), "items": (1, 1, 40, 1)}[level]
    interval = mean_interval([v.reshape(shape)], [level], rng(4), draws=20_000)
    assert (interval.high - interval.low) / 2 == pytest.approx(Z * v.std() / 40**0.5, rel=0.04)


def test_runs_are_nested_in_seeds():
    # Two training runs at 0 and 1, their evaluation runs at +-0.1: var = between / 2 + within / 4
    # = 0.25 / 2 + 0.01 / 4 = 0.1275 (divisor n at each level). Crossed runs would give 0.25 / 2 + 0.01 / 2 = 0.13.
    x = np.array([[-0.1, 0.1], [0.9, 1.1]]).reshape(2, 2, 1, 1)
    drawn = _mean_draws(_item_means([x]), ["seeds", "runs"], rng(6), [None], 50_000)
    assert drawn.mean() == pytest.approx(0.5, abs=0.006)
    assert drawn.var() == pytest.approx(0.1275, abs=0.0015)


def test_differences_are_paired_by_item():
    # Arms alike on every item: whatever items are drawn, the difference is 0. Items alone of one arm vary widely.
    arm = verdicts(1, 3, 50, 8)
    same = difference_interval([arm], [arm], ["items"], rng(), draws=1000)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    alone = mean_interval([arm], ["items"], rng(), draws=1000)
    assert alone.high - alone.low > 0.02
    # A constant gain on every item stays exact, with other numbers of runs and samples in the second arm.
    shifted = difference_interval([arm + 0.25], [arm.mean(axis=(1, 3), keepdims=True)], ["items"], rng(), draws=1000)
    assert shifted.low == pytest.approx(0.25, abs=1e-12)
    assert shifted.high == pytest.approx(0.25, abs=1e-12)


def test_runs_of_two_arms_are_drawn_independently():
    # Equal arms, runs drawn again: the difference varies with twice the variance of one arm, it is not 0.
    v = rng(7).normal(size=(1, 30, 1, 1))
    pair = difference_interval([v], [v], ["runs"], rng(8), draws=20_000)
    assert (pair.high - pair.low) / 2 == pytest.approx(Z * v.std() * (2 / 30) ** 0.5, rel=0.04)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(2, 6), st.integers(1, 3), st.integers(0, 10_000))
def test_interval_lies_within_the_scores_and_repeats_with_the_seed(s: int, r: int, i: int, k: int, seed: int):
    x = verdicts(s, r, i, k, seed=seed)
    a, b = (mean_interval([x], list(LEVELS), rng(seed), draws=200) for _ in range(2))
    assert a == b
    means = x.mean(axis=3)
    assert means.min() - 1e-12 <= a.low <= a.high <= means.max() + 1e-12
    # Swapping the arms mirrors the difference.
    y = verdicts(s, r, i, k, seed=seed + 1)
    d = difference_interval([x], [y], ["items"], rng(seed), draws=200)
    e = difference_interval([y], [x], ["items"], rng(seed), draws=200)
    assert (d.low, d.high) == pytest.approx((-e.high, -e.low), abs=1e-9)


def test_refusals():
    x = verdicts(1, 3, 4, 2)
    with pytest.raises(ValueError, match="one or more of"):
        mean_interval([x], [], rng())
    with pytest.raises(ValueError, match="one or more of"):
        mean_interval([x], ["tasks"], rng())
    with pytest.raises(ValueError, match="one of training runs cannot show"):
        mean_interval([x], ["seeds"], rng())
    with pytest.raises(ValueError, match="missing"):
        mean_interval([np.full((1, 2, 3, 1), np.nan)], ["runs"], rng())
    with pytest.raises(ValueError, match="non-empty"):
        mean_interval([x[0]], ["runs"], rng())
    with pytest.raises(ValueError, match="differ in their numbers"):
        mean_interval([x, x[:, :2]], ["runs"], rng())
    with pytest.raises(ValueError, match="same benchmarks and items"):
        difference_interval([x], [x[:, :, :2]], ["items"], rng())
    with pytest.raises(ValueError, match="confidence"):
        mean_interval([x], ["runs"], rng(), draws=10, confidence=95)
    with pytest.raises(ValueError, match="one run"):
        iqm_interval(np.ones((1, 3)), rng())


def test_iqm_draws_stay_within_their_task():
    # Task 0 is always 0, task 1 always 1: drawn for every task on its own, the mixture never changes. (Whole-table draws of
    # runs x tasks would.) IQM of 0 0 0 0 1 1 1 1: two cut at each end, mean of 0 0 1 1 = 0.5.
    scores = np.tile([0.0, 1.0], (4, 1))
    interval = iqm_interval(scores, rng(), draws=500)
    assert (interval.value, interval.low, interval.high) == (0.5, 0.5, 0.5)
    # One task of two runs 0 and 1 (n = 2, nothing is cut): draws are 0, 0.5 or 1.
    spread = iqm_interval(np.array([[0.0], [1.0]]), rng(), draws=2000)
    assert (spread.low, spread.high) == (0.0, 1.0)
    assert "tasks held fixed" in spread.noise


def test_improvement_interval_by_hand():
    # We have 0 and 2, they have 1 and 1: P = 1/2. Drawn again we have (0,0), (0,2), (2,0), (2,2): P = 0, 1/2, 1/2, 1.
    interval = improvement_interval(np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]), rng(), draws=4000)
    assert (interval.value, interval.low, interval.high) == (0.5, 0.0, 1.0)
    sure = improvement_interval(np.full((3, 2), 2.0), np.ones((2, 2)), rng(), draws=100)
    assert (sure.value, sure.low, sure.high) == (1.0, 1.0, 1.0)


def test_ten_thousand_draws_in_under_a_second():
    x = verdicts(1, 5, 100, 8)
    seconds = []
    for _ in range(3):  # the best of three: other work on the machine is not what is measured
        start = time.perf_counter()
        mean_interval([x], ["runs", "items"], rng(), draws=10_000)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1
