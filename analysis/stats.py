"""Pure statistics: no files, no frames, no percent. pass@1 is over arrays ``[runs, items, samples]``, shares over ``[steps]``.

"Runs" are the evaluation runs of ONE checkpoint. All functions refuse NaN: whoever calls them has already set short runs aside,
so a mean never has a smaller divisor than the recipe asked for.
"""

from __future__ import annotations

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
    array = _whole(correct, 3, "pass@1")
    if not np.isin(array, (0.0, 1.0)).all():
        raise ValueError("pass@1 is over verdicts, which are 0 or 1")
    return array.mean(axis=2).mean(axis=1)


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
