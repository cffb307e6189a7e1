"""What all figures share: the runs behind them, their data as points, notes, and the CSV and page of those.

A figure is its data: ``from_runs`` or ``from_reported`` of a kind makes ``FigureData``, ``draw`` only renders it. A run that is not
there gives a point without a value that says which command makes it; a point is never left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.cells import Expression, Key, Leaf, Operation, Value, evaluate, half_width
from analysis.collect import Match
from analysis.figures.spec import FigureSpec
from analysis.footer import commits, scale_note, stand_ins
from analysis.page import Item, Line, Page, Part, Span, csv_number, csv_text, number, todo_lists
from analysis.paper import Reported
from analysis.spec import RowSpec
from analysis.tables import match_row
from analysis.todo import Todo, progress, train_command, why_no_run
from experiments.run_record import RunRecord

CSV_COLUMNS = ("panel", "series", "x", "y", "low", "high", "source", "runs", "todo")
HERE, PAPER = "runs", "paper"  # the two sources of a point
UNAVAILABLE = "not available in this version"
# (pair, row slug, receiver)
Place = tuple[str, str, str]


@dataclass(frozen=True)
class Query:
    """Which runs are asked for. ``methods``: folder with one YAML per method that this version has."""

    records: Sequence[RunRecord]
    scale: str
    seed: int
    methods: Path


@dataclass(frozen=True)
class Point:
    """One mark. ``low``, ``high``: its interval. ``runs``: the run directories (or files) behind it. ``todo``: why it has no value."""

    panel: str
    series: str
    x: float | str | None
    y: float | None
    low: float | None = None
    high: float | None = None
    source: str = HERE
    runs: tuple[str, ...] = ()
    todo: str = ""


@dataclass(frozen=True)
class Found:
    """The finished runs by place, and why there is none at the other places (``todo``, in words or as a command)."""

    spec: FigureSpec
    query: Query
    done: Mapping[Place, RunRecord]
    todo: Mapping[Place, str]
    missing: tuple[Todo, ...]
    unfinished: tuple[Todo, ...]
    unavailable: tuple[str, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """One line naming what stands for what; none if nothing does."""
        return stand_ins([m for r in self.used for m in r.config["recipe"]["models"]], "Models")

    @property
    def used(self) -> list[RunRecord]:
        """Each run once."""
        return list({record.path: record for record in self.done.values()}.values())


@dataclass(frozen=True)
class FigureData:
    """``scale``: of the runs, or "reported". ``foot``: short lines for the picture; ``notes``: the whole story, for the page.

    ``stand_ins``: receiver -> the model that stands for it. ``unit``: of device-hours, where the figure shows some.
    """

    spec: FigureSpec
    scale: str
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    foot: tuple[str, ...] = ()
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""
    missing: tuple[Todo, ...] = ()
    unfinished: tuple[Todo, ...] = ()
    unavailable: tuple[str, ...] = ()

    def of(self, panel: str, series: str, source: str = HERE) -> list[Point]:
        """The points of one series that have a value, in order."""
        chosen = (p for p in self.points if (p.panel, p.series, p.source) == (panel, series, source))
        return [p for p in chosen if p.y is not None and p.x is not None]


def find(spec: FigureSpec, query: Query) -> Found:
    """The runs of every row for every receiver of every pair."""
    done: dict[Place, RunRecord] = {}
    todo: dict[Place, str] = {}
    lists: dict[str, list[Todo]] = {"missing": [], "unfinished": []}
    unavailable: list[str] = []
    for block in spec.blocks:
        for row in spec.rows:
            matches = {x: match_row(query.records, row, block.pair, x, query.scale, query.seed) for x in block.receivers}
            done |= {(block.pair, row.slug, x): m.done for x, m in matches.items() if m.done}
            for state, text, receivers in _lacking(row, matches, block.pair, query):
                command = train_command(row, pair=block.pair, seed=query.seed, scale=query.scale)
                why = f"{text}; {command}" if state == "unfinished" else text
                todo |= {(block.pair, row.slug, x): why for x in receivers}
                if state in lists:
                    lists[state].append(Todo(row.slug, receivers, text))
                elif row.slug not in unavailable:
                    unavailable.append(row.slug)
    return Found(spec, query, done, todo, tuple(lists["missing"]), tuple(lists["unfinished"]), tuple(unavailable))


def _lacking(row: RowSpec, matches: Mapping[str, Match], pair: str, query: Query) -> Iterable[tuple[str, str, tuple[str, ...]]]:
    """(state, text, receivers) of the receivers without a finished run."""
    states: dict[str, list[str]] = {}
    for receiver, found in matches.items():
        if found.done is None:
            state = "unfinished" if found.unfinished else why_no_run(row, query.methods)
            states.setdefault(state, []).append(receiver)
    for state, receivers in states.items():
        if state == "missing":
            text = train_command(row, pair=pair, seed=query.seed, scale=query.scale)
        else:
            text = progress([matches[x] for x in receivers]) if state == "unfinished" else UNAVAILABLE
        yield state, text, tuple(receivers)


def measured(
    found: Found, points: Iterable[Point], *, lines: Sequence[str], foot: Sequence[str] = (), unit: str = ""
) -> FigureData:
    """The data of a figure of runs. ``lines``: what the kind has to say; scale, stand-ins, seed and commits are added."""
    spec, query = found.spec, found.query
    points = tuple(points)
    paper = any(p.source == PAPER for p in points)
    models = [m for r in found.used for m in r.config["recipe"]["models"]]
    head = scale_note(query.scale, paper=paper)
    tail = f"Training seed {query.seed}. Commits: {commits(found.used)}."
    if not found.used:
        tail = f"No finished run of this figure was found (scale {query.scale}, seed {query.seed})."
    return FigureData(
        spec=spec,
        scale=query.scale,
        points=points,
        notes=(head, *found.models, *lines, tail),
        foot=(*_foot(query.scale, paper), *foot),
        stand_ins={m["stands_for"]: m["name"] for m in models},
        unit=unit,
        missing=found.missing,
        unfinished=found.unfinished,
        unavailable=found.unavailable,
    )


def _foot(scale: str, paper: bool) -> tuple[str, ...]:
    if scale == "paper":
        return ()
    what = (
        "a handful of steps of small stand-ins; claims nothing" if scale == "smoke" else "small stand-in models, generated tasks"
    )
    beside = "; not comparable in level with the paper's values" if paper else ""
    return (f"Scale {scale}: {what}{beside}.",)


def as_printed(
    spec: FigureSpec, points: Iterable[Point], *, source: str, lines: Sequence[str] = (), foot: Sequence[str] = (), unit: str = ""
) -> FigureData:
    """The data of a figure of the paper's own numbers; ``source``: where they are printed."""
    note = f"The paper's values ({source}); nothing here was measured with this code."
    return FigureData(spec, "reported", tuple(points), (note, *lines), (note, *foot), unit=unit)


def paper_number(
    reported: Reported, keys: Sequence[Key], operation: str = "mean"
) -> tuple[float, float | None, float | None] | None:
    """(value, low, high) of an operation on printed cells, 95 % over their replicates; None if one was not printed."""
    values: dict[Key, Value] = {}
    for key in keys:
        if (value := reported.cell(key)) is None:
            return None
        values[key] = value
    expression: Expression = Operation(operation, tuple(Leaf(key) for key in keys))
    result = evaluate(expression, values)
    half = half_width(result, values)
    return result.value, *((None, None) if half is None else (result.value - half, result.value + half))


def panel_of(pair: str, receiver: str) -> str:
    return f"pair {pair}: {receiver}"


def not_drawn(data: FigureData) -> tuple[str, ...]:
    """Lines for the picture that name the series without a point; with the panels, where it has some. None if nothing lacks."""
    out = []
    for source, why in ((HERE, "no finished run"), (PAPER, "not printed")):
        mine = [p for p in data.points if p.source == source]
        drawn = {(p.series, p.panel) for p in mine if p.y is not None}
        lacking: dict[str, dict[str, None]] = {}
        for p in mine:
            if p.todo:
                lacking.setdefault(p.series, {})[p.panel] = None
        names = []
        for series, panels in lacking.items():
            parts = [panel + (" in part" if (series, panel) in drawn else "") for panel in panels]
            whole = all(s != series for s, _ in drawn)
            names.append(data.spec.labels.get(series, series) + ("" if whole else f" ({', '.join(parts)})"))
        if names:
            out.append(f"Without a point ({why}): {'; '.join(names)}.")
    return tuple(out)


def to_csv(data: FigureData) -> str:
    """One line per point, those without a value included."""

    def text(value: float | str | None) -> str:
        return value if isinstance(value, str) else csv_number(value)

    rows = (
        [p.panel, p.series, text(p.x), *map(csv_number, (p.y, p.low, p.high)), p.source, " ".join(p.runs), p.todo]
        for p in data.points
    )
    return csv_text(CSV_COLUMNS, rows)


def to_page(data: FigureData) -> Page:
    """A figure in words: per panel and series how many points there are and in which range, then notes and what is missing."""
    series: dict[str, dict[tuple[str, str], list[Point]]] = {}
    for p in data.points:
        series.setdefault(p.panel, {}).setdefault((p.series, p.source), []).append(p)
    spec = data.spec
    parts = tuple(
        Part(panel, (Span("", ("source", "points", "without value", "lowest", "highest", "last")),), tuple(_lines(spec, mine)))
        for panel, mine in series.items()
    )
    what = "as printed in the paper" if data.scale == "reported" else f"scale {data.scale}"
    return Page(
        name=spec.name,
        folder=data.scale,
        heading=f"{spec.title} ({what})",
        title=spec.title,
        caption=spec.caption.strip(),
        parts=parts,
        notes=data.notes,
        lists=todo_lists(data.missing, data.unfinished, data.unavailable),
    )


def _lines(spec: FigureSpec, mine: Mapping[tuple[str, str], Sequence[Point]]) -> Iterable[Line]:
    for (slug, source), points in mine.items():
        values = [p.y for p in points if p.y is not None]
        counts = (source, str(len(values)), str(len(points) - len(values)))
        shown = (min(values), max(values), values[-1]) if values else (None, None, None)
        runs = tuple(dict.fromkeys(run for p in points if p.y is not None for run in p.runs))
        numbers = (Item(number(v, 2), runs=() if v is None else runs) for v in shown)
        yield Line(spec.labels.get(slug, slug), (*map(Item, counts), *numbers))
