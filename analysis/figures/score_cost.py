"""Figures 3a and 5: score against what it cost, in device-hours of training up to the selected checkpoint.

3a: mean of the pair against the cost of both models (independent runs: their sum; a joint run: up to the later of the two selected
checkpoints). 5: each model against a conservative charge, the whole joint run up to the model's own selected checkpoint.
The rules are those of ``analysis.compute``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.bootstrap import Interval
from analysis.cells import Key
from analysis.clipping import BOTH
from analysis.compute import row_hours
from analysis.figures import style
from analysis.figures.common import (
    HERE,
    PAPER,
    FigureData,
    Found,
    Place,
    Point,
    Query,
    as_printed,
    find,
    measured,
    not_drawn,
    panel_of,
    paper_number,
)
from analysis.figures.scores import Scores, average, average_interval, pair_interval, read_scores
from analysis.figures.spec import Block, FigureSpec
from analysis.page import receiver_head
from analysis.paper import load_reported
from analysis.spec import AVERAGE
from experiments.ledger import read_ledger

PAIR_MEAN = "pair mean"
TABLE = "table5"
INCOMPLETE = "an evaluation run is incomplete: remove done.json and run python -m experiments.evaluate run="
NOT_PRINTED = "not printed in the paper"
NOISE = "95 % intervals: noise of the evaluation runs of one checkpoint, not of training runs"
RULE = (
    "Device-hours: devices x wall-clock time of the training steps up to the selected checkpoint, without validation and checkpoint "
    "writing."
)


def hours_of(found: Found) -> tuple[dict[Place, Mapping[str, float]], str]:
    """(device-hours of every place by ``compute.HOURS``, their unit)."""
    hours: dict[Place, Mapping[str, float]] = {}
    units = set()
    for block in found.spec.blocks:
        for row in found.spec.rows:
            runs = {x: found.done[block.pair, row.slug, x] for x in block.receivers if (block.pair, row.slug, x) in found.done}
            ledgers = {x: (run, read_ledger(run)) for x, run in runs.items()}
            hours |= {(block.pair, row.slug, x): h for x, h in row_hours(ledgers).items()}
            units |= {ledger.devices.unit for _, ledger in ledgers.values()}
    return hours, " and ".join(sorted(units)) or "device-hours"


def lacks(found: Found, scores: Mapping[Place, Scores | None], places: Sequence[Place]) -> str:
    """Why there is no value over these places; "" if there is one."""
    short = (INCOMPLETE + str(found.done[p].path) for p in places if p in found.done and scores[p] is None)
    return "; ".join(dict.fromkeys([*(found.todo[p] for p in places if p in found.todo), *short]))


def _bounds(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def pair_from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Figure 3a."""
    found = find(spec, query)
    scores = read_scores(found.done)
    hours, unit = hours_of(found)
    (block,) = spec.blocks
    points = []
    for slug in spec.labels:
        places = [(block.pair, slug, x) for x in block.receivers]
        runs = tuple(dict.fromkeys(found.done[p].path.name for p in places if p in found.done))
        if todo := lacks(found, scores, places):
            points.append(Point(PAIR_MEAN, slug, None, None, runs=runs, todo=todo))
            continue
        a, b = (scores[p] for p in places)
        mean = (average(a) + average(b)) / 2
        points.append(Point(PAIR_MEAN, slug, hours[places[0]]["both_best"], mean, *_bounds(pair_interval(a, b)), runs=runs))
    lines = (
        RULE + " Both models: the sum of two independent runs, or the joint run up to the later of the two selected checkpoints.",
        f"{NOISE}; the two models' runs are drawn independently. Line: GRPO with more responses per prompt.",
    )
    return measured(found, points, lines=lines, foot=(*found.models, NOISE + "."), unit=unit)


def pair_from_reported(spec: FigureSpec) -> FigureData:
    """Figure 3a from table 5."""
    reported = load_reported(spec.reported_folder)
    (block,) = spec.blocks
    points = []
    for slug in spec.labels:
        score = paper_number(reported, [Key(TABLE, slug, AVERAGE, x, block.pair) for x in block.receivers])
        cost = paper_number(reported, [Key(TABLE, slug, "best_gpu_h", BOTH, block.pair)])
        points.append(_printed(PAIR_MEAN, slug, cost and cost[0], score))
    return as_printed(spec, points, source="table 5", lines=(_T_INTERVAL,), foot=(NOISE + ".",), unit="GPU-hours")


_T_INTERVAL = (
    NOISE
    + ", from the printed stds of five runs with Student's t and the fewest degrees of freedom: wider than a bootstrap of as "
    "few runs."
)


def _printed(panel: str, slug: str, cost: float | None, score: tuple[float, float | None, float | None] | None) -> Point:
    if cost is None or score is None:
        return Point(panel, slug, None, None, source=PAPER, todo=NOT_PRINTED)
    return Point(panel, slug, cost, *score, source=PAPER, runs=("table5_compute.csv",))


def each_from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Figure 5."""
    found = find(spec, query)
    scores = read_scores(found.done)
    hours, unit = hours_of(found)
    points = []
    for block, receiver, slug in _places(spec):
        place, panel = (block.pair, slug, receiver), panel_of(block.pair, receiver)
        runs = (found.done[place].path.name,) if place in found.done else ()
        if todo := lacks(found, scores, [place]):
            points.append(Point(panel, slug, None, None, runs=runs, todo=todo))
            continue
        mine = scores[place]
        points.append(
            Point(panel, slug, hours[place]["conservative"], average(mine), *_bounds(average_interval(mine)), runs=runs)
        )
    lines = (
        RULE + " A joint run is charged whole to each of its models, up to the model's own selected checkpoint.",
        NOISE + ".",
    )
    return measured(found, points, lines=lines, foot=(NOISE + ".",), unit=unit)


def each_from_reported(spec: FigureSpec) -> FigureData:
    """Figure 5 from table 5. ``reported.charged``: joint row -> receiver -> hours; null where the paper prints no such charge.

    The table's per-model hours of a joint run are shares of it and no charge, so they are not drawn in place of one.
    """
    reported = load_reported(spec.reported_folder)
    charged = spec.reported["charged"]
    points = []
    for block, receiver, slug in _places(spec):
        score = paper_number(reported, [Key(TABLE, slug, AVERAGE, receiver, block.pair)])
        if slug in charged:
            cost = (charged[slug] or {}).get(receiver)
        else:
            alone = paper_number(reported, [Key(TABLE, slug, "best_gpu_h", receiver, block.pair)])
            cost = alone and alone[0]
        points.append(_printed(panel_of(block.pair, receiver), slug, cost, score))
    note = "The paper prints the whole joint run up to a model's own checkpoint for GRAFT only (appendix D)."
    return as_printed(
        spec, points, source="table 5, appendix D", lines=(note, _T_INTERVAL), foot=(NOISE + ".",), unit="GPU-hours"
    )


def _places(spec: FigureSpec) -> list[tuple[Block, str, str]]:
    return [(block, x, slug) for block in spec.blocks for x in block.receivers for slug in spec.labels]


def draw_pair(data: FigureData) -> Figure:
    """One panel."""
    figure = style.new_figure(style.SINGLE, 2.75, (*data.foot, *not_drawn(data)))
    ax = figure.add_subplot()
    handles = _scatter(ax, data, PAIR_MEAN)
    ax.set(xlabel=f"{data.unit} of both models, to the selected checkpoint", ylabel="mean pass@1 of the pair, %")
    figure.legend(handles=handles, loc="outside upper left", ncols=2, columnspacing=1.0)
    return figure


def draw_each(data: FigureData) -> Figure:
    """A panel per model."""
    figure = style.new_figure(style.DOUBLE, 2.7, (*data.foot, *not_drawn(data)))
    (block,) = data.spec.blocks
    axes = figure.subplots(1, 2)
    handles: dict[str, Line2D] = {}
    for ax, receiver in zip(axes, block.receivers, strict=True):
        # By label: a method that has a point in one panel only is in the legend both ways.
        handles |= {h.get_label(): h for h in _scatter(ax, data, panel_of(block.pair, receiver))}
        ax.set(title=receiver_head(data.stand_ins, receiver), xlabel=f"{data.unit} charged, to the model's checkpoint")
    axes[0].set_ylabel("average pass@1, %")
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=4)
    return figure


def _scatter(ax: Axes, data: FigureData, panel: str) -> list[Line2D]:
    """Every row as a mark with its interval, the GRPO rows joined by a line; returns the legend, with the rows that have no point."""
    source = PAPER if data.scale == "reported" else HERE
    handles = []
    for slug, look in style.looks(list(data.spec.labels)).items():
        points = data.of(panel, slug, source)
        why = "" if points else " (no run)" if source == HERE else " (not printed)"
        handles.append(style.handle(look, data.spec.labels[slug] + why, filled=bool(points)))
        mark = {"color": look.color, "marker": look.marker, "markersize": 4.5, "linestyle": "none"}
        for p in points:
            ax.errorbar(p.x, p.y, yerr=spread(p), elinewidth=0.8, capsize=1.8, capthick=0.8, **mark)
    grpo = sorted((p.x, p.y) for row in data.spec.rows if row.method == "grpo" for p in data.of(panel, row.slug, source))
    if len(grpo) > 1:
        (line,) = ax.plot(*zip(*grpo), color=style.BLACK, linestyle="--", linewidth=0.8, label="GRPO, by budget", zorder=1)
        handles.append(line)
    if not ax.has_data():
        style.empty(ax, "no finished runs")
    ax.margins(0.08)
    ax.set_xlim(left=0)
    return handles


def spread(point: Point) -> list[list[float]] | None:
    """Of a point, for matplotlib's error bars."""
    if point.low is None or point.high is None or point.y is None:
        return None
    return [[max(0.0, point.y - point.low)], [max(0.0, point.high - point.y)]]
