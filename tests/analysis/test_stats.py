from __future__ import annotations

import numpy as np
import pytest

from analysis.stats import aggregate, majority, mean_and_std, pass_at_1, pass_at_k, run_means


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


def test_pass_at_k_by_hand():
    # one run, items with c = 1 and c = 3 of n = 4
    # k = 2: 1 - C(3,2)/C(4,2) = 1 - 3/6 = 0.5; 1 - C(1,2)/C(4,2) = 1 - 0 = 1 -> mean 0.75
    # k = 4: any correct sample: 1 and 1; k = 1: 1/4 and 3/4 -> 0.5
    correct = np.array([[[1, 0, 0, 0], [1, 1, 0, 1]]])
    np.testing.assert_allclose([pass_at_k(correct, k)[0] for k in (1, 2, 4)], [0.5, 0.75, 1.0])
    # n = 8, c = 2, k = 4: 1 - C(6,4)/C(8,4) = 1 - 15/70 = 0.785714...
    assert pass_at_k(np.array([[[1, 1, 0, 0, 0, 0, 0, 0]]]), 4)[0] == pytest.approx(55 / 70)
    # c = 0 is 0 for every k
    assert [pass_at_k(np.zeros((1, 1, 8)), k)[0] for k in (1, 2, 4, 8)] == [0.0, 0.0, 0.0, 0.0]


def test_pass_at_1_is_pass_at_k_with_k_1():
    correct = np.random.default_rng(0).integers(0, 2, (3, 5, 8))
    np.testing.assert_allclose(pass_at_k(correct, 1), pass_at_1(correct))
    increasing = [pass_at_k(correct, k).mean() for k in (1, 2, 4, 8)]
    assert increasing == sorted(increasing)


def test_pass_at_k_is_the_mean_over_all_draws():
    from itertools import combinations

    row = [1, 0, 0, 1, 0, 0, 1, 0]
    drawn = [any(row[i] for i in draw) for draw in combinations(range(8), 4)]
    assert pass_at_k(np.array([[row]]), 4)[0] == pytest.approx(np.mean(drawn))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_refuses_more_than_there_are(k: int):
    with pytest.raises(ValueError, match="1 to 4"):
        pass_at_k(np.zeros((1, 1, 4)), k)


def vote(answers: list, correct: list[int]) -> float:
    return float(majority(np.array([[answers]], dtype=object), np.array([[correct]]))[0])


def test_majority_by_hand():
    assert vote(["7", "7", "8", "9"], [0, 0, 1, 0]) == 0.0
    assert vote(["7", " 7 ", "8", "9"], [1, 1, 0, 0]) == 1.0  # white space does not split a vote
    # 7 and 8 tie with two votes each, one of the two is right; 9 has one vote
    assert vote(["7", "7", "8", "8", "9"], [1, 1, 0, 0, 0]) == 0.5
    # a tie of three, two of them right (written differently): 2 / 3
    assert vote(["1/2", "0.5", "3"], [1, 1, 0]) == pytest.approx(2 / 3)
    # samples without an answer do not vote, however many they are
    assert vote([None, None, None, "7"], [0, 0, 0, 1]) == 1.0
    assert vote([None, None], [0, 0]) == 0.0
    # of four equal answers one verdict was lost to a timeout
    assert vote(["7"] * 4, [1, 1, 0, 1]) == 0.75


def test_majority_is_a_mean_over_items_per_run():
    answers = np.array([[["1", "1"], ["2", "2"]], [["1", "1"], ["3", "3"]]], dtype=object)
    correct = np.array([[[1, 1], [0, 0]], [[1, 1], [1, 1]]])
    np.testing.assert_array_equal(majority(answers, correct), [0.5, 1.0])
    with pytest.raises(ValueError, match="one answer per verdict"):
        majority(answers[:, :1], correct)


def test_run_means_by_hand():
    # run 0: items (2 + 4) / 2 = 3 and (6 + 8) / 2 = 7 -> 5; run 1: all 1 -> 1
    np.testing.assert_array_equal(run_means(np.array([[[2, 4], [6, 8]], [[1, 1], [1, 1]]])), [5.0, 1.0])
    with pytest.raises(ValueError, match="missing"):
        run_means(np.array([[[np.nan]]]))
