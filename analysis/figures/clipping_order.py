"""Our figure of table 9: how much of own and of grafted tokens the clip removes, by the position of the peer minibatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import clipping
from analysis.clipping import OWN, SHARE, ZERO, ClippingSpec, Quantity, Value
from analysis.figures import style
from analysis.figures.common import HERE, PAPER, FigureData, Point, Query, as_printed, find, measured, not_drawn
from analysis.figures.spec import FigureSpec
from analysis.page import receiver_head
from experiments.run_record import UserError

TABLE = "table9"
ALL_STEPS = "steps without a clipped peer token"
KINDS = {OWN: ("own tokens", style.SPARE[0]), clipping.PEER: ("grafted tokens", style.SPARE[1])}
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
    return (ALL_STEPS, "both models") if name == ZERO else (receiver, update)


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
    return measured(spec, query, found, [*points, *_paper(table)], lines=lines, foot=(f"{RULE}, {span} of one training run.",))


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
    figure = style.new_figure(style.DOUBLE, 2.3, (*data.foot, *not_drawn(data)))
    axes = figure.subplots(1, 3)
    series: Sequence[Mapping[str, tuple[str, style.Look]]] = (KINDS, KINDS, {"both models": ("both models", style.SPARE[2])})
    panels = (*block.receivers, ALL_STEPS)
    for ax, panel, mine in zip(axes, panels, series, strict=True):
        for name, (_, look) in mine.items():
            _marks(ax, data, panel, name, look)
        ax.set_xticks(range(len(data.spec.rows)), list(data.spec.labels.values()))
        ax.set_xlim(-0.5, len(data.spec.rows) - 0.5)
        ax.set_title("steps with no clipped\npeer token, %" if panel == ALL_STEPS else f"{receiver_head(data.stand_ins, panel)}\nclipped tokens, %")  # fmt: skip
        ax.set_ylim(bottom=0 if panel != ALL_STEPS else -4, top=None if panel != ALL_STEPS else 104)
    handles = [style.handle(look, label) for label, look in (*KINDS.values(), ("steps, both models", style.SPARE[2]))]
    figure.legend(handles=[*handles, style.handle(style.Look(style.GREY, "o", "none"), "open: the paper", filled=False)],
                  loc="outside upper center", ncols=4)  # fmt: skip
    return figure


def _marks(ax: Axes, data: FigureData, panel: str, name: str, look: style.Look) -> None:
    """Ours filled and joined, the paper's open; a position without a run says so at its place."""
    order = {slug: k for k, slug in enumerate(data.spec.labels)}
    for source, shift, face in ((HERE, -0.08, look.color), (PAPER, 0.08, "none")):
        points = data.of(panel, name, source)
        places = [order[str(p.x)] + shift for p in points]
        ax.plot(places, [p.y for p in points], color=look.color, marker=look.marker, markerfacecolor=face, linestyle=look.line,
                linewidth=0.8 if source == HERE else 0.4)  # fmt: skip
        if source == HERE and data.scale != "reported":
            for slug in order.keys() - {p.x for p in points}:
                ax.annotate(
                    "no run", (order[slug], 0.97), xycoords=("data", "axes fraction"), ha="center", va="top", color=style.GREY
                )
