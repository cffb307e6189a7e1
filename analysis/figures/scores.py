"""Scores with intervals, for figures: verdict arrays of the runs, and the bootstrap of ``analysis.bootstrap`` on them.

Every interval draws from a Generator of its own with the same seed, so it depends on its runs alone and not on what else is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.bootstrap import Interval, difference_interval, mean_interval
from analysis.collect import correct_array, counts, evaluation_frame, model_of, require_comparable, runs_asked
from analysis.figures.common import Place
from analysis.schema import empty_frame
from experiments.run_record import RunRecord

SEED = 0
# One array [1, runs, items, samples] per benchmark, in percent.
Scores = list[np.ndarray]


def read_scores(done: Mapping[Place, RunRecord]) -> dict[Place, Scores | None]:
    """Verdicts of every place's model; None where an evaluation run that the recipe asks for is short. All runs must be comparable."""
    records = list({r.path: r for r in done.values()}.values())
    require_comparable(records)
    by_model = dict(iter(evaluation_frame(records).groupby(["directory", "model"])))
    out: dict[Place, Scores | None] = {}
    for place, record in done.items():
        model = model_of(record, place[2])["name"]
        frame = by_model.get((str(record.path), model), empty_frame())
        benchmarks = record.config["recipe"]["evaluation"]["benchmarks"]
        short = any(c.rows < c.expected for b in benchmarks for c in counts(record, frame, model, b))
        runs = range(runs_asked(record))
        out[place] = None if short else [100.0 * correct_array(record, frame, model, b, runs)[None] for b in benchmarks]
    return out


def average(scores: Scores) -> float:
    """Unweighted mean over benchmarks of pass@1, in percent."""
    return float(np.mean([a.mean() for a in scores]))


def levels(scores: Sequence[Scores], wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of the wanted levels that can show noise: one evaluation run, or one item, has none to show."""
    axes = {"runs": 1, "items": 2}
    return tuple(level for level in wanted if all(a.shape[axes[level]] > 1 for one in scores for a in one))


def average_interval(scores: Scores) -> Interval | None:
    """95 % over the evaluation runs; None with one run."""
    drawn = levels([scores], ("runs",))
    return mean_interval(scores, drawn, np.random.default_rng(SEED)) if drawn else None


def pair_interval(a: Scores, b: Scores) -> Interval | None:
    """95 % of the mean of two models' averages over the evaluation runs, drawn for each model on its own; None with one run.

    Written as a difference, a/2 - (-b/2): in a difference the arms' runs are drawn independently, in one mean they would be drawn
    together, as if the first evaluation run of one model had to do with the first of the other.
    """
    drawn = levels([a, b], ("runs",))
    if not drawn:
        return None
    return difference_interval([x / 2 for x in a], [-x / 2 for x in b], drawn, np.random.default_rng(SEED))


def delta_interval(ours: Scores, reference: Scores) -> Interval | None:
    """95 % of the difference over evaluation runs and items, items paired; None if neither can show noise."""
    drawn = levels([ours, reference], ("runs", "items"))
    return difference_interval(ours, reference, drawn, np.random.default_rng(SEED)) if drawn else None
