"""Our figure of table 2: what each variant of GRAFT loses or gains against GRAFT, with intervals, beside what the paper printed."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
from analysis.figures.score_cost import NOT_PRINTED, lacks, spread
from analysis.figures.scores import average, delta_interval, read_scores
from analysis.figures.spec import Block, FigureSpec
from analysis.page import receiver_head
from analysis.paper import load_reported
from analysis.spec import AVERAGE

HERE_LOOK, PAPER_LOOK = style.Look(style.RED, "o", "none"), style.Look(style.GREY, "D", "none")
PAPER_NOISE = "The paper's: noise of evaluation runs of one checkpoint, from the printed stds with Student's t"


def from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Differences of unrounded averages from the reference, same receiver, items paired; the paper's beside them."""
    (block,) = spec.blocks
    found = find(spec, query)
    scores = read_scores(found.done)
    points, noise = [], ""
    for receiver in block.receivers:
        for slug in _shown(spec):
            places = [(block.pair, slug, receiver), (block.pair, spec.reference, receiver)]
            panel, runs = panel_of(block.pair, receiver), tuple(found.done[p].path.name for p in places if p in found.done)
            if todo := lacks(found, scores, places):
                points.append(Point(panel, slug, slug, None, runs=runs, todo=todo))
                continue
            ours, reference = (scores[p] for p in places)
            interval = delta_interval(ours, reference)
            noise = interval.noise if interval else noise
            bounds = (interval.low, interval.high) if interval else (None, None)
            points.append(Point(panel, slug, slug, average(ours) - average(reference), *bounds, runs=runs))
    here = f"Ours: {noise}, items paired. " if noise else ""
    text = f"95 % intervals. {here}{PAPER_NOISE}."
    return measured(found, [*points, *_paper(spec, block)], lines=(text,), foot=(text,))


def from_reported(spec: FigureSpec) -> FigureData:
    """Table 2."""
    (block,) = spec.blocks
    text = f"95 % intervals. {PAPER_NOISE}."
    return as_printed(spec, _paper(spec, block), source="table 2", lines=(text,), foot=(text,))


def _shown(spec: FigureSpec) -> list[str]:
    return [slug for slug in spec.labels if slug != spec.reference]


def _paper(spec: FigureSpec, block: Block) -> list[Point]:
    reported = load_reported(spec.reported_folder)
    points = []
    for receiver in block.receivers:
        for slug in _shown(spec):
            keys = [Key("table2", row, AVERAGE, receiver, block.pair) for row in (slug, spec.reference)]
            delta = paper_number(reported, keys, "difference")
            values = delta or (None, None, None)
            runs, todo = (("table2_ablations.csv",), "") if delta else ((), NOT_PRINTED)
            points.append(Point(panel_of(block.pair, receiver), slug, slug, *values, source=PAPER, runs=runs, todo=todo))
    return points


def draw(data: FigureData) -> Figure:
    """A panel per receiver, a line per variant, groups set apart."""
    (block,) = data.spec.blocks
    slugs = _shown(data.spec)
    figure = style.new_figure(style.DOUBLE, 0.85 + 0.2 * len(slugs), (*data.foot, *not_drawn(data)))
    axes = figure.subplots(1, 2, sharey=True)
    sources = [(PAPER, "the paper", PAPER_LOOK, 0.0)]
    if data.scale != "reported":
        sources = [(HERE, "here", HERE_LOOK, -0.16), (PAPER, "the paper (other models, other scale)", PAPER_LOOK, 0.2)]
    for ax, receiver in zip(axes, block.receivers, strict=True):
        for source, _, look, offset in sources:
            _dots(ax, data, (panel_of(block.pair, receiver), source), (look, offset))
        ax.margins(x=0.14)  # room for the words where there is no mark
        ax.axvline(0, color=style.GREY, linewidth=0.8)
        ax.set(title=receiver_head(data.stand_ins, receiver), xlabel="difference from GRAFT in average pass@1, points")
        for line in _group_starts(data.spec, slugs):
            ax.axhline(line - 0.5, color="#AAAAAA", linewidth=0.6)
    axes[0].set_yticks(range(len(slugs)), [data.spec.labels[slug] for slug in slugs])
    axes[0].set_ylim(len(slugs) - 0.5, -0.5)
    figure.legend(handles=[style.handle(look, label) for _, label, look, _ in sources], loc="outside upper center", ncols=2)
    return figure


def _group_starts(spec: FigureSpec, slugs: list[str]) -> list[int]:
    groups = {row.slug: row.group for row in spec.rows}
    return [k for k in range(1, len(slugs)) if groups[slugs[k]] != groups[slugs[k - 1]]]


def _dots(ax: Axes, data: FigureData, of: tuple[str, str], how: tuple[style.Look, float]) -> None:
    """One source's marks in one panel; where there is none, the line says so at its right end."""
    (panel, source), (look, offset) = of, how
    mark = {"color": look.color, "marker": look.marker, "markersize": 3.5, "linestyle": "none"}
    for line, slug in enumerate(_shown(data.spec)):
        points = data.of(panel, slug, source)
        for p in points:
            ax.errorbar(p.y, line + offset, xerr=spread(p), elinewidth=0.8, capsize=1.5, capthick=0.8, **mark)
        if not points:
            ax.annotate("no run" if source == HERE else "not printed", (0.99, line), xycoords=("axes fraction", "data"),
                        ha="right", va="center", color=look.color)  # fmt: skip
