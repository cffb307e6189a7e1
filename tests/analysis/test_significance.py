"""Sign-flip test against full enumeration, Holm by hand and against its definition, Student's quantiles by integration."""

from __future__ import annotations

from itertools import product
from math import gamma, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from analysis.significance import EXACT_UP_TO, holm, sign_flip, t_95

ANY = np.random.default_rng(0)


def test_sign_flip_by_hand():
    # Differences 1, 2, 4: sum 7. Of the 8 sign vectors only +++ and --- reach |sum| 7 -> p = 2 / 8, the smallest there is.
    result = sign_flip(np.array([1.0, 2.0, 4.0]), ANY)
    assert (result.p, result.smallest_p, result.exact, result.flips) == (0.25, 0.25, True, 8)
    assert result.mean == pytest.approx(7 / 3)
    # 1, 2, -4: |sum| = 1. All vectors have |sum| in {7, 5, 3, 1} >= 1 -> p = 1.
    assert sign_flip(np.array([1.0, 2.0, -4.0]), ANY).p == 1.0
    # 3, 3, -1: |sum| 5; vectors with |sum| >= 5: +++ (7), ++- (5) and their mirrors -> 4 / 8.
    assert sign_flip(np.array([3.0, 3.0, -1.0]), ANY).p == 0.5


def test_sign_flip_degenerate():
    one = sign_flip(np.array([0.3]), ANY)
    assert (one.p, one.smallest_p) == (1.0, 1.0)  # one difference can never show anything
    none = sign_flip(np.zeros(4), ANY)
    assert (none.mean, none.p, none.smallest_p) == (0.0, 1.0, 1.0)
    # Zeros cannot flip: two differences leave 4 vectors, however many zeros stand beside them; the mean is over all.
    padded = sign_flip(np.array([1.0, 1.0, 0.0, 0.0]), ANY)
    assert (padded.mean, padded.p, padded.smallest_p) == (0.5, 0.5, 0.5)
    for wrong in ([], [np.nan, 1.0], [[1.0]]):
        with pytest.raises(ValueError, match="finite"):
            sign_flip(np.array(wrong), ANY)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-0.3, -0.1, 0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=9))
def test_sign_flip_is_the_full_enumeration(differences: list[float]):
    # Tenths added in different orders differ in their last bits, so the enumeration counts in whole tenths.
    tenths = [round(10 * d) for d in differences]
    sums = [abs(sum(s * t for s, t in zip(signs, tenths))) for signs in product((-1, 1), repeat=len(tenths))]
    expected = sum(x >= abs(sum(tenths)) for x in sums) / len(sums)
    result = sign_flip(np.array(differences), ANY)
    assert result.p == pytest.approx(expected, abs=1e-12)
    assert result.p >= result.smallest_p
    assert sign_flip(-np.array(differences), ANY).p == result.p


def test_monte_carlo_agrees_with_the_exact_test_and_never_gives_zero():
    d = np.random.default_rng(3).normal(0.25, 1, EXACT_UP_TO)
    exact = sign_flip(d, ANY)
    # One negligible difference more makes the same test Monte Carlo. Its error at 50,000 draws: sqrt(p (1-p) / 50000) < 0.0023.
    drawn = sign_flip(np.append(d, 1e-9), np.random.default_rng(4), draws=50_000)
    assert (exact.exact, drawn.exact, drawn.flips) == (True, False, 50_000)
    assert drawn.p == pytest.approx(exact.p, abs=0.01)
    sure = sign_flip(np.ones(60), np.random.default_rng(5), draws=999)
    assert sure.p == sure.smallest_p == 1 / 1000
    assert sign_flip(np.ones(60), np.random.default_rng(5), draws=999) == sure


def test_holm_by_hand():
    # Sorted 0.01, 0.03, 0.04 with m = 3: 3 * 0.01 = 0.03, 2 * 0.03 = 0.06, 1 * 0.04 -> raised to 0.06.
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03])), [0.06, 0.03, 0.06])
    np.testing.assert_allclose(holm(np.array([0.7, 0.6])), [1.0, 1.0])
    assert holm(np.array([0.2])).tolist() == [0.2]
    assert holm(np.array([])).tolist() == []
    for wrong in ([1.2], [np.nan], [-0.1]):
        with pytest.raises(ValueError, match="p-values"):
            holm(np.array(wrong))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.2))
def test_holm_rejects_what_the_step_down_rejects(p: list[float], alpha: float):
    adjusted = holm(np.array(p))
    # The definition: walk up the sorted p while p_(k) < alpha / (m - k).
    rejected = 0
    for k, value in enumerate(sorted(p)):
        if value * (len(p) - k) >= alpha:
            break
        rejected += 1
    assert (adjusted < alpha).sum() == rejected
    assert (adjusted >= np.array(p)).all()
    assert (adjusted <= 1).all()


@pytest.mark.parametrize("degrees", [1, 2, 4, 8, 15, 30])
def test_students_quantile_leaves_five_percent(degrees: int):
    # P(|T| <= t) by integrating the density; with 1 degree the tails are heavy, but the integral is over a bounded range.
    t = t_95(degrees)
    x = np.linspace(0, t, 200_001)
    density = gamma((degrees + 1) / 2) / (sqrt(degrees * pi) * gamma(degrees / 2)) * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    assert 2 * np.trapezoid(density, x) == pytest.approx(0.95, abs=2e-4)


def test_students_quantile_beyond_the_table():
    assert t_95(31) == t_95(10_000) == t_95(30)
    with pytest.raises(ValueError, match="no spread"):
        t_95(0)
