"""``python -m analysis audit-paper``: what the paper's printed numbers say about each other, recomputed from paper_tables/reported.

A report, so it ends with 0 whatever holds; 2 for a file that cannot be read. ``--all`` lists every single comparison.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from analysis import audit_costs, audit_scores
from analysis.audit_check import ORDER, Check
from analysis.claim_spec import load_claims
from analysis.listing import FORMATS, Listing, print_listing
from analysis.paper import load_reported

TABLES = Path(__file__).resolve().parent.parent / "paper_tables"
# Each makes named checks of (the printed numbers, the claims that name numbers of the text).
BUILDERS = (*audit_scores.BUILDERS, *audit_costs.BUILDERS)
NOTES = (
    "exact: the printed numbers give the printed one. after rounding: they round to it (a half either way), or differ from it by no "
    "more than the rounding of the numbers that go in, where those are known to enter unrounded (averages, training means). does not hold: neither.",
    "What is recomputed is recomputed from printed numbers. Nothing here was measured.",
)


def audit(tables: Path) -> list[Check]:
    """All checks of the files in a folder like paper_tables."""
    reported, claims = load_reported(tables / "reported"), load_claims(tables / "claims.yaml")
    return [check for build in BUILDERS for check in build(reported, claims)]


def listing(checks: Sequence[Check], every: bool) -> Listing:
    """One line per check, or per comparison."""
    columns = ("group", "check", "numbers", "verdict", "remark")
    if every:
        rows = [(k.group, f"{k.name}: {c.what}", c.numbers, c.verdict, "") for k in checks for c in k.comparisons]
    else:
        rows = [(k.group, k.name, k.numbers, k.verdict, k.remark) for k in checks]
    found = Counter(row[3] for row in rows)
    total = f"{len(rows)} {'comparisons' if every else 'checks'}: " + ", ".join(
        f"{found[v]} {v}" for v in reversed(ORDER) if found[v]
    )
    return Listing("The paper's printed numbers against each other", columns, tuple(rows), (total + ".", *NOTES), ("verdict",))


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    parser = argparse.ArgumentParser(prog="python -m analysis audit-paper", description=__doc__)
    parser.add_argument("--format", choices=FORMATS, default="term", help="what is printed (default: term)")
    parser.add_argument("--all", action="store_true", help="every comparison, not only a line per check")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder with claims.yaml and reported/")
    args = parser.parse_args(argv)
    print_listing(listing(audit(args.tables), args.all), args.format)
    return 0
