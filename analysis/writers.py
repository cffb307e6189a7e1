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


def to_latex(page: Page) -> str:
    """A table environment for a document with booktabs; needs no other package. Rows without a number are comments."""
    caption = tex_escape(f"{page.title}. {page.caption}")
    out = [r"\begin{table*}", r"\centering\small", rf"\caption{{{caption}}}", rf"\label{{tab:{page.name}-{page.folder}}}"]
    for part in page.parts:
        out += _tex_part(part)
    out.append(r"\begin{minipage}{\linewidth}\footnotesize")
    out += [tex_escape(note) + r"\par" for note in page.notes]
    for name, entries in page.lists:
        out.append(tex_escape(f"{name}: see the comments in this file.") + r"\par")
        out += [f"% {e.text}{e.code}" for e in entries]
    return "\n".join([*out, r"\end{minipage}", r"\end{table*}"]) + "\n"


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
