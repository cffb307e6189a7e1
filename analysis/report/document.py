"""The whole page as text: the sections joined, with style and script in it. Equal records give equal text: there is no clock in it."""

from __future__ import annotations

from pathlib import Path

from analysis.report import appendix, sections
from analysis.report.evidence import collect
from analysis.report.gather import Content
from analysis.report.markup import esc, link

HERE = Path(__file__).resolve().parent


def render(content: Content, page: Path) -> str:
    """``page``: the folder that the file will lie in; links to records are relative to it."""
    evidence = collect(content)
    parts = (
        ("tables", "Tables", sections.tables(content, evidence)),
        ("figures", "Figures", sections.figures(content, evidence)),
        ("claims", "Claims of the paper", sections.claim_table(content, evidence)),
        ("completeness", "Completeness", sections.completeness(content)),
        ("costs", "Costs", appendix.costs(content, evidence)),
        ("audit", "The paper's printed numbers", sections.audit_table(content)),
        ("runs", "Run records", appendix.runs(content, evidence, page)),
    )
    title = f"GRAFT from run records: scale {content.scale}"
    nav = " ".join(link(f"#{ident}", name) for ident, name, _ in parts)
    body = "\n".join(f'<section id="{ident}">\n<h2>{esc(name)}</h2>\n{text}\n</section>' for ident, name, text in parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{esc(title)}</title>\n'
        f"<style>\n{_asset('style.css')}</style>\n</head>\n<body>\n<header>\n<h1>{esc(title)}</h1>\n"
        f'{sections.summary(content)}\n{_contents(content)}\n</header>\n<nav aria-label="Sections">{nav}</nav>\n<main>\n{body}\n</main>\n'
        f"<footer>\n<h2>What was measured</h2>\n{appendix.foot(content)}\n</footer>\n<script>\n{_asset('script.js')}</script>\n</body>\n</html>\n"
    )


def _contents(content: Content) -> str:
    """Links to every table and figure."""
    groups = (("Tables", content.tables), ("Figures", content.figures))
    lines = (
        f"{name}: " + ", ".join(link(f"#{s.outcome.name}", s.outcome.name) for s in shown) for name, shown in groups if shown
    )
    return f'<p class="contents">{"<br>".join(lines)}</p>'


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
