"""A Table for the terminal, with rich."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from analysis.tables import Table
from analysis.writers import Item, Part, columns, layout, receiver_head, title, todo_lines

# What a pipe or a file gets: wide enough for two receivers side by side.
WIDTH_WITHOUT_TERMINAL = 200


def _text(item: Item) -> Text:
    return Text.assemble((item.strong, "bold green" if item.bold else ""), item.rest, no_wrap=True)


def _grid(table: Table, part: Part, receivers: tuple[str, ...]) -> RichTable:
    grid = RichTable(title=Text(part.title), title_justify="left", show_edge=False)
    # Labels may wrap, numbers may not: in a narrow terminal rich then narrows this column alone.
    grid.add_column("", overflow="fold", min_width=12)
    for receiver in receivers:
        for k, head in enumerate(columns(table)):
            # The receiver's name stands over its first column; a column per word keeps numbers aligned.
            over = receiver_head(table, receiver).replace(" (", "\n(") if k == 0 else ""
            grid.add_column(Text(f"{over}\n{head}"), justify="right", no_wrap=True, vertical="bottom")
    for line in part.lines:
        if line.items:
            grid.add_row(Text("  " + line.label), *map(_text, line.items))
        else:
            grid.add_row(Text(line.label, style="italic"))
    return grid


def print_table(table: Table, console: Console | None = None) -> None:
    """Receivers side by side if the terminal is wide enough, one under the other if not: a number is never cut."""
    console = console or Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH_WITHOUT_TERMINAL
    receivers = table.spec.receivers
    unlimited = console.options.update(max_width=10_000)
    widest = max(Measurement.get(console, unlimited, _grid(table, part, receivers)).maximum for part in layout(table))
    blocks = [receivers] if widest <= console.width else [(x,) for x in receivers]
    grids = [_grid(table, part, block) for block in blocks for part in layout(table, block)]
    # Narrower than even that: let the terminal break the lines rather than cut numbers.
    console.width = max(console.width, *(Measurement.get(console, unlimited, grid).minimum for grid in grids))
    console.print(Text(title(table), style="bold"))
    console.print(table.spec.caption.strip() + "\n", markup=False, highlight=False)
    for grid in grids:
        console.print(grid)
        console.print()
    for heading, lines in todo_lines(table, lambda text: text):
        console.print(Text(heading, style="bold"))
        for line in lines:
            # Not wrapped by us: a command is copied as one line.
            console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    console.print()
    for note in table.notes:
        console.print(f"* {note}", markup=False, highlight=False)
