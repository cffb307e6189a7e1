"""``python -m analysis claims``: every quantitative claim of the paper against the runs on record, or (--reported) against its own numbers.

A verdict never rests on a missing cell. Ends with 0 whatever holds; 2 for a file or record that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from analysis.cells import Source
from analysis.claim_checks import ORDER, SKIPPED, Finding, Judged, judge_claim
from analysis.claim_spec import load_claims
from analysis.collect import open_runs
from analysis.footer import SCALES, scale_note
from analysis.listing import FORMATS, Listing, print_listing
from analysis.paper import load_reported
from analysis.records_cells import Records
from experiments.run_record import UserError

PROJECT = Path(__file__).resolve().parent.parent
CSV_COLUMNS = ("id", "verdict", "claim", "where", "needs", "numbers", "beside", "reading", "noise", "runs")
TEXT_WIDTH = 60  # of a claim in the terminal; the other formats have all of it
NOTES = (
    "holds: true of the numbers, and a sign or an order by more than the noise. holds within noise: true of them by less (or a level that "
    "noise could hide). fails: not true of them. not enough data: a cell is missing, or no cell says it. A claim is as good as its worst check.",
    "[low, high]: 95 % interval from the stds of the cells over their replicates (Student, Welch's with the fewest degrees of freedom), cells "
    "independent. No correction for the number of claims.",
    "The spread over evaluation runs of one checkpoint leaves out the noise between training runs.",
    "(beside: ...) is no part of the verdict.",
)


def listing(judged: Sequence[Judged], source: Source, form: str, notes: Sequence[str]) -> Listing:
    """One line per claim. For the terminal the text is cut and runs are left out; markdown and CSV have both."""
    columns = ("id", "verdict", "claim", "numbers") if form == "term" else CSV_COLUMNS
    rows = [_short(j) if form == "term" else long_row(j) for j in judged]
    found = Counter(j.verdict for j in judged)
    total = f"{len(judged)} claims: " + ", ".join(f"{found[v]} {v}" for v in reversed(ORDER) if found[v]) + "."
    noise = "; ".join(dict.fromkeys(words for j in judged for f in j.findings for words in f.noise))
    shown = (f"Noise shown: {noise}. ") if noise else ""
    lines = (total, f"Source: {source.name}. {shown}".strip(), *notes, *NOTES)
    return Listing(f"Claims of the paper on {source.name}", columns, tuple(rows), lines, ("id", "verdict"))


def say(findings: Sequence[Finding], verdict: str) -> str:
    """The findings in one line; each says its own verdict where it is not the claim's. Uncompared numbers are said once."""
    compared = [f for f in findings if f.verdict != SKIPPED]
    said = [" ".join(x for x in (f.numbers, f.interval, "" if f.verdict == verdict else f"({f.verdict})") if x) for f in compared]
    if skipped := len(findings) - len(compared):
        said.append(f"{skipped} number{'s' * (skipped > 1)} of the paper's scale not compared")
    return "; ".join(said)


def _short(judged: Judged) -> tuple[str, ...]:
    text = judged.claim.text
    text = text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1].rstrip() + "…"
    beside = f" (beside: {say(judged.beside, '')})" if judged.beside else ""
    return judged.claim.id, judged.verdict, text, say(judged.findings, judged.verdict) + beside


def long_row(judged: Judged) -> tuple[str, ...]:
    """A claim as ``CSV_COLUMNS``."""
    claim = judged.claim
    runs = tuple(dict.fromkeys(run for f in judged.findings for run in f.runs))
    noise = "; ".join(dict.fromkeys(words for f in judged.findings for words in f.noise))
    return (
        claim.id, judged.verdict, claim.text, claim.source, ", ".join(claim.needs), say(judged.findings, judged.verdict),
        say(judged.beside, ""), claim.reading, noise, ", ".join(runs),
    )  # fmt: skip


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analysis claims", description=__doc__)
    parser.add_argument("--reported", action="store_true", help="the paper's own printed numbers instead of run records")
    parser.add_argument("--scale", choices=sorted(SCALES), default="cpu")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="training seeds; several: noise of training runs (default: 0)"
    )
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the runs under --root (default: paper)")
    parser.add_argument("--ids", nargs="+", default=[], help="these claims only, e.g. C01 A04")
    parser.add_argument("--format", choices=FORMATS, default="term", help="what is printed (default: term)")
    parser.add_argument(
        "--tables", type=Path, default=PROJECT / "paper_tables", help="folder with claims.yaml, specs/ and reported/"
    )
    parser.add_argument("--methods", type=Path, default=PROJECT / "sweeps/conf/method", help="folder with one YAML per method")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    args = arguments(argv)
    claims = load_claims(args.tables / "claims.yaml")
    if unknown := sorted(set(args.ids) - {c.id for c in claims}):
        raise UserError(f"no claim {', '.join(unknown)}; there are {', '.join(c.id for c in claims)}")
    source, notes = _source(args)
    judged = [judge_claim(claim, source) for claim in claims if not args.ids or claim.id in args.ids]
    print_listing(listing(judged, source, args.format, notes), args.format)
    return 0


def _source(args: argparse.Namespace) -> tuple[Source, tuple[str, ...]]:
    """The source asked for, and what has to be said about it."""
    if args.reported:
        why = (
            "A number holds if what is recomputed from the printed tables rounds to it; nothing here was measured with this code."
        )
        return load_reported(args.tables / "reported"), (why,)
    if len(set(args.seeds)) != len(args.seeds):
        raise UserError(f"--seeds {args.seeds} names one twice; two training runs with one seed are one run")
    found = open_runs(args.root / args.experiment)
    if not found:
        print(f"No run directory under {args.root / args.experiment} (see --root and --experiment).", file=sys.stderr)
    records = Records(found, args.scale, args.seeds, args.tables / "specs", args.methods)
    notes = [scale_note(args.scale, paper=False)]
    if records.comparison == "direction":
        notes.append("A number of the paper is its own scale's and is not compared; signs and orders are.")
    return records, tuple(notes)
