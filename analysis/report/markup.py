"""Data -> HTML text. Everything that is not a literal of this package goes through ``esc``."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from analysis.page import DASH, Item, Part

NUMERIC = re.compile(rf"\s*([-+]?\d.*|{DASH}|n/a)?")
Href = Callable[[tuple[str, ...]], str]


@dataclass(frozen=True)
class Td:
    """``strong`` is bold; ``href`` makes the whole cell a link; ``chip``: the class of a coloured mark, whose text says it as well.

    ``more``: lines (what, text) that are folded up under the cell; those without a text are left out.
    """

    text: str
    strong: str = ""
    href: str = ""
    chip: str = ""
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Tr:
    """``label`` heads the row; ``second``: belongs to the row above it and stays with it. ``id``: anchor of the row."""

    label: Td
    cells: tuple[Td, ...]
    second: bool = False
    id: str = ""


@dataclass(frozen=True)
class Body:
    """Rows under a common heading ("" for none)."""

    heading: str
    rows: tuple[Tr, ...]


@dataclass(frozen=True)
class Head:
    """Of a column. ``numeric``: sorted as numbers and set right. ``over``: the common head above it and its neighbours."""

    text: str
    numeric: bool = False
    over: str = ""


def esc(text: object) -> str:
    """Safe as text and within a quoted attribute."""
    return html.escape(str(text), quote=True)


def link(href: str, text: str) -> str:
    return f'<a href="{esc(href)}">{esc(text)}</a>'


def data_uri(media: str, content: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"


def csv_link(name: str, csv: str) -> str:
    """The CSV file itself, in the page."""
    uri = data_uri("text/csv;charset=utf-8", csv.encode())
    return f'<p class="files"><a download="{esc(name)}.csv" href="{uri}">{esc(name)}.csv</a></p>'


def details(summary: str, body: str) -> str:
    return f"<details><summary>{esc(summary)}</summary>\n{body}\n</details>"


def bullets(items: Iterable[str], cls: str = "") -> str:
    """``items``: HTML."""
    inside = "\n".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="{cls}">\n{inside}\n</ul>' if inside else ""


def table(ident: str, caption: str, heads: Sequence[Head], bodies: Sequence[Body]) -> str:
    """A table that scrolls within its own box and whose columns sort by a click. The first head is that of the row labels."""
    rows = "\n".join(_body(body, heads) for body in bodies)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(caption)}">\n<table id="{esc(ident)}" class="sortable">\n'
        f"<caption><span>{esc(caption)}</span></caption>\n<thead>\n{_over(heads)}{_heads(heads)}</thead>\n{rows}\n</table>\n</div>"
    )


def _over(heads: Sequence[Head]) -> str:
    """The row of common heads; none if no column has one."""
    if not any(head.over for head in heads):
        return ""
    groups: list[list[Head]] = []
    for head in heads[1:]:
        if groups and groups[-1][0].over == head.over:
            groups[-1].append(head)
        else:
            groups.append([head])
    cells = "".join(f'<th scope="colgroup" colspan="{len(g)}">{esc(g[0].over)}</th>' for g in groups)
    return f"<tr><td></td>{cells}</tr>\n"


def _heads(heads: Sequence[Head]) -> str:
    def one(head: Head) -> str:
        return f'<th scope="col"{_number(head)}><button type="button">{esc(head.text)}</button></th>'

    return f"<tr>{''.join(map(one, heads))}</tr>\n"


def _number(head: Head) -> str:
    return ' class="n"' if head.numeric else ""


def _body(body: Body, heads: Sequence[Head]) -> str:
    rows = "\n".join(_row(row, body.heading, heads) for row in body.rows)
    if not body.heading:
        return f"<tbody>\n{rows}\n</tbody>"
    return (
        f'<tbody>\n<tr class="group"><th colspan="{len(heads)}" scope="rowgroup">{esc(body.heading)}</th></tr>\n{rows}\n</tbody>'
    )


def _row(row: Tr, group: str, heads: Sequence[Head]) -> str:
    # Sorted over all groups a row has to say which one it is of.
    of = f'<span class="of">{esc(group)}: </span>' if group and not row.second else ""
    cells = "".join(f"<td{_number(head)}>{_cell(td)}</td>" for td, head in zip(row.cells, heads[1:], strict=True))
    cls, ident = ' class="second"' if row.second else "", f' id="{esc(row.id)}"' if row.id else ""
    return f'<tr{cls}{ident}><th scope="row">{of}{_cell(row.label)}</th>{cells}</tr>'


def _cell(td: Td) -> str:
    text = (f"<b>{esc(td.strong)}</b>" if td.strong else "") + esc(td.text)
    if td.chip:
        text = f'<span class="chip {esc(td.chip)}">{text}</span>'
    text = f'<a href="{esc(td.href)}">{text}</a>' if td.href and text else text
    return text + (
        details("more", bullets(f"<i>{esc(what)}:</i> {esc(line)}" for what, line in td.more if line)) if td.more else ""
    )


def part_table(ident: str, part: Part, href: Href) -> str:
    """A part of a page as a table; a number links to what ``href`` says of its runs."""
    heads = [Head(head, _is_numeric(part, k), span.over) for k, (span, head) in enumerate(_columns(part))]
    bodies: list[tuple[str, list[Tr]]] = []
    for line in part.lines:
        if not line.items or not bodies:
            bodies.append(("" if line.items else line.label, []))
        if line.items:
            bodies[-1][1].append(Tr(Td(line.label), tuple(_item(item, href) for item in line.items), line.second))
    return table(ident, part.title, [Head("row"), *heads], [Body(heading, tuple(rows)) for heading, rows in bodies])


def _columns(part: Part) -> list[tuple]:
    return [(span, head) for span in part.spans for head in span.heads]


def _is_numeric(part: Part, column: int) -> bool:
    return all(NUMERIC.fullmatch(line.items[column].strong) for line in part.lines if line.items)


def _item(item: Item, href: Href) -> Td:
    where = href(item.runs)
    return Td(item.rest, item.strong, where) if item.bold else Td(item.strong + item.rest, "", where)
