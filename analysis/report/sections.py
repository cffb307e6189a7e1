"""The sections of the page that show results: summary, tables, figures, claims, completeness, the audit of the paper."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

from analysis import audit, claims
from analysis.audit_check import ORDER as AUDIT_ORDER
from analysis.claim_checks import ORDER as CLAIM_ORDER, Judged
from analysis.figures import style
from analysis.footer import scale_note
from analysis.page import Entry, csv_text
from analysis.report.evidence import Evidence, claim_anchor, claim_runs
from analysis.report.gather import Content, Shown
from analysis.report.markup import Body, Head, Td, Tr, bullets, csv_link, data_uri, details, esc, link, part_table, table
from analysis.reproduce import Outcome

CHIPS = {
    "holds": "good", "exact": "good", "complete": "good", "after rounding": "good", "holds within noise": "fair", "incomplete": "fair",
    "fails": "bad", "does not hold": "bad", "error": "bad",
}  # fmt: skip
# A picture is shown this much larger than on paper where there is room, and never smaller than on paper: its 7 pt stay legible.
ENLARGED = 1.45


def chip(text: str) -> Td:
    """A verdict or state: coloured, and readable without the colour."""
    return Td(text, chip=CHIPS.get(text, "none"))


def summary(content: Content) -> str:
    """What is here at a glance."""
    shown = (*content.tables, *content.figures)
    complete = sum(s.outcome.state == "complete" for s in shown)
    done = sum(run.done for run in content.runs)
    facts = [
        ("Runs", f"{done} finished, {len(content.runs) - done} not finished", "runs"),
        ("Tables and figures", f"{complete} of {len(shown)} complete", "completeness"),
        ("Claims of the paper", claim_counts(content.claims), "claims"),
        ("The paper's own numbers", audit_counts(content), "audit"),
    ]
    items = "".join(f"<dt>{link('#' + where, what)}</dt><dd>{esc(text)}</dd>" for what, text, where in facts)
    return f'<p class="lead">{esc(scale_note(content.scale, paper=True))}</p>\n<dl class="facts">{items}</dl>'


def claim_counts(judged: Sequence[Judged]) -> str:
    found = Counter(j.verdict for j in judged)
    return f"{len(judged)}: " + ", ".join(f"{found[v]} {v}" for v in reversed(CLAIM_ORDER) if found[v])


def audit_counts(content: Content) -> str:
    found = Counter(check.verdict for check in content.audit)
    return f"{len(content.audit)} checks: " + ", ".join(f"{found[v]} {v}" for v in reversed(AUDIT_ORDER) if found[v])


def tables(content: Content, evidence: Evidence) -> str:
    """Every table with its notes and its CSV."""
    return "\n".join(_article(shown, _parts(shown, evidence)) for shown in content.tables)


def figures(content: Content, evidence: Evidence) -> str:
    """Every figure as a picture, its points in words and as CSV."""
    return "\n".join(
        _article(shown, _picture(shown) + details("Points of this figure", _parts(shown, evidence))) for shown in content.figures
    )


def _article(shown: Shown, body: str) -> str:
    """Heading, caption, state, the body, then what is missing and the notes."""
    name, page = shown.outcome.name, shown.page
    if page is None:
        return f'<article id="{esc(name)}">\n<h3>{esc(name)}</h3>\n<p>{_state(shown.outcome)} {esc(shown.outcome.what)}</p>\n</article>'
    notes = details("Notes: selection, golds, commits, how to read it", bullets(map(esc, page.notes)))
    return (
        f'<article id="{esc(name)}">\n<h3>{esc(page.heading)}</h3>\n<p class="caption">{esc(page.caption)}</p>\n'
        f"<p>{_state(shown.outcome)} {_lacking(shown)}</p>\n{body}\n{notes}\n{csv_link(name, shown.csv)}\n</article>"
    )


def _state(outcome: Outcome) -> str:
    return f'<span class="chip {CHIPS.get(outcome.state, "none")}">{esc(outcome.state)}</span>'


def _lacking(shown: Shown) -> str:
    return f"{esc(shown.outcome.what)}. {link('#missing-' + shown.outcome.name, 'What fills it')}" if shown.outcome.what else ""


def _parts(shown: Shown, evidence: Evidence) -> str:
    parts = shown.page.parts if shown.page else ()
    return "\n".join(part_table(f"{shown.outcome.name}-{k}", part, evidence.href) for k, part in enumerate(parts, 1))


def _picture(shown: Shown) -> str:
    if shown.png is None or shown.page is None:
        return ""
    width, height = struct.unpack(">II", shown.png[16:24])
    least, shown_width, shown_height = (round(96 / style.DPI * x) for x in (width, width * ENLARGED, height * ENLARGED))
    size = f'width="{shown_width}" height="{shown_height}" style="min-width:{least}px"'
    alt = f"{shown.page.title}. Its points are listed under the picture."
    return (
        f'<figure class="scroll" tabindex="0"><img {size} alt="{esc(alt)}" src="{data_uri("image/png", shown.png)}"></figure>\n'
    )


def claim_table(content: Content, evidence: Evidence) -> str:
    """One row per claim. Its numbers link to the runs that they rest on."""
    heads = [Head(x) for x in ("id", "verdict", "claim", "numbers")]
    rows = tuple(_claim(judged, evidence) for judged in content.claims)
    listed = claims.CSV_COLUMNS, [claims.long_row(j) for j in content.claims]
    notes = bullets(map(esc, claims.NOTES))
    shown = table("claim-table", "Claims of the paper, on the runs of this page", heads, [Body("", rows)])
    seeds = f"Training seed{'s' * (len(content.seeds) > 1)} {', '.join(map(str, content.seeds))}. "
    return f"<p>{esc(seeds + claim_counts(content.claims))}.</p>\n{shown}\n{notes}\n{csv_link('claims', csv_text(*listed))}"


def _claim(judged: Judged, evidence: Evidence) -> Tr:
    claim, runs = judged.claim, claim_runs(judged.findings)
    noise = "; ".join(dict.fromkeys(words for f in judged.findings for words in f.noise))
    more = (("where", claim.source), ("read as", claim.reading), ("beside", claims.say(judged.beside, "")), ("noise", noise))
    numbers = Td(claims.say(judged.findings, judged.verdict), href=evidence.href(runs))
    cells = (chip(judged.verdict), Td(claim.text, more=more), numbers)
    return Tr(Td(claim.id), cells, id=claim_anchor(claim.id))


def completeness(content: Content) -> str:
    """Every table and figure with its state, and for each that lacks something the command that fills it and the single runs."""
    shown = (*content.tables, *content.figures)
    rows = tuple(Tr(Td(s.outcome.name, href=f"#{s.outcome.name}"), (chip(s.outcome.state), Td(s.outcome.what))) for s in shown)
    grid = table(
        "completeness-table", "Tables and figures", [Head("table or figure"), Head("state"), Head("lacks")], [Body("", rows)]
    )
    lacking = "\n".join(_missing(s) for s in shown if s.page and s.outcome.what)
    return f"{grid}\n{lacking}"


def _missing(shown: Shown) -> str:
    name = shown.outcome.name
    assert shown.page is not None
    lists = "\n".join(
        details(f"{what} ({len(entries)})", bullets(map(_entry, entries), "todo")) for what, entries in shown.page.lists
    )
    return (
        f'<section class="missing" id="missing-{esc(name)}">\n<h3>{link("#" + name, name)}</h3>\n'
        f"<p>All of it: <code>{esc(shown.fill)}</code></p>\n{lists}\n</section>"
    )


def _entry(entry: Entry) -> str:
    return esc(entry.text) + (f"<code>{esc(entry.code)}</code>" if entry.code else "")


def audit_table(content: Content) -> str:
    """One row per check of the paper's printed numbers against each other."""
    listed = audit.listing(content.audit, every=False)
    groups: dict[str, list[Tr]] = {}
    for check in content.audit:
        cells = (Td(check.numbers), chip(check.verdict), Td(check.remark))
        groups.setdefault(check.group, []).append(Tr(Td(check.name), cells))
    heads = [Head(x) for x in ("check", "numbers", "verdict", "remark")]
    shown = table("audit-table", listed.title, heads, [Body(group, tuple(rows)) for group, rows in groups.items()])
    notes, csv = bullets(map(esc, listed.notes[1:])), csv_link("audit", csv_text(listed.columns, listed.rows))
    return f"<p>{esc(audit_counts(content))}.</p>\n{shown}\n{notes}\n{csv}"
