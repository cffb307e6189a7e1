"""A Page for the terminal, with rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from analysis.page import Item, Page, Part

# What a pipe or a file gets: wide enough for two receivers side by side.
WIDTH_WITHOUT_TERMINAL = 200


def _text(item: Item) -> Text:
    return Text.assemble((item.strong, "bold green" if item.bold else ""), item.rest, no_wrap=True)


def _grid(part: Part) -> RichTable:
    grid = RichTable(title=Text(part.title), title_justify="left", show_edge=False, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    # Labels may wrap, numbers may not: in a narrow terminal rich then narrows this column alone.
    grid.add_column("", overflow="fold", min_width=12)
    columns = list(zip(*([i.strong + i.rest for i in line.items] for line in part.lines if line.items)))
    for span in part.spans:
        for k, head in enumerate(span.heads):
            # The common head stands over its first column; a column per word keeps numbers aligned.
            over = span.over.replace(" (", "\n(") + "\n" if span.over and k == 0 else ""
            # Said outright, because rich takes the longest word for the least width of a cell that it may not wrap.
            least = max(map(cell_len, (head, *(columns[len(grid.columns) - 1] if columns else ()))))
            grid.add_column(Text(over + head), justify="right", no_wrap=True, vertical="bottom", min_width=least)
    for line in part.lines:
        if line.items:
            indent = "    " if line.second else "  "
            grid.add_row(Text(indent + line.label), *map(_text, line.items), style="dim" if line.second else None)
        else:
            grid.add_row(Text(line.label, style="italic"))
    return grid


def _fits(console: Console, parts: Sequence[Part]) -> bool:
    unlimited = console.options.update(max_width=10_000)
    return max(Measurement.get(console, unlimited, _grid(part)).maximum for part in parts) <= console.width


def print_page(page: Page, console: Console | None = None) -> None:
    """The wide form of the parts if the terminal is wide enough, the narrow one if not: a number is never cut."""
    console = console or Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH_WITHOUT_TERMINAL
    parts = page.narrow if page.narrow and not _fits(console, page.parts) else page.parts
    grids = [_grid(part) for part in parts]
    # Narrower than even that: let the terminal break the lines rather than cut numbers.
    unlimited = console.options.update(max_width=10_000)
    console.width = max(console.width, *(Measurement.get(console, unlimited, grid).minimum for grid in grids))
    console.print(Text(page.heading, style="bold"))
    console.print(page.caption + "\n", markup=False, highlight=False)
    for grid in grids:
        console.print(grid)
        console.print()
    for name, entries in page.lists:
        console.print(Text(name, style="bold"))
        for entry in entries:
            # Not wrapped by us: a command is copied as one line.
            console.print(f"  {entry.text}{entry.code}", soft_wrap=True, markup=False, highlight=False)
    console.print()
    for note in page.notes:
        console.print(f"* {note}", markup=False, highlight=False)
