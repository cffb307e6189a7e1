"""What is printed, independent of the format: parts with headed columns and lines of cells, then lists, then notes.

Every kind of table is turned into one Page; the writers only render it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.spec import RowSpec
from analysis.todo import Todo

DASH = "—"


@dataclass(frozen=True)
class Item:
    """One printed cell; ``strong`` is the leading part that is bold if ``bold``. ``runs``: the run directories that it rests on."""

    strong: str
    rest: str = ""
    bold: bool = False
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A row of a part; without items it is a group heading. ``second``: belongs to the line above it."""

    label: str
    items: tuple[Item, ...] = ()
    second: bool = False


@dataclass(frozen=True)
class Span:
    """Neighbouring columns with a common head ``over`` them ("" for none)."""

    over: str
    heads: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    title: str
    spans: tuple[Span, ...]
    lines: tuple[Line, ...]

    @property
    def width(self) -> int:
        """Columns of numbers."""
        return sum(len(span.heads) for span in self.spans)


@dataclass(frozen=True)
class Entry:
    """A line of a list; ``code`` is a command or a path, copied as it is."""

    text: str
    code: str = ""


@dataclass(frozen=True)
class Page:
    """A whole table. ``folder``: scale, or "reported". ``narrow``: the same parts for a place too narrow for ``parts``."""

    name: str
    folder: str
    heading: str
    title: str
    caption: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    lists: tuple[tuple[str, tuple[Entry, ...]], ...] = ()
    narrow: tuple[Part, ...] = ()


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Rounded for print; a missing value is a dash."""
    if value is None:
        return DASH
    text = f"{value:{'+' if sign else ''}.{decimals}f}"
    # A difference of -0.001 prints as a plain zero: "-0.00" would read as a loss.
    return text if float(text) else f"{0:.{decimals}f}"


def receiver_head(stand_ins: Mapping[str, str], receiver: str) -> str:
    """A stand-in is named first: its numbers must never read as those of the model that it stands for."""
    name = stand_ins.get(receiver, receiver)
    return receiver if name == receiver else f"{name} (for {receiver})"


def heading(name: str, title: str, folder: str) -> str:
    """ "Table 7. ..." for the paper's tables, the title alone for others; then what the numbers are."""
    digits = name.removeprefix("table")
    number_of = f"Table {digits}. " if digits.isdigit() and digits != name else ""
    return f"{number_of}{title} ({'as printed in the paper' if folder == 'reported' else f'scale {folder}'})"


def todo_lists(
    missing: Sequence[Todo], unfinished: Sequence[Todo], unavailable: Sequence[str]
) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
    """The lists of rows that have no number, without the empty ones."""
    lists = [
        (name, tuple(Entry(f"{t.row} ({', '.join(t.receivers)}): ", t.text) for t in todos))
        for name, todos in (("Missing runs", missing), ("Started, not finished", unfinished))
    ]
    lists.append(("Not available in this version", (Entry(", ".join(unavailable)),) if unavailable else ()))
    return tuple((name, entries) for name, entries in lists if entries)


def group_lines(rows: Iterable[tuple[RowSpec, Sequence[Line]]], groups: Mapping[str, str]) -> tuple[Line, ...]:
    """The rows' lines, with a heading wherever the group changes."""
    lines: list[Line] = []
    group = None
    for spec, mine in rows:
        if spec.group != group:
            group = spec.group
            lines.append(Line(groups[group]))
        lines += mine
    return tuple(lines)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Header and rows as CSV with plain newlines."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def csv_number(value: float | None) -> str:
    """To 6 decimals; no value is an empty field."""
    return "" if value is None else repr(round(value, 6) + 0.0)
