"""Figure 3b: a stored peer against a live one, per receiver of every pair: the gain over GRPO, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.cells import Key
from analysis.figures import style
from analysis.figures.common import (
    HERE,
    PAPER,
    FigureData,
    Point,
    Query,
    as_printed,
    find,
    measured,
    not_drawn,
    panel_of,
    paper_number,
)
from analysis.figures.score_cost import NOT_PRINTED, RULE, hours_of, lacks, spread
from analysis.figures.scores import average, delta_interval, read_scores
from analysis.figures.spec import FigureSpec
from analysis.page import receiver_head
from analysis.paper import load_reported
from analysis.spec import AVERAGE

GAIN, COST = "gain over GRPO", "device-hours"


def from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Every receiver of every pair: what is missing is a point without value."""
    found = find(spec, query)
    scores = read_scores(found.done)
    hours, unit = hours_of(found)
    points, noise = [], ""
    for pair, receiver, slug in _places(spec):
        place, reference, x = (pair, slug, receiver), (pair, spec.reference, receiver), panel_of(pair, receiver)
        runs = tuple(found.done[p].path.name for p in (place, reference) if p in found.done)
        if todo := lacks(found, scores, [place, reference]):
            points.append(Point(GAIN, slug, x, None, runs=runs, todo=todo))
        else:
            interval = delta_interval(scores[place], scores[reference])
            gain = average(scores[place]) - average(scores[reference])
            bounds = (interval.low, interval.high) if interval else (None, None)
            noise = interval.noise if interval else noise
            points.append(Point(GAIN, slug, x, gain, *bounds, runs=runs))
        cost = hours.get(place, {}).get("best")
        points.append(Point(COST, slug, x, cost, runs=runs[:1] if place in found.done else (), todo=found.todo.get(place, "")))
    text = f"95 % intervals of the gain: {noise}." if noise else ""
    lines = (RULE + " Per model: a live peer's run is shared by both models, each with its own phases and half of the rest.",)
    foot = (text,) if text else ()
    return measured(found, points, lines=(*lines, *foot), foot=foot, unit=unit)


def from_reported(spec: FigureSpec) -> FigureData:
    """Gains from table 6; hours from table 5, which has them for pair 1 only."""
    reported = load_reported(spec.reported_folder)
    points = []
    for pair, receiver, slug in _places(spec):
        x = panel_of(pair, receiver)
        keys = [Key("table6", row, AVERAGE, receiver, pair) for row in (slug, spec.reference)]
        if gain := paper_number(reported, keys, "difference"):
            points.append(Point(GAIN, slug, x, *gain, source=PAPER, runs=("table6_stored.csv",)))
        else:
            points.append(Point(GAIN, slug, x, None, source=PAPER, todo=NOT_PRINTED))
        if cost := paper_number(reported, [Key("table5", slug, "best_gpu_h", receiver, pair)]):
            points.append(Point(COST, slug, x, cost[0], source=PAPER, runs=("table5_compute.csv",)))
        else:
            points.append(Point(COST, slug, x, None, source=PAPER, todo=NOT_PRINTED))
    lines = (
        "Hours are printed for pair 1 only (table 5); for all six the text says that stored peers cost 27 to 76 % less.",
        "95 % intervals: noise of the evaluation runs of one checkpoint, from the printed stds with Student's t.",
    )
    return as_printed(spec, points, source="tables 5 and 6", lines=lines, foot=lines, unit="GPU-hours")


def _places(spec: FigureSpec) -> list[tuple[str, str, str]]:
    """Receivers as they stand in the figure, each with the rows that are compared with the reference."""
    slugs = [slug for slug in spec.labels if slug != spec.reference]
    return [(block.pair, x, slug) for block in spec.blocks for x in block.receivers for slug in slugs]


def draw(data: FigureData) -> Figure:
    """Gain and cost side by side, a line per receiver."""
    source = PAPER if data.scale == "reported" else HERE
    slugs = [slug for slug in data.spec.labels if slug != data.spec.reference]
    receivers = [(block.pair, x) for block in data.spec.blocks for x in block.receivers]
    figure = style.new_figure(style.DOUBLE, 0.9 + 0.3 * len(receivers), (*data.foot, *not_drawn(data)))
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, panel in ((left, GAIN), (right, COST)):
        for offset, (slug, look) in zip((-0.14, 0.14), style.looks(slugs).items(), strict=True):
            _dots(ax, [_point(data, panel, slug, panel_of(*place), source) for place in receivers], offset, look)
    names = [f"pair {pair}: {receiver_head(data.stand_ins, x)}" for pair, x in receivers]
    left.set_yticks(range(len(receivers)), names)
    left.set_ylim(len(receivers) - 0.5, -0.5)
    left.axvline(0, color=style.GREY, linewidth=0.8)
    left.set_xlabel(f"pass@1 gain over {data.spec.labels[data.spec.reference]}, points")
    right.set_xlabel(f"{data.unit} to the selected checkpoint")
    for ax, panel, least in ((left, GAIN, None), (right, COST, 0.0)):
        if any(p.y is not None for p in data.points if p.panel == panel):
            _room(ax, least)
        else:
            ax.set_xticks([])
    handles = [style.handle(look, data.spec.labels[slug]) for slug, look in style.looks(slugs).items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _point(data: FigureData, panel: str, slug: str, x: str, source: str) -> Point:
    return next(p for p in data.points if (p.panel, p.series, p.x, p.source) == (panel, slug, x, source))


def _room(ax: Axes, least: float | None) -> None:
    """Room at the right end for the words where there is no mark."""
    low, high = ax.get_xlim()
    low = low if least is None else least
    ax.set_xlim(low, high + 0.2 * (high - low))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def _dots(ax: Axes, points: Sequence[Point], offset: float, look: style.Look) -> None:
    mark = {"color": look.color, "marker": look.marker, "markersize": 4.5, "linestyle": "none"}
    for line, p in enumerate(points):
        if p.y is None:
            text = "not printed" if p.source == PAPER else "no run"
            place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center", "color": look.color}
            ax.annotate(text, (0.99, line + offset), **place)
        else:
            ax.errorbar(p.y, line + offset, xerr=spread(p), elinewidth=0.8, capsize=1.8, capthick=0.8, **mark)
