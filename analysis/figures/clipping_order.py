"""Our figure of table 9: how much of own and of grafted tokens the clip removes, by the position of the peer minibatches."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import clipping
from analysis.clipping import OWN, SHARE, ZERO, ClippingSpec, Quantity, Value
from analysis.figures import style
from analysis.figures.common import HERE, PAPER, FigureData, Point, Query, as_printed, find, measured
from analysis.figures.spec import FigureSpec
from analysis.page import receiver_head
from experiments.run_record import UserError

TABLE = "table9"
ALL_STEPS = "steps without a clipped peer token"
BOTH_MODELS = "both models"
KINDS = {OWN: ("own tokens", style.SPARE[0]), clipping.PEER: ("grafted tokens", style.SPARE[1])}
STEPS = ("steps, both models", style.SPARE[2])
RULE = "Shares of tokens are pooled over the steps (clipped tokens / tokens), in percent"


def _table(spec: FigureSpec) -> ClippingSpec:
    """Table 9, whose numbers these are. UserError unless the figure has its rows."""
    table = clipping.load_spec(TABLE, spec.folder)
    if [(r.slug, r.method, r.deviations) for r in table.rows] != [(r.slug, r.method, r.deviations) for r in spec.rows]:
        raise UserError(f"{spec.name} and {TABLE} do not have the same rows; the figure is made of the table's numbers")
    return table


def _place(quantity: Quantity) -> tuple[str, str]:
    """(panel, series) of one of the table's quantities."""
    name, update, receiver, _ = quantity
    return (ALL_STEPS, BOTH_MODELS) if name == ZERO else (receiver, update)


def from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Pooled shares of the runs, the paper's values beside them."""
    table, found = _table(spec), find(spec, query)
    numbers = clipping.from_runs(table, query.records, scale=query.scale, seed=query.seed, methods=query.methods)
    (block,) = spec.blocks
    points = []
    for quantity in table.quantities:
        for slug in spec.labels:
            place = (block.pair, slug, block.receivers[0])
            runs = (found.done[place].path.name,) if place in found.done else ()
            value = _shown(quantity, numbers.values.get((quantity, slug)))
            todo = found.todo.get(place, "") if value is not None or place not in found.done else "no peer token in any step"
            points.append(Point(*_place(quantity), slug, value, runs=runs, todo=todo))
    first = table.steps[query.scale]
    span = "all steps" if first is None else f"steps 1 to {first}"
    lines = (f"{RULE}, {span} of one training run; no interval: one run has no spread. The paper does not say how it averages.",)
    return measured(found, [*points, *_paper(table)], lines=lines, foot=(f"{RULE}, {span} of one training run.",))


def from_reported(spec: FigureSpec) -> FigureData:
    """Table 9."""
    return as_printed(spec, _paper(_table(spec)), source="table 9")


def _shown(quantity: Quantity, value: Value | None) -> float | None:
    if value is None:
        return None
    return value.pooled if quantity[0] == SHARE else value.step_mean


def _paper(table: ClippingSpec) -> list[Point]:
    return [
        Point(*_place(quantity), row.slug, table.reported[quantity, row.slug], source=PAPER, runs=(table.reported_file,))
        for quantity in table.quantities
        for row in table.rows
    ]


def draw(data: FigureData) -> Figure:
    """A panel per receiver with own and grafted tokens, and one with the share of steps; the paper's marks are open."""
    (block,) = data.spec.blocks
    figure = style.new_figure(style.DOUBLE, 2.3, data.foot)
    axes = figure.subplots(1, 3)
    for ax, panel in zip(axes, (*block.receivers, ALL_STEPS), strict=True):
        steps = panel == ALL_STEPS
        for name, (_, look) in ({BOTH_MODELS: STEPS} if steps else KINDS).items():
            _marks(ax, data, (panel, name), look)
        ax.set_xticks(range(len(data.spec.rows)), _ticks(data, panel))
        ax.set_xlim(-0.5, len(data.spec.rows) - 0.5)
        head = "steps with no clipped\npeer token, %" if steps else f"{receiver_head(data.stand_ins, panel)}\nclipped tokens, %"
        ax.set_title(head)
        ax.set_ylim(0, 100 if steps else None)
    here = data.scale != "reported"
    handles = [style.handle(look, label, filled=here) for label, look in (*KINDS.values(), STEPS)]
    if here:
        handles.append(style.handle(style.Look(style.GREY, "o", "none"), "open: the paper", filled=False))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _ticks(data: FigureData, panel: str) -> list[str]:
    """The positions; one without a point of ours says so."""
    lacking = {p.x for p in data.points if p.panel == panel and p.source == HERE and p.todo}
    return [label + ("\n(no run)" if slug in lacking else "") for slug, label in data.spec.labels.items()]


def _marks(ax: Axes, data: FigureData, of: tuple[str, str], look: style.Look) -> None:
    """Ours filled and joined, the paper's open and joined by a thin line; side by side, so that neither hides the other."""
    order = {slug: k for k, slug in enumerate(data.spec.labels)}
    alone = data.scale == "reported"
    for source, shift, face, width in ((HERE, -0.08, look.color, 0.8), (PAPER, 0.0 if alone else 0.08, "none", 0.4)):
        points = data.of(*of, source)
        if not points:
            continue  # an empty line that is not clipped has no extent, and the layout of the whole figure fails on it
        places = [order[str(p.x)] + shift for p in points]
        mark = {"marker": look.marker, "markersize": 3.5, "markerfacecolor": face, "clip_on": False, "zorder": 3}
        ax.plot(places, [p.y for p in points], color=look.color, linestyle=look.line, linewidth=width, **mark)
