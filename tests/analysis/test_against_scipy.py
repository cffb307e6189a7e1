"""Our statistics against scipy's, where both are the same by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats as scipy_stats

from analysis.bootstrap import mean_interval
from analysis.significance import sign_flip, t_95
from analysis.stats import interquartile_mean, mean_and_std, probability_of_improvement

numbers = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 6))


@given(st.lists(numbers, min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_interquartile_mean_is_the_mean_trimmed_by_a_quarter(scores: list[float]):
    assert interquartile_mean(np.array([scores])) == pytest.approx(scipy_stats.trim_mean(scores, 0.25), abs=1e-9)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.lists(st.integers(0, 4), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_probability_of_improvement_is_mann_whitneys_u(ours: list[int], theirs: list[int]):
    u = scipy_stats.mannwhitneyu(ours, theirs).statistic
    mine = probability_of_improvement(np.array(ours, float)[:, None], np.array(theirs, float)[:, None])
    assert mine == pytest.approx(u / (len(ours) * len(theirs)))


@given(st.lists(numbers.filter(bool), min_size=2, max_size=9))
@settings(max_examples=60, deadline=None)
def test_sign_flip_is_the_exact_paired_permutation_test(differences: list[float]):
    def mean(x, axis):
        return np.mean(x, axis=axis)

    other = scipy_stats.permutation_test((differences,), mean, permutation_type="samples", n_resamples=np.inf, vectorized=True)
    assert sign_flip(np.array(differences), np.random.default_rng(0)).p == pytest.approx(other.pvalue)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 12, 29, 30])
def test_students_quantile(degrees: int):
    assert t_95(degrees) == pytest.approx(scipy_stats.t.ppf(0.975, degrees), abs=6e-4)


def test_std_is_the_sample_std():
    values = np.array([31.2, 30.9, 33.4, 29.8, 31.0])
    mean, std = mean_and_std(values)
    assert (mean, std) == (pytest.approx(scipy_stats.tmean(values)), pytest.approx(scipy_stats.tstd(values)))


def test_a_bootstrap_over_items_alone_is_the_percentile_bootstrap():
    rng = np.random.default_rng(5)
    items = rng.random(60)
    ours = mean_interval([items.reshape(1, 1, 60, 1)], ["items"], np.random.default_rng(1), draws=20_000)
    other = scipy_stats.bootstrap((items,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2))
    # Both are random: ends of 20,000 draws of a mean with standard error .037 differ by about .001.
    assert ours.low == pytest.approx(other.confidence_interval.low, abs=0.003)
    assert ours.high == pytest.approx(other.confidence_interval.high, abs=0.003)
