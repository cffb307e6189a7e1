"""The lines under a table: what was measured, on what, by which rule, and what the noise figure does and does not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.collect import repeated_sample_share, runs_asked
from analysis.spec import TableSpec
from experiments.run_record import UNTRAINED, RunRecord

# scale -> (what it is, how the paper's values read beside it)
SCALES = {
    "smoke": (
        "Scale smoke: a handful of steps of small stand-in models, to exercise the code. It claims nothing.",
        "The values 'paper' are of other models at another scale and are not comparable in level.",
    ),
    "cpu": (
        "Scale cpu: a stand-in scale (small models, generated tasks).",
        "The values 'paper' are of other models at another scale: they are not comparable in level; at most signs and orders can "
        "be compared.",
    ),
    "paper": ("Scale paper: the paper's models, data and budget.", "The values 'paper' are what the paper printed."),
}
# At temperature > 0, several samples of one item that are all equal are the mark of a cache or of a sampler without a seed.
REPEATS_WORTH_A_NOTE = 0.5


def scale_note(scale: str, *, paper: bool) -> str:
    """What the scale is; ``paper``: the paper's values stand beside ours."""
    what, beside = SCALES[scale]
    return f"{what} {beside}" if paper else what


def notes_for_reported(spec: TableSpec, spread: str = "five evaluation runs of one checkpoint") -> tuple[str, ...]:
    """``spread``: what the paper's std is over."""
    return (
        f"As printed in the paper (paper_tables/reported/{spec.reported_file}); nothing here was measured with this code.",
        f"std over {spread}; differences are of rounded means, as printed.",
    )


def notes_for_runs(
    spec: TableSpec, used: Sequence[RunRecord], frame: pd.DataFrame, *, scale: str, seed: int | str, spread: str | None = None
) -> tuple[str, ...]:
    """``seed``: one, or several as they are to be printed. ``spread``: what ± is, if it is not over evaluation runs."""
    scale_line = scale_note(scale, paper=bool(spec.reported))
    if not used:
        return (scale_line, f"No finished run of this table was found (scale {scale}, seed {seed}).")
    evaluation = used[0].config["recipe"]["evaluation"]
    return (
        scale_line,
        *stand_ins([m for r in used for m in r.config["recipe"]["models"]], "Models"),
        *stand_ins(evaluation["benchmarks"], "Benchmarks"),
        f"pass@1 = mean over {evaluation['samples']} samples, then over items, then unweighted over "
        f"{len(evaluation['benchmarks'])} benchmarks, in percent; sampled at temperature {evaluation['temperature']}, "
        f"top-p {evaluation['top_p']}.",
        spread
        or f"± is the sample std (n-1) over {runs_asked(used[0])} evaluation runs of ONE checkpoint of one training run: it shows "
        "sampling noise, not the noise between training runs. n/N = evaluation runs complete / asked for. — = no value.",
        f"Δ = difference of unrounded averages from the row {spec.reference}, same receiver. Bold: the highest mean per receiver "
        "and column among complete ranked rows; equal printed values are all bold.",
        f"Checkpoint selection: {selection(used)}. Training seed {seed}. Commits: {commits(used)}.",
        *golds(used),
        *_repeats(frame),
    )


def stand_ins(items: Sequence[Mapping[str, Any]], what: str) -> tuple[str, ...]:
    """One line naming what stands for what; none if nothing does."""
    pairs = dict.fromkeys(f"{i['name']} stands for {i['stands_for']}" for i in items if i["name"] != i["stands_for"])
    return (f"{what}: {'; '.join(pairs)}.",) if pairs else ()


def selection(used: Sequence[RunRecord]) -> str:
    """The rule, or the methods under each. Untouched base models and imported rows have nothing that was selected here."""
    trained = [r for r in used if r.config["cell"]["method"] not in UNTRAINED]
    return _agreed(trained, lambda r: r.config["recipe"]["training"]["selection"]) or "none (no row was trained here)"


def golds(used: Sequence[RunRecord]) -> tuple[str, ...]:
    """One line: the edition of the gold answers that trained and judged, or the methods under each; none for generated sets."""
    edition = _agreed(used, _golds_of)
    return (f"Golds: {edition}.",) if edition else ()


def _golds_of(record: RunRecord) -> str:
    """Of all prompt sets of the run that are read from files; "" where there are none. The version is that of the corrections."""
    recipe = record.config["recipe"]
    data = recipe.get("data", {})
    sets = (data.get("train"), data.get("validation"), *recipe["evaluation"]["benchmarks"])
    editions = [s["golds"] for s in sets if s and "golds" in s]
    return " and ".join(dict.fromkeys(g["name"] + (f" v{g['version']}" if "version" in g else "") for g in editions))


def _agreed(used: Sequence[RunRecord], value_of: Callable[[RunRecord], str]) -> str:
    """The value of all runs that have one, or the methods under each if they differ; "" where no run has one."""
    methods: dict[str, list[str]] = {}
    for record in used:
        if value := value_of(record):
            methods.setdefault(value, []).append(record.config["cell"]["method"])
    if len(methods) > 1:
        return "DIFFERS BETWEEN ROWS: " + "; ".join(f"{value}: {', '.join(dict.fromkeys(m))}" for value, m in methods.items())
    return next(iter(methods), "")


def commits(used: Sequence[RunRecord]) -> str:
    """The commits of the runs, shortened; a changed tree is said."""
    names = {(r.config.get("commit") or "unknown")[:12] + (" (changed tree)" if r.config.get("dirty") else "") for r in used}
    return ", ".join(sorted(names))


def _repeats(frame: pd.DataFrame) -> tuple[str, ...]:
    """One line: how often, and where most, all samples of an item are the same; none if nowhere worth a note."""
    share = repeated_sample_share(frame)
    worth = share[share > REPEATS_WORTH_A_NOTE]
    if worth.empty:
        return ()
    directory, model = worth.idxmax()
    return (
        f"All samples of an item are one and the same response for more than {100 * REPEATS_WORTH_A_NOTE:.0f} % of the items in "
        f"{len(worth)} of {len(share)} evaluated checkpoints; most often, {100 * worth.max():.0f} %, for {model} in {directory}.",
    )
