"""A Table as markdown, LaTeX, CSV or a terminal table. One layout decides what is printed where; each writer only renders it."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from analysis.tables import AVERAGE, Cell, Row, Table

CSV_COLUMNS = [
    *("row", "receiver", "benchmark", "mean", "std", "n", "N", "delta"),
    *("reported_mean", "reported_std", "reported_delta"),
]
DASH = "—"


@dataclass(frozen=True)
class Item:
    """One printed cell; ``strong`` is the leading part that is bold if ``bold``."""

    strong: str
    rest: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Line:
    """A row of the layout; without items it is a group heading."""

    label: str
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Part:
    title: str
    lines: tuple[Line, ...]


def _number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    if value is None:
        return DASH
    text = f"{value:{'+' if sign else ''}.{decimals}f}"
    # A difference of -0.001 prints as a plain zero: "-0.00" would read as a loss.
    return text if float(text) else f"{0:.{decimals}f}"


def _spread(mean: float | None, std: float | None, decimals: int) -> tuple[str, str]:
    return _number(mean, decimals), "" if mean is None else f" ± {_number(std, decimals)}"


def columns(table: Table) -> tuple[str, ...]:
    """Column heads under one receiver."""
    paper = ("paper", "paper Δ")
    return ("pass@1", "n/N", "Δ", *paper) if table.source == "runs" else paper


def receiver_head(table: Table, receiver: str) -> str:
    """A stand-in is named first: its numbers must never read as those of the model that it stands for."""
    name = table.stand_ins.get(receiver, receiver)
    return receiver if name == receiver else f"{name} (for {receiver})"


def _items(table: Table, cell: Cell) -> tuple[Item, ...]:
    decimals = table.spec.decimals
    paper, paper_rest = _spread(cell.reported_mean, cell.reported_std, decimals)
    printed = (Item(paper, paper_rest), Item(_number(cell.reported_delta, decimals, sign=True)))
    if table.source == "reported":
        return printed
    strong, rest = _spread(cell.mean, cell.std, decimals)
    mark = " †" if cell.state == "short" else ""
    asked = "n/a" if cell.state == "unavailable" else f"{cell.n}/{DASH if cell.N is None else cell.N}"
    return (Item(strong, rest + mark, cell.best), Item(asked), Item(_number(cell.delta, decimals, sign=True)), *printed)


def layout(table: Table, receivers: tuple[str, ...] | None = None) -> list[Part]:
    """Parts of the table in spec order, a heading wherever the group changes."""
    receivers = table.spec.receivers if receivers is None else receivers
    parts = []
    for slug, title in table.spec.parts.items():
        lines: list[Line] = []
        group = None
        for row in table.rows:
            if slug not in row.spec.parts:
                continue
            if row.spec.group != group:
                group = row.spec.group
                lines.append(Line(table.spec.groups[group]))
            lines.append(Line(row.spec.label, tuple(i for x in receivers for i in _items(table, row.cells[x]))))
        parts.append(Part(f"({slug}) {title}", tuple(lines)))
    return parts


def title(table: Table) -> str:
    number = re.sub(r"^(table)(\d+)$", r"Table \2", table.spec.name)
    what = "as printed in the paper" if table.source == "reported" else f"scale {table.scale}"
    return f"{number}. {table.spec.title} ({what})"


def todo_lines(table: Table, code: Callable[[str], str]) -> list[tuple[str, list[str]]]:
    """(heading, lines) of the lists of rows that have no number. ``code`` wraps a command or path."""
    lists = [
        ("Missing runs", [f"{t.row} ({', '.join(t.receivers)}): {code(t.text)}" for t in table.missing]),
        ("Started, not finished", [f"{t.row} ({', '.join(t.receivers)}): {code(t.text)}" for t in table.unfinished]),
        ("Not available in this version", [", ".join(table.unavailable)] if table.unavailable else []),
    ]
    return [(heading, lines) for heading, lines in lists if lines]


def _md(text: str) -> str:
    return text.replace("|", "\\|")


def to_markdown(table: Table) -> str:
    heads = [f"{receiver_head(table, x)}: {head}" for x in table.spec.receivers for head in columns(table)]
    out = [f"## {title(table)}", "", table.spec.caption.strip(), ""]
    for part in layout(table):
        out += [f"### {part.title}", "", "| " + " | ".join(["row", *map(_md, heads)]) + " |", "|---" + "|---:" * len(heads) + "|"]
        for line in part.lines:
            if line.items:
                texts = [f"**{i.strong}**{i.rest}" if i.bold else i.strong + i.rest for i in line.items]
                out.append("| " + " | ".join([_md(line.label), *texts]) + " |")
            else:
                out.append(f"| *{_md(line.label)}* |" + " |" * len(heads))
        out.append("")
    for heading, lines in todo_lines(table, lambda text: f"`{text}`"):
        out += [f"**{heading}**", "", *(f"- {line}" for line in lines), ""]
    out += ["Notes", "", *(f"- {note}" for note in table.notes)]
    return "\n".join(out) + "\n"


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
    "±": r"$\pm$", "Δ": r"$\Delta$", "—": "--", "†": r"$\dagger$",
}  # fmt: skip


def tex_escape(text: str) -> str:
    """Text safe in LaTeX text mode, character by character, so that no escape is escaped again."""
    return "".join(_TEX.get(c, c) for c in text)


def _tex_item(item: Item) -> str:
    strong = re.sub(r"^([-+])(?=\d)", r"$\1$", tex_escape(item.strong))
    return (rf"\textbf{{{strong}}}" if item.bold else strong) + tex_escape(item.rest)


def to_latex(table: Table) -> str:
    """A table environment for a document with booktabs; needs no other package. Rows without a number are comments."""
    width = len(columns(table))
    receivers = table.spec.receivers
    caption = tex_escape(f"{table.spec.title}. {table.spec.caption.strip()}")
    out = [r"\begin{table*}", r"\centering\small", rf"\caption{{{caption}}}"]
    out.append(rf"\label{{tab:{table.spec.name}-{table.scale}}}")
    for part in layout(table):
        spans = [rf"\multicolumn{{{width}}}{{c}}{{{tex_escape(receiver_head(table, x))}}}" for x in receivers]
        rules = "".join(rf"\cmidrule(lr){{{2 + k * width}-{1 + (k + 1) * width}}}" for k in range(len(receivers)))
        heads = [tex_escape(h) for _ in receivers for h in columns(table)]
        out += [rf"\begin{{tabular}}{{l{'r' * width * len(receivers)}}}", r"\toprule"]
        out += [" & ".join([tex_escape(part.title), *spans]) + r" \\", rules, " & ".join(["", *heads]) + r" \\", r"\midrule"]
        for line in part.lines:
            if line.items:
                out.append(" & ".join([tex_escape(line.label), *map(_tex_item, line.items)]) + r" \\")
            else:
                out.append(rf"\multicolumn{{{1 + width * len(receivers)}}}{{l}}{{\textit{{{tex_escape(line.label)}}}}} \\")
        out += [r"\bottomrule", r"\end{tabular}", r"\par\medskip"]
    out.append(r"\begin{minipage}{\linewidth}\footnotesize")
    out += [tex_escape(note) + r"\par" for note in table.notes]
    for heading, lines in todo_lines(table, lambda text: text):
        out.append(tex_escape(f"{heading}: see the comments in this file.") + r"\par")
        out += [f"% {line}" for line in lines]
    return "\n".join([*out, r"\end{minipage}", r"\end{table*}"]) + "\n"


def _csv_number(value: float | None) -> str:
    return "" if value is None else repr(round(value, 6) + 0.0)


def _csv_row(row: Row, receiver: str) -> list[str]:
    cell = row.cells[receiver]
    reported = [cell.reported_mean, cell.reported_std, cell.reported_delta]
    counts = ["", ""] if cell.state == "reported" else [str(cell.n), "" if cell.N is None else str(cell.N)]
    measured = [_csv_number(cell.mean), _csv_number(cell.std), *counts, _csv_number(cell.delta)]
    return [row.spec.slug, receiver, AVERAGE, *measured, *map(_csv_number, reported)]


def to_csv(table: Table) -> str:
    """One line per row and receiver (a row printed in two parts once); percent points to 6 decimals; no value = empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_csv_row(row, receiver) for row in table.rows for receiver in table.spec.receivers)
    return buffer.getvalue()


def write_atomic(path: Path, text: str) -> None:
    """UTF-8, written aside, synced and renamed: a reader or a kill sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "w", encoding="utf-8", newline="\n") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_all(table: Table, out: Path) -> list[Path]:
    """``out/<scale>/<name>.{md,tex,csv}``; the paper's own values go to ``out/reported/`` and never beside measured ones."""
    texts = {"md": to_markdown(table), "tex": to_latex(table), "csv": to_csv(table)}
    paths = [out / table.scale / f"{table.spec.name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text)
    return paths
