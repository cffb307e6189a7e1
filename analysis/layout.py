"""A Table of pass@1 as a Page and as CSV.

One column (the average): the receivers stand side by side, each with our values and the paper's. Several columns (benchmarks):
one part per receiver, and a row's values in the paper stand on a line of their own under ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analysis.page import (
    DASH,
    Item,
    Line,
    Page,
    Part,
    Span,
    csv_number,
    csv_text,
    group_lines,
    heading,
    number,
    receiver_head,
    todo_lists,
)
from analysis.pairs import PairsTable
from analysis.spec import AVERAGE, TableSpec
from analysis.tables import Cell, Row, Table
from analysis.todo import SHORT

CSV_COLUMNS = [
    *("row", "receiver", "benchmark", "mean", "std", "n", "N", "delta"),
    *("reported_mean", "reported_std", "reported_delta"),
]


def to_page(table: Table) -> Page:
    """What is printed of a table; with one column also a form with one receiver per part."""
    spec = table.spec
    single = [part for x in spec.receivers for part in _parts(table, (x,))]
    stacked = len(spec.columns) > 1
    return Page(
        name=spec.name,
        folder=table.scale,
        heading=heading(spec.name, spec.title, table.scale),
        title=spec.title,
        caption=spec.caption.strip(),
        parts=tuple(single) if stacked else tuple(_parts(table, spec.receivers)),
        notes=table.notes,
        lists=todo_lists(table.missing, table.unfinished, table.unavailable),
        narrow=() if stacked else tuple(single),
    )


def pairs_page(table: PairsTable) -> Page:
    """The blocks by receiver, then pair, as the paper has them; lists and notes once for all."""
    blocks = [(x, t) for x in table.spec.receivers for t in table.tables if x in t.spec.receivers]
    first = table.tables[0]
    return Page(
        name=table.spec.name,
        folder=first.scale,
        heading=heading(table.spec.name, first.spec.title, first.scale),
        title=first.spec.title,
        caption=first.spec.caption.strip(),
        parts=tuple(part for x, t in blocks for part in _block_parts(t, x)),
        notes=table.notes,
        lists=todo_lists(
            [entry for t in table.tables for entry in t.missing],
            [entry for t in table.tables for entry in t.unfinished],
            list(dict.fromkeys(slug for t in table.tables for slug in t.unavailable)),
        ),
    )


def _block_parts(table: Table, receiver: str) -> list[Part]:
    """The parts of one receiver, with its peer in the title."""
    (peer,) = (x for x in table.spec.receivers if x != receiver)
    with_peer = f"{receiver_head(table.stand_ins, receiver)} with {receiver_head(table.stand_ins, peer)}"
    return [replace(part, title=f"{part.title.split(':')[0]}: {with_peer}") for part in _parts(table, (receiver,))]


def _parts(table: Table, receivers: tuple[str, ...]) -> list[Part]:
    """Parts of the table in spec order for the given receivers."""
    spec = table.spec
    stacked = len(spec.columns) > 1
    parts = []
    for slug, title in spec.parts.items():
        shown = [row for row in table.rows if not row.spec.parts or slug in row.spec.parts]
        title = f"({slug}) {title}" if len(spec.parts) > 1 else title
        heads = [receiver_head(table.stand_ins, x) for x in receivers]
        if stacked:
            spans = [Span("", _stacked_heads(table))]
            title = f"{title}: {heads[0]}"
            lines = group_lines(((row.spec, _stacked_lines(table, row, receivers[0])) for row in shown), spec.groups)
        else:
            spans = [Span(head, _flat_heads(table)) for head in heads]
            lines = group_lines(((row.spec, [_flat_line(table, row, receivers)]) for row in shown), spec.groups)
        parts.append(Part(title, tuple(spans), lines))
    return parts


def _spread(mean: float | None, std: float | None, decimals: int) -> tuple[str, str]:
    return number(mean, decimals), "" if mean is None else f" ± {number(std, decimals)}"


def _ours(cell: Cell, decimals: int) -> Item:
    strong, rest = _spread(cell.mean, cell.std, decimals)
    return Item(strong, cell.mark + rest + (f" {SHORT}" if cell.state == "short" else ""), cell.best, cell.runs)


def _asked(cell: Cell) -> Item:
    return Item("n/a" if cell.state == "unavailable" else f"{cell.n}/{DASH if cell.N is None else cell.N}", runs=cell.runs)


def _delta(value: float | None, spec: TableSpec, runs: tuple[str, ...] = ()) -> Item:
    return Item(number(value, spec.decimals, sign=True), runs=runs if value is not None else ())


def _our_delta(table: Table, row: Row, place: tuple[str, str]) -> Item:
    """It rests on the runs of the reference, too."""
    reference = next((r.cells[place].runs for r in table.rows if r.spec.slug == table.spec.reference), ())
    return _delta(row.cells[place].delta, table.spec, tuple(dict.fromkeys((*row.cells[place].runs, *reference))))


def _paper(cell: Cell, spec: TableSpec) -> Item:
    """The paper's value; bold and marks are known only in a table of the paper's own values (else they are those of ours)."""
    strong, rest = _spread(cell.reported_mean, cell.reported_std, spec.decimals)
    return Item(strong, cell.mark + rest, cell.best) if cell.state == "reported" else Item(strong, rest)


def _flat_heads(table: Table) -> tuple[str, ...]:
    paper = ("paper", "paper Δ") if table.spec.reported else ()
    return ("pass@1", "n/N", "Δ", *paper) if table.source == "runs" else paper


def _flat_line(table: Table, row: Row, receivers: Sequence[str]) -> Line:
    spec = table.spec
    (column,) = spec.columns
    items: list[Item] = []
    for receiver in receivers:
        cell = row.cells[receiver, column]
        if table.source == "runs":
            items += [_ours(cell, spec.decimals), _asked(cell), _our_delta(table, row, (receiver, column))]
        if spec.reported:
            items += [_paper(cell, spec), _delta(cell.reported_delta, spec)]
    return Line(row.spec.label, tuple(items))


def _stacked_heads(table: Table) -> tuple[str, ...]:
    return (*table.spec.columns.values(), *(("n/N",) if table.source == "runs" else ()), "Δ")


def _stacked_lines(table: Table, row: Row, receiver: str) -> list[Line]:
    """Ours, then the paper's if it has the row. n/N and the difference are those of the average."""
    spec = table.spec
    cells = [row.cells[receiver, c] for c in spec.columns]
    average = row.cells[receiver, AVERAGE]
    reported = (*(_paper(cell, spec) for cell in cells),)
    paper_delta = _delta(average.reported_delta, spec)
    if table.source == "reported":
        return [Line(row.spec.label, (*reported, paper_delta))]
    ours = (*(_ours(cell, spec.decimals) for cell in cells), _asked(average), _our_delta(table, row, (receiver, AVERAGE)))
    lines = [Line(row.spec.label, ours)]
    if average.reported_mean is not None:
        lines.append(Line("paper", (*reported, Item(""), paper_delta), second=True))
    return lines


def _csv_row(row: Row, receiver: str, column: str) -> list[str]:
    cell = row.cells[receiver, column]
    reported = [cell.reported_mean, cell.reported_std, cell.reported_delta]
    counts = ["", ""] if cell.state == "reported" else [str(cell.n), "" if cell.N is None else str(cell.N)]
    measured = [csv_number(cell.mean), csv_number(cell.std), *counts, csv_number(cell.delta)]
    return [row.spec.slug, receiver, column, *measured, *map(csv_number, reported)]


def to_csv(table: Table) -> str:
    """One line per row, receiver and column (a row printed in two parts once); percent points; no value = empty field."""
    keys = [(row, x, c) for row in table.rows for x in table.spec.receivers for c in table.spec.columns]
    return csv_text(CSV_COLUMNS, (_csv_row(*key) for key in keys))


def pairs_csv(table: PairsTable) -> str:
    """As ``to_csv``, for every pair, with the pair and the receiver's peer behind. A model trained alone stands in each of its pairs."""
    lines = []
    for t in table.tables:
        for row in t.rows:
            for x in t.spec.receivers:
                peer = next(y for y in t.spec.receivers if y != x)
                lines += [[*_csv_row(row, x, column), t.spec.pair, peer] for column in t.spec.columns]
    return csv_text([*CSV_COLUMNS, "pair", "peer"], lines)
