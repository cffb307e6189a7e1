"""Point estimates: no files, no frames, no percent. pass@1 and its kin are over ``[runs, items, samples]``, shares over ``[steps]``.

Intervals are in ``bootstrap``, tests in ``significance``; both build on the estimates here.

"Runs" are the evaluation runs of ONE checkpoint. All functions refuse NaN: whoever calls them has already set short runs aside,
so a mean never has a smaller divisor than the recipe asked for.
"""

from __future__ import annotations

from collections import defaultdict
from math import comb

import numpy as np


def _whole(values: np.ndarray, ndim: int, what: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim or array.size == 0:
        raise ValueError(f"{what} needs a non-empty array of {ndim} axes, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: a value is missing or not finite; leave the short run out and count it instead")
    return array


def pass_at_1(correct: np.ndarray) -> np.ndarray:
    """pass@1 of every evaluation run: ``[runs, items, samples]`` of 0/1 -> ``[runs]`` in 0..1.

    Mean over samples, then over items. With the same number of samples for every item this is also the mean over all rows.
    """
    return _verdicts(correct, "pass@1").mean(axis=2).mean(axis=1)


def _verdicts(correct: np.ndarray, what: str) -> np.ndarray:
    array = _whole(correct, 3, what)
    if not np.isin(array, (0.0, 1.0)).all():
        raise ValueError(f"{what} is over verdicts, which are 0 or 1")
    return array


def pass_at_k(correct: np.ndarray, k: int) -> np.ndarray:
    """pass@k of every evaluation run: ``[runs, items, samples]`` of 0/1 -> ``[runs]`` in 0..1, mean over items.

    Unbiased estimator of Chen et al. 2021 (Codex), eq. 1: with c of an item's n samples correct, 1 - C(n-c, k) / C(n, k), the
    chance that k samples drawn without replacement hold a correct one. k = 1 is pass@1. ValueError for k outside 1..n.
    """
    array = _verdicts(correct, f"pass@{k}")
    n = array.shape[2]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 to {n} as k, the number of samples per item")
    # comb(m, k) is 0 for m < k: fewer than k wrong samples always leave a correct one among k. The counts stay integers.
    by_count = np.array([1 - comb(n - c, k) / comb(n, k) for c in range(n + 1)])
    return by_count[array.sum(axis=2).astype(np.int64)].mean(axis=1)


def majority(answers: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """maj@n of every evaluation run, n = all samples: ``[runs, items, samples]`` of texts or None, and of 0/1 -> ``[runs]``.

    Samples vote with their extracted answers; answers are one if their texts are equal without white space ("1/2" and "0.5" are
    two: telling them apart by the gold would let the gold vote). Samples without an answer do not vote; an item without any vote
    is wrong. A tie counts the share of the tied answers that are correct, the expectation of drawing one of them: no order decides.
    """
    verdicts = _verdicts(correct, "majority")
    texts = np.asarray(answers, dtype=object)
    if texts.shape != verdicts.shape:
        raise ValueError(f"majority needs one answer per verdict, got shapes {texts.shape} and {verdicts.shape}")
    scores = [[_vote(*item) for item in zip(*run)] for run in zip(texts, verdicts)]
    return np.array(scores).mean(axis=1)


def _vote(answers: np.ndarray, correct: np.ndarray) -> float:
    """Verdict of one item's majority. The verdicts of an answer are averaged: they differ only if one was lost to a timeout."""
    votes: dict[str, list[float]] = defaultdict(list)
    for answer, verdict in zip(answers, correct):
        if answer is not None:
            votes["".join(answer.split())].append(verdict)
    most = max(map(len, votes.values()), default=0)
    tied = [sum(v) / most for v in votes.values() if len(v) == most]
    return sum(tied) / len(tied) if tied else 0.0


def run_means(values: np.ndarray) -> np.ndarray:
    """Mean over samples, then items, of any quantity (tokens; 0/1 flags give a share): ``[runs, items, samples]`` -> ``[runs]``."""
    return _whole(values, 3, "mean over samples and items").mean(axis=2).mean(axis=1)


def aggregate(per_benchmark: np.ndarray) -> np.ndarray:
    """``[benchmarks, runs]`` -> ``[runs]``: unweighted mean over benchmarks, whatever their sizes, run by run.

    The std of the aggregate is taken over these per-run values; it is not a mean of the benchmarks' stds.
    """
    return _whole(per_benchmark, 2, "aggregate").mean(axis=0)


def mean_and_std(values: np.ndarray) -> tuple[float, float | None]:
    """Mean and SAMPLE standard deviation (divisor n - 1) of ``[runs]``. With one run the std is None: unknown, not zero."""
    array = _whole(values, 1, "mean and std")
    if array.size == 1:
        return float(array[0]), None
    if (array == array[0]).all():
        # The mean of equal floats may round to a neighbour; equal runs have std exactly 0 and are flagged as such.
        return float(array[0]), 0.0
    return float(array.mean()), float(array.std(ddof=1))


def item_differences(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Paired differences of two arms on the same items: ``[runs, items, samples]`` of 0/1, twice -> ``[items]`` in -1..1.

    Each is the item's mean over our runs and samples minus that over theirs; runs and samples may differ in number, they are not
    paired. The mean of the result is the difference of the arms' mean pass@1. ValueError unless both have the same number of
    items; that item i is the same one in both is the caller's to see to.
    """
    a, b = _verdicts(ours, "paired differences"), _verdicts(theirs, "paired differences")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"paired differences need the same items in both arms, got {a.shape[1]} and {b.shape[1]}")
    return a.mean(axis=(0, 2)) - b.mean(axis=(0, 2))


def interquartile_mean(scores: np.ndarray) -> float:
    """IQM of ``[runs, tasks]``: mean of the middle half of all runs x tasks scores together.

    Agarwal et al. 2021 (rliable), section 4.3: the mean trimmed by a quarter at each end. As there, floor(n / 4) scores are cut at
    each end, so with n not a multiple of 4 slightly more than half remain; up to 3 scores give the plain mean.
    """
    return float(middle_half(_whole(scores, 2, "IQM").reshape(1, -1))[0])


def middle_half(scores: np.ndarray) -> np.ndarray:
    """``[draws, n]`` -> ``[draws]``: the mean of each line without its floor(n / 4) lowest and highest."""
    n = scores.shape[1]
    cut = n // 4
    # Only the two borders need their place; a full sort would take several times as long.
    parted = np.partition(scores, sorted({cut, n - cut - 1}), axis=1)
    return parted[:, cut : n - cut].mean(axis=1)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """P(X > Y): ``[runs, tasks]``, twice -> 0..1, mean over tasks; the numbers of runs may differ.

    Per task the share of all (our run, their run) pairs that we win, ties as half: the Mann-Whitney U over its greatest value
    (Agarwal et al. 2021, section 4.3). 0.5 says nothing is gained. It counts how often, not by how much.
    """
    a, b = _whole(ours, 2, "probability of improvement"), _whole(theirs, 2, "probability of improvement")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"probability of improvement needs the same tasks in both arms, got {a.shape[1]} and {b.shape[1]}")
    wins = np.sign(a[:, None, :] - b[None, :, :])
    return float((wins.mean(axis=(0, 1)).mean() + 1) / 2)


def _counts(part: np.ndarray, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    part, whole = np.asarray(part, dtype=np.int64), np.asarray(whole, dtype=np.int64)
    if part.ndim != 1 or part.shape != whole.shape or part.size == 0:
        raise ValueError(f"shares need two non-empty arrays [steps], got shapes {part.shape} and {whole.shape}")
    if (part < 0).any() or (part > whole).any():
        raise ValueError("a part is negative or larger than its whole")
    return part, whole


def pooled_share(part: np.ndarray, whole: np.ndarray) -> float | None:
    """sum of parts / sum of wholes over ``[steps]``: every token weighs the same. None if there are no tokens."""
    part, whole = _counts(part, whole)
    return float(part.sum() / whole.sum()) if whole.sum() else None


def mean_share(part: np.ndarray, whole: np.ndarray) -> float | None:
    """Mean over ``[steps]`` of part / whole: every step with tokens weighs the same, steps without are left out. None if all are."""
    part, whole = _counts(part, whole)
    some = whole > 0
    return float((part[some] / whole[some]).mean()) if some.any() else None


def zero_share(part: np.ndarray, whole: np.ndarray) -> float | None:
    """Share of ``[steps]`` with tokens whose part is 0. None if no step has tokens: a step without any proves nothing."""
    part, whole = _counts(part, whole)
    some = whole > 0
    return float((part[some] == 0).mean()) if some.any() else None
