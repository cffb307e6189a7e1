"""``python -m analysis reproduce --scale cpu --out reports``: every table and figure that the runs on record allow.

Starts nothing. Writes each table as .md, .tex and .csv, each figure as .pdf, .png and .csv, whatever it lacks, and prints which are
complete and what fills the others.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from analysis.collect import open_runs
from analysis.figures import FIGURES
from analysis.footer import SCALES
from analysis.kinds import KINDS, Asked, build_any, kind_of
from analysis.page import Page
from analysis.todo import SHORT
from experiments.run_record import EXIT_USER_ERROR, UserError

PROJECT = Path(__file__).resolve().parent.parent
OF_THE_PAPER = re.compile(r"(table|figure)(\d+)\w?")


@dataclass(frozen=True)
class Outcome:
    """``state``: complete, incomplete, not in this version, or an error; ``what`` says more."""

    name: str
    state: str
    what: str


def names_of(specs: Path) -> list[str]:
    """All specs named after a table or figure of the paper, table2 before table10, then the figures of our own."""
    stems = sorted(p.stem for p in specs.glob("*.yaml"))
    found = [(m, stem) for stem in stems if (m := OF_THE_PAPER.fullmatch(stem))]
    paper = [name for m, name in sorted(found, key=lambda x: (x[0][1] != "table", int(x[0][2]), x[1]))]
    return paper + [stem for stem in stems if stem.startswith("figure_")]


def outcome_of(name: str, page: Page) -> Outcome:
    """What a page lacks: rows in its lists, and runs that are short."""
    lacking = [f"{what}: {len(entries)}" for what, entries in page.lists]
    # One note per short evaluation run; over training seeds, a cell with fewer of them than asked for is in a list, too.
    short = sum(f"{SHORT} incomplete: " in note for note in page.notes)
    lacking += [f"Short evaluation runs: {short}"] if short else []
    return Outcome(name, "incomplete" if lacking else "complete", "; ".join(lacking))


def reproduce(root: Path, asked: Asked, out: Path) -> list[Outcome]:
    """Write every table; one that cannot be made says why and stops none of the others."""
    records = open_runs(root)
    found = []
    for name in names_of(asked.specs):
        if (kind := kind_of(name, asked.specs)) not in {**KINDS, **FIGURES}:
            found.append(Outcome(name, "not in this version", f"kind {kind}"))
            continue
        try:
            page, _, _ = build_any(name, lambda: records, asked, out)
            found.append(outcome_of(name, page))
        except UserError as e:
            found.append(Outcome(name, "error", str(e)))
    return found


def main(argv: Sequence[str]) -> int:
    """The command; 2 if a table could not be made. An incomplete table is no error."""
    parser = argparse.ArgumentParser(prog="python -m analysis reproduce", description=__doc__)
    parser.add_argument("--scale", choices=sorted(SCALES), default="cpu")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the runs under --root (default: paper)")
    parser.add_argument("--seed", type=int, default=0, help="training seed (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder to write to (default: reports)")
    parser.add_argument("--specs", type=Path, default=PROJECT / "paper_tables/specs", help="folder of the table specs")
    parser.add_argument("--methods", type=Path, default=PROJECT / "sweeps/conf/method", help="folder with one YAML per method")
    args = parser.parse_args(argv)
    asked = Asked(args.scale, args.seed, args.specs, args.methods)
    found = reproduce(args.root / args.experiment, asked, args.out)
    grid = Grid("table or figure", "state", "lacks")
    for one in found:
        grid.add_row(one.name, one.state, one.what)
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(grid)
    incomplete = [one.name for one in found if one.state == "incomplete"]
    if incomplete:
        print(f"{args.out / args.scale}/<name>.{{md,csv}} list the commands that fill {', '.join(incomplete)}.")
    return EXIT_USER_ERROR if any(one.state == "error" for one in found) else 0
