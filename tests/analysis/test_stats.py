from __future__ import annotations

import numpy as np
import pytest

from analysis.stats import aggregate, mean_and_std, pass_at_1


def test_pass_at_1_by_hand():
    # run 0: item 0 has 1 of 2, item 1 has 2 of 2 -> (0.5 + 1) / 2 = 0.75; run 1: 0 of 2 and 1 of 2 -> 0.25
    correct = np.array([[[1, 0], [1, 1]], [[0, 0], [0, 1]]])
    np.testing.assert_array_equal(pass_at_1(correct), [0.75, 0.25])


def test_pass_at_1_refuses_missing_values_and_non_verdicts():
    with pytest.raises(ValueError, match="missing"):
        pass_at_1(np.array([[[1.0, np.nan]]]))
    with pytest.raises(ValueError, match="0 or 1"):
        pass_at_1(np.array([[[0.5]]]))
    with pytest.raises(ValueError, match="3 axes"):
        pass_at_1(np.array([[1.0, 0.0]]))
    with pytest.raises(ValueError, match="non-empty"):
        pass_at_1(np.empty((0, 2, 2)))


def test_std_divides_by_n_minus_1():
    # values 30, 32, 31, 33, 34: mean 32; squared deviations 4 + 0 + 1 + 1 + 4 = 10; 10 / (5 - 1) = 2.5; sqrt = 1.58113883
    # (divisor n would give sqrt(2) = 1.41421356)
    mean, std = mean_and_std(np.array([30.0, 32.0, 31.0, 33.0, 34.0]))
    assert mean == 32.0
    assert std == pytest.approx(1.58113883, abs=1e-8)


def test_one_run_has_no_std_and_equal_runs_have_exactly_zero():
    assert mean_and_std(np.array([12.5])) == (12.5, None)
    assert mean_and_std(np.array([0.1, 0.1, 0.1])) == (0.1, 0.0)
    with pytest.raises(ValueError, match="non-empty"):
        mean_and_std(np.array([]))


def test_aggregate_ignores_benchmark_sizes_and_goes_run_by_run():
    # two benchmarks, three runs: (0.2 + 0.6) / 2 = 0.4, (0.4 + 0.4) / 2 = 0.4, (0.6 + 0.2) / 2 = 0.4
    per_run = aggregate(np.array([[0.2, 0.4, 0.6], [0.6, 0.4, 0.2]]))
    np.testing.assert_allclose(per_run, [0.4, 0.4, 0.4])
    # std of the aggregate, not mean of the benchmarks' stds (which would be 0.2)
    assert mean_and_std(per_run)[1] == pytest.approx(0.0, abs=1e-12)
