"""A titled list of lines of text, for the terminal, as markdown and as CSV. What is no table of scores is printed by this."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.page import csv_text
from analysis.terminal import WIDTH_WITHOUT_TERMINAL

FORMATS = ("term", "md", "csv")


@dataclass(frozen=True)
class Listing:
    """``rows`` have one text per column; ``fixed`` names the columns that a narrow terminal does not wrap."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


def to_markdown(listing: Listing) -> str:
    """Heading, one table, notes."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "---|" * len(listing.columns)
    out = [f"## {listing.title}", "", line(listing.columns), rule, *map(line, listing.rows), ""]
    return "\n".join([*out, *(f"- {note}" for note in listing.notes)]).rstrip() + "\n"


def to_csv(listing: Listing) -> str:
    """Header and rows, without title and notes."""
    return csv_text(listing.columns, listing.rows)


def print_listing(listing: Listing, form: str = "term", console: Console | None = None) -> None:
    """To standard output in one of ``FORMATS``."""
    if form != "term":
        sys.stdout.write(to_markdown(listing) if form == "md" else to_csv(listing))
        return
    console = console or Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH_WITHOUT_TERMINAL
    grid = Table(title=Text(listing.title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in listing.columns:
        grid.add_column(column, no_wrap=column in listing.fixed, overflow="fold")
    for row in listing.rows:
        grid.add_row(*map(Text, row))
    console.print(grid)
    console.print()
    for note in listing.notes:
        console.print(f"* {note}")
