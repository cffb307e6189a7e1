"""Our figure of the exchange over training: prompts eligible and chosen, responses offered and admitted, and their weights.

From metrics.jsonl of one joint run. The record keeps the mean weight of each step's admitted responses, not single weights, so the
histogram is of these step means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.collect import model_of
from analysis.figures import style
from analysis.figures.common import FigureData, Point, Query, find, measured, not_drawn
from analysis.figures.spec import FigureSpec
from analysis.metrics import Step, count, read_steps
from analysis.page import receiver_head
from experiments.run_record import RunRecord, UserError

PROMPTS, RESPONSES = ("candidates", "selected"), ("offered", "admitted")
WEIGHT, HISTOGRAM = "weight_mean", "histogram of weight_mean"
BIN = 0.02
LOOKS = dict(
    zip(
        (*PROMPTS, *RESPONSES, WEIGHT),
        (style.SPARE[0], style.SPARE[1], style.SPARE[2], style.SPARE[3], style.Look(style.BLACK, "o", "-")),
    )
)


def direction(source: str, receiver: str) -> str:
    return f"{source} -> {receiver}"


def from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Both directions of the pair's joint run."""
    (block,), (row,) = spec.blocks, spec.rows
    found = find(spec, query)
    points: list[Point] = []
    for receiver in block.receivers:
        record, panel = found.done.get((block.pair, row.slug, receiver)), direction(block.peer(receiver), receiver)
        if record is None:
            todo = found.todo[block.pair, row.slug, receiver]
            points += [Point(panel, series, None, None, todo=todo) for series in (*PROMPTS, *RESPONSES, WEIGHT, HISTOGRAM)]
        else:
            points += _points(panel, exchange_rows(record, block.peer(receiver), receiver), record.path.name)
    lines = (
        "candidates: prompts that the receiver fails and the peer solves in part; selected: after balancing, with ties; offered, admitted: "
        "peer responses before and after the gate (docs/metrics.md).",
        "Weights: the mean over a step's admitted responses (records hold no single weights); the histogram counts steps. A step without "
        "an admitted response has none.",
    )
    foot = ("Weight: mean over the admitted responses of a step; right: number of steps by that mean.",)
    return measured(found, points, lines=lines, foot=foot)


def exchange_rows(record: RunRecord, source: str, receiver: str) -> list[tuple[Step, Mapping[str, Any]]]:
    """(step, its row of one direction). UserError for a step without one."""
    names = [(model_of(record, x) or {}).get("name") for x in (source, receiver)]
    rows = []
    for step in read_steps(record.path):
        mine = [r for r in step.exchange if [r.get("source"), r.get("receiver")] == names]
        if len(mine) != 1:
            raise UserError(f"{step.where}: {len(mine)} exchange rows {names[0]} -> {names[1]}, one is needed")
        rows.append((step, mine[0]))
    return rows


def _points(panel: str, rows: Sequence[tuple[Step, Mapping[str, Any]]], run: str) -> list[Point]:
    points = [
        Point(panel, series, step.step, count(row, series, step.where), runs=(run,))
        for series in (*PROMPTS, *RESPONSES)
        for step, row in rows
    ]
    weights = [(step, _weight(row, step.where)) for step, row in rows]
    none = "no response admitted in this step"
    points += [Point(panel, WEIGHT, step.step, w, runs=(run,), todo=none if w is None else "") for step, w in weights]
    bins = histogram([w for _, w in weights if w is not None])
    return points + [Point(panel, HISTOGRAM, low, steps, runs=(run,)) for low, steps in bins]


def _weight(row: Mapping[str, Any], where: str) -> float | None:
    value = row.get(WEIGHT)
    if count(row, "admitted", where) and type(value) not in (int, float):
        raise UserError(f"{where}: weight_mean is {value!r} with {row['admitted']} admitted responses")
    return None if value is None else float(value)


def histogram(weights: Sequence[float]) -> list[tuple[float, int]]:
    """(lower edge, how many) of bins of width ``BIN`` from the lowest to the highest that is not empty; 1 is in the last bin below 1."""
    places = [min(int(w / BIN + 1e-9), round(1 / BIN) - 1) if w <= 1 else int(w / BIN + 1e-9) for w in weights]
    return [(k * BIN, places.count(k)) for k in range(min(places), max(places) + 1)] if places else []


def draw(data: FigureData) -> Figure:
    """A line of panels per direction: prompts, responses, weights, their histogram."""
    (block,) = data.spec.blocks
    lacking = not_drawn(data) if not data.of(direction(*block.receivers), PROMPTS[0]) else ()
    figure = style.new_figure(style.DOUBLE, 3.6, (*data.foot, *(("No finished joint run.",) if lacking else ())))
    axes = figure.subplots(2, 4, width_ratios=(1, 1, 1, 0.45))
    for line, receiver in zip(axes, block.receivers, strict=True):
        panel = direction(block.peer(receiver), receiver)
        head = f"{receiver_head(data.stand_ins, block.peer(receiver))} → {receiver_head(data.stand_ins, receiver)}"
        line[0].set_title(head, loc="left")
        _lines(line[0], data, panel, PROMPTS, "prompts a step")
        _lines(line[1], data, panel, RESPONSES, "peer responses a step")
        _lines(line[2], data, panel, (WEIGHT,), "mean weight")
        _bars(line[3], data, panel)
        line[3].sharey(line[2])
        if steps := [p.x for p in data.of(panel, PROMPTS[0])]:
            for ax in line[:3]:
                ax.set_xlim(0, max(steps) * 1.02)
    for ax, label in zip(axes[1], ("step", "step", "step", "steps"), strict=True):
        ax.set_xlabel(label)
    handles = [style.handle(LOOKS[s], s.replace("_", " "), line=True) for s in LOOKS]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _lines(ax: Axes, data: FigureData, panel: str, series: Sequence[str], label: str) -> None:
    for name in series:
        look, points = LOOKS[name], data.of(panel, name)
        ax.plot(
            [p.x for p in points],
            [p.y for p in points],
            color=look.color,
            linestyle=look.line,
            linewidth=0.9,
            marker=look.marker,
            markersize=1.6,
        )
    ax.set_ylabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    if series[0] != WEIGHT:
        ax.set_ylim(bottom=0)
    if not any(data.of(panel, name) for name in series):
        style.empty(ax, "no run")


def _bars(ax: Axes, data: FigureData, panel: str) -> None:
    points = data.of(panel, HISTOGRAM)
    ax.barh([p.x for p in points], [p.y for p in points], height=BIN, align="edge", color=style.GREY, edgecolor="white")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
    ax.tick_params(labelleft=False)
