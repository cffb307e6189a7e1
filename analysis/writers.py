"""A Page as markdown or LaTeX, and files written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from analysis.page import Item, Page, Part


def _md(text: str) -> str:
    return text.replace("|", "\\|")


def _md_part(part: Part) -> list[str]:
    heads = [f"{span.over}: {head}" if span.over else head for span in part.spans for head in span.heads]
    out = [f"### {part.title}", "", "| " + " | ".join(["row", *map(_md, heads)]) + " |", "|---" + "|---:" * len(heads) + "|"]
    for line in part.lines:
        if line.items:
            texts = [f"**{i.strong}**{i.rest}" if i.bold else i.strong + i.rest for i in line.items]
            out.append("| " + " | ".join([("&emsp;" if line.second else "") + _md(line.label), *texts]) + " |")
        else:
            out.append(f"| *{_md(line.label)}* |" + " |" * len(heads))
    return [*out, ""]


def to_markdown(page: Page) -> str:
    """Headings, one table per part, the lists and the notes."""
    out = [f"## {page.heading}", "", page.caption, ""]
    for part in page.parts:
        out += _md_part(part)
    for name, entries in page.lists:
        out += [f"**{name}**", "", *(f"- {e.text}" + (f"`{e.code}`" if e.code else "") for e in entries), ""]
    out += ["Notes", "", *(f"- {note}" for note in page.notes)]
    return "\n".join(out) + "\n"


# Of one LaTeX float: rows on a page, rows that a part's head and rules take, characters of a note in a row.
ROWS_PER_FLOAT, PART_HEAD_ROWS, CHARACTERS_PER_ROW = 46, 5, 110
WIDE_COLUMNS = 6

_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
    "±": r"$\pm$", "Δ": r"$\Delta$", "—": "--", "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$",
    "§": r"\S{}",
}  # fmt: skip


def tex_escape(text: str) -> str:
    """Text safe in LaTeX text mode, character by character, so that no escape is escaped again."""
    return "".join(_TEX.get(c, c) for c in text)


def _tex_item(item: Item) -> str:
    strong = re.sub(r"^([-+])(?=\d)", r"$\1$", tex_escape(item.strong))
    return (rf"\textbf{{{strong}}}" if item.bold else strong) + tex_escape(item.rest)


def _tex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _tex_part(part: Part) -> list[str]:
    rules, spans, column = [], [], 2
    for span in part.spans:
        last = column + len(span.heads) - 1
        spans.append(rf"\multicolumn{{{len(span.heads)}}}{{c}}{{{tex_escape(span.over)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{last}}}")
        column = last + 1
    whole = rf"\multicolumn{{{1 + part.width}}}{{l}}"
    out = [rf"\begin{{tabular}}{{l{'r' * part.width}}}", r"\toprule"]
    if any(span.over for span in part.spans):
        out += [_tex_row([tex_escape(part.title), *spans]), "".join(rules)]
    else:
        out += [rf"{whole}{{{tex_escape(part.title)}}} \\", r"\midrule"]
    out += [_tex_row(["", *(tex_escape(head) for span in part.spans for head in span.heads)]), r"\midrule"]
    for line in part.lines:
        if line.items:
            label = (r"\quad " if line.second else "") + tex_escape(line.label)
            out.append(_tex_row([label, *map(_tex_item, line.items)]))
        else:
            out.append(rf"{whole}{{\textit{{{tex_escape(line.label)}}}}} \\")
    return [*out, r"\bottomrule", r"\end{tabular}", r"\par\medskip"]


def _tex_floats(page: Page) -> list[tuple[list[Part], list[str]]]:
    """(parts, notes) of each float: as much as a page holds, in order; a table's notes stand under its last parts."""
    floats: list[tuple[list[Part], list[str]]] = []
    left = 0
    for part in page.parts:
        rows = len(part.lines) + PART_HEAD_ROWS
        if rows > left:
            floats.append(([], []))
            left = ROWS_PER_FLOAT
        floats[-1][0].append(part)
        left -= rows
    notes = [tex_escape(note) for note in page.notes]
    notes += [tex_escape(f"{name}: see the comments in this file.") for name, _ in page.lists]
    for note in notes:
        rows = 1 + len(note) // CHARACTERS_PER_ROW
        if rows > left:
            floats.append(([], []))
            left = ROWS_PER_FLOAT
        floats[-1][1].append(note)
        left -= rows
    return floats


def to_latex(page: Page) -> str:
    """Table environments for a document with booktabs; needs no other package. Rows without a number are comments.

    What is longer than a page becomes several floats under one number. Tables with many columns are small: they need a text width of
    6.5 inches.
    """
    wide = max(part.width for part in page.parts) > WIDE_COLUMNS
    size = r"\centering\scriptsize\setlength{\tabcolsep}{3pt}" if wide else r"\centering\footnotesize\setlength{\tabcolsep}{5pt}"
    out = []
    for k, (parts, notes) in enumerate(_tex_floats(page)):
        caption = tex_escape(f"{page.title} (continued)." if k else f"{page.title}. {page.caption}")
        out += [r"\begin{table*}", size, *([r"\addtocounter{table}{-1}"] if k else []), rf"\caption{{{caption}}}"]
        out += [] if k else [rf"\label{{tab:{page.name}-{page.folder}}}"]
        for part in parts:
            out += _tex_part(part)
        if notes:
            out += [r"\begin{minipage}{\linewidth}\scriptsize", *(note + r"\par" for note in notes), r"\end{minipage}"]
        out.append(r"\end{table*}")
    out += [f"% {name}: {e.text}{e.code}" for name, entries in page.lists for e in entries]
    return "\n".join(out) + "\n"


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


def to_texts(page: Page, csv: str) -> Mapping[str, str]:
    """The three files' texts by suffix."""
    return {"md": to_markdown(page), "tex": to_latex(page), "csv": csv}


def write_all(page: Page, csv: str, out: Path) -> list[Path]:
    """``out/<scale>/<name>.{md,tex,csv}``; the paper's own values go to ``out/reported/`` and never beside measured ones."""
    texts = to_texts(page, csv)
    paths = [out / page.folder / f"{page.name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text)
    return paths
