from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from analysis.stats import (
    aggregate,
    interquartile_mean,
    item_differences,
    majority,
    mean_and_std,
    pass_at_1,
    pass_at_k,
    probability_of_improvement,
    run_means,
)


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


def test_item_differences_by_hand():
    # Item 0: ours 3 of 4 (two runs of 2), theirs 1 of 2 -> 0.25. Item 1: ours 1 of 4, theirs 2 of 2 -> -0.75.
    ours = np.array([[[1, 1], [0, 0]], [[1, 0], [0, 1]]])
    theirs = np.array([[[1, 0], [1, 1]]])
    np.testing.assert_array_equal(item_differences(ours, theirs), [0.25, -0.75])
    # Their mean is the difference of the pass@1: ours (3 + 1) / 8, theirs 3 / 4.
    assert item_differences(ours, theirs).mean() == pass_at_1(ours).mean() - pass_at_1(theirs).mean() == -0.25
    with pytest.raises(ValueError, match="same items"):
        item_differences(ours, theirs[:, :1])
    with pytest.raises(ValueError, match="missing"):
        item_differences(np.array([[[np.nan]]]), np.array([[[1.0]]]))


def test_interquartile_mean_by_hand():
    # 1 .. 8: floor(8 / 4) = 2 cut at each end, mean of 3 4 5 6 = 4.5; the outlier does not enter.
    assert interquartile_mean(np.array([[8, 1], [2, 7], [6, 3], [4, 5]])) == 4.5
    assert interquartile_mean(np.array([[800, 1], [2, 7], [6, 3], [4, 5]])) == 4.5
    # Six scores: one cut at each end, mean of 2 3 4 9 = 4.5. Three: nothing is cut.
    assert interquartile_mean(np.array([[1, 2, 3], [4, 9, 100]])) == 4.5
    assert interquartile_mean(np.array([[1, 2, 9]])) == 4.0
    with pytest.raises(ValueError, match="missing"):
        interquartile_mean(np.array([[1.0, np.nan]]))


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(-5, 5), st.integers(1, 4))
def test_interquartile_mean_is_the_trimmed_mean_and_moves_with_the_scores(scores: list[int], shift: int, scale: int):
    cut = len(scores) // 4
    middle = sorted(scores)[cut : len(scores) - cut]
    iqm = interquartile_mean(np.array([scores]))
    assert iqm == pytest.approx(sum(middle) / len(middle))
    assert interquartile_mean(scale * np.array([scores]).T + shift) == pytest.approx(scale * iqm + shift)


def test_probability_of_improvement_by_hand():
    # Task 0: ours 1, 3 against 2, 3: 1<2, 1<3, 3>2, 3=3 -> (1 + 0.5) / 4 = 0.375. Task 1: both ours above both theirs -> 1.
    ours, theirs = np.array([[1, 5], [3, 6]]), np.array([[2, 0], [3, 1]])
    assert probability_of_improvement(ours, theirs) == (0.375 + 1) / 2
    assert probability_of_improvement(np.ones((1, 2)), np.ones((3, 2))) == 0.5
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement(ours, theirs[:, :1])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_probability_of_improvement_counts_pairs(ours: list[int], theirs: list[int]):
    wins = sum((a > b) + (a == b) / 2 for a in ours for b in theirs) / (len(ours) * len(theirs))
    a, b = np.array(ours)[:, None], np.array(theirs)[:, None]
    assert probability_of_improvement(a, b) == pytest.approx(wins)
    assert probability_of_improvement(b, a) == pytest.approx(1 - wins)
