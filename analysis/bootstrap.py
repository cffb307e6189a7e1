"""Bootstrap intervals that say which noise they show. Percentile intervals; the Generator is the caller's.

Scores are ``[seeds, runs, items, samples]``: training runs, evaluation runs of each, items, responses. Which levels are drawn
again is the caller's choice, and it is the meaning of the interval: a level that is held fixed adds nothing to its width.
Seeds and runs are nested (each drawn training run draws its own evaluation runs), items are crossed (all runs answer the same
drawn items). Responses are averaged first: their noise is part of that of the evaluation runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.stats import interquartile_mean, middle_half, probability_of_improvement

# Level -> the noise that drawing it again shows. In the order of the axes.
LEVELS = {"seeds": "training runs", "runs": "evaluation runs", "items": "items"}
DRAWS = 10_000
# Whether the runs given are training or evaluation runs, only the caller knows.
STRATIFIED = "noise of the given runs, drawn for every task on its own; tasks held fixed"


@dataclass(frozen=True)
class Interval:
    """``value``: the estimate itself, not the mean of the draws. ``noise``: in words, what was drawn again and what was not."""

    value: float
    low: float
    high: float
    confidence: float
    draws: int
    noise: str


def mean_interval(
    scores: Sequence[np.ndarray], levels: Sequence[str], rng: np.random.Generator, *, draws: int = DRAWS, confidence: float = 0.95
) -> Interval:
    """Interval of the mean score. ``scores``: one ``[seeds, runs, items, samples]`` per benchmark, finite, in any unit.

    The estimate is the mean over samples, items, runs and seeds, then unweighted over benchmarks; seeds and runs are drawn
    together for all benchmarks (a training run has one score on each), items for each benchmark on its own. ``levels``: one or
    more of ``LEVELS``. ValueError for NaN, no level, an unknown one, one of size 1 (drawing it again would show no noise and look
    as if there were none), or benchmarks that differ in seeds or runs.
    """
    means = _item_means(scores)
    _check_levels(means, levels)
    drawn = _mean_draws(means, levels, rng, _item_weights(means, levels, rng, draws), draws)
    value = float(np.mean([m.mean() for m in means]))
    return _interval(value, drawn, confidence, _noise(levels))


def difference_interval(
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    levels: Sequence[str],
    rng: np.random.Generator,
    *,
    draws: int = DRAWS,
    confidence: float = 0.95,
) -> Interval:
    """Interval of mean(ours) - mean(theirs), arrays as in ``mean_interval``, the same items in the same order in both.

    Both arms answer the same drawn items (paired); their seeds and runs are drawn independently. Item noise therefore enters only
    as far as the arms differ on the items. ValueError as in ``mean_interval``, and where the numbers of items differ.
    """
    a, b = _item_means(ours), _item_means(theirs)
    if [m.shape[2] for m in a] != [m.shape[2] for m in b]:
        raise ValueError("a difference needs the same benchmarks and items in both arms")
    _check_levels(a, levels)
    _check_levels(b, levels)
    items = _item_weights(a, levels, rng, draws)
    drawn = _mean_draws(a, levels, rng, items, draws) - _mean_draws(b, levels, rng, items, draws)
    value = float(np.mean([m.mean() for m in a]) - np.mean([m.mean() for m in b]))
    return _interval(value, drawn, confidence, _noise(levels))


def iqm_interval(scores: np.ndarray, rng: np.random.Generator, *, draws: int = DRAWS, confidence: float = 0.95) -> Interval:
    """Interval of the IQM of ``[runs, tasks]`` by the stratified bootstrap: runs are drawn again for every task on its own.

    Agarwal et al. 2021 (rliable), section 4.1. ValueError for NaN or a single run.
    """
    value = interquartile_mean(scores)
    return _interval(value, middle_half(_stratified(scores, rng, draws).reshape(draws, -1)), confidence, STRATIFIED)


def improvement_interval(
    ours: np.ndarray, theirs: np.ndarray, rng: np.random.Generator, *, draws: int = DRAWS, confidence: float = 0.95
) -> Interval:
    """Interval of P(ours > theirs), ``[runs, tasks]`` each, runs of both arms drawn again for every task (stratified)."""
    value = probability_of_improvement(ours, theirs)
    a, b = _stratified(ours, rng, draws), _stratified(theirs, rng, draws)
    # One pair of runs at a time: all pairs at once would be draws x runs x runs x tasks numbers.
    pairs = [np.sign(a[:, i] - b[:, j]).mean(axis=1) for i in range(a.shape[1]) for j in range(b.shape[1])]
    return _interval(value, (np.mean(pairs, axis=0) + 1) / 2, confidence, STRATIFIED)


def _item_means(scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One ``[seeds, runs, items]`` per benchmark."""
    arrays = [np.asarray(s, dtype=np.float64) for s in scores]
    if not arrays or any(a.ndim != 4 or a.size == 0 for a in arrays):
        raise ValueError("a bootstrap needs one or more non-empty arrays [seeds, runs, items, samples]")
    if not all(np.isfinite(a).all() for a in arrays):
        raise ValueError("bootstrap: a value is missing or not finite; leave the short run out and count it instead")
    if len({a.shape[:2] for a in arrays}) > 1:
        raise ValueError("bootstrap: benchmarks differ in their numbers of training or evaluation runs")
    return [a.mean(axis=3) for a in arrays]


def _check_levels(means: Sequence[np.ndarray], levels: Sequence[str]) -> None:
    if not levels or not set(levels) <= LEVELS.keys():
        raise ValueError(f"levels are one or more of {', '.join(LEVELS)}; got {list(levels)}")
    for axis, level in enumerate(LEVELS):
        if level in levels and min(m.shape[axis] for m in means) < 2:
            raise ValueError(f"one of {LEVELS[level]} cannot show their noise; leave the level {level!r} out")


def _item_weights(
    means: Sequence[np.ndarray], levels: Sequence[str], rng: np.random.Generator, draws: int
) -> list[np.ndarray | None]:
    """Per benchmark how often each item was drawn, ``[draws, items]``; None: every item once."""
    if "items" not in levels:
        return [None] * len(means)
    return [_multiplicities(rng, m.shape[2], draws) for m in means]


def _multiplicities(rng: np.random.Generator, n: int, draws: int) -> np.ndarray:
    """How often each of n was drawn in n draws with replacement, ``[draws, n]``."""
    picks = rng.integers(n, size=(draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(picks.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)


def _run_weights(shape: tuple[int, int], levels: Sequence[str], rng: np.random.Generator, draws: int) -> np.ndarray:
    """How often each evaluation run of each training run was drawn: ``[draws, seeds * runs]``; each line sums to seeds * runs."""
    seeds, runs = shape
    of_seed = _multiplicities(rng, seeds, draws) if "seeds" in levels else np.ones((draws, seeds))
    if "runs" not in levels:
        return np.repeat(of_seed, runs, axis=1)
    # A training run drawn c times draws its runs c times over; the counts of c such draws together are one of c * runs.
    of_run = rng.multinomial(of_seed.astype(np.int64) * runs, np.full(runs, 1 / runs))
    return of_run.reshape(draws, seeds * runs).astype(np.float64)


def _mean_draws(
    means: Sequence[np.ndarray], levels: Sequence[str], rng: np.random.Generator, items: Sequence[np.ndarray | None], draws: int
) -> np.ndarray:
    """``[draws]``: the mean over everything drawn, then over benchmarks."""
    seeds, runs = means[0].shape[:2]
    weights = _run_weights((seeds, runs), levels, rng, draws) / (seeds * runs)
    total = np.zeros(draws)
    for benchmark, of_item in zip(means, items, strict=True):
        flat = benchmark.reshape(seeds * runs, -1)
        if of_item is None:
            total += weights @ flat.mean(axis=1)
        else:
            total += ((weights @ flat) * of_item).sum(axis=1) / flat.shape[1]
    return total / len(means)


def _stratified(scores: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    """``[runs, tasks]`` -> ``[draws, runs, tasks]``, runs drawn with replacement for every task on its own."""
    array = np.asarray(scores, dtype=np.float64)
    if array.shape[0] < 2:
        raise ValueError("one run cannot show the noise of runs")
    picks = rng.integers(array.shape[0], size=(draws, *array.shape))
    return np.take_along_axis(array[None], picks, axis=1)


def _noise(levels: Sequence[str]) -> str:
    shown = [words for level, words in LEVELS.items() if level in levels]
    fixed = [words for level, words in LEVELS.items() if level not in levels]
    return f"noise of {' and '.join(shown)}" + (f"; {' and '.join(fixed)} held fixed" if fixed else "")


def _interval(value: float, drawn: np.ndarray, confidence: float, noise: str) -> Interval:
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence is between 0 and 1, got {confidence}")
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high), confidence, len(drawn), noise)
