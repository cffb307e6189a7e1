"""``python -m analysis table2 --scale cpu``: print a table of the run records; with ``--out`` write it as .md, .tex and .csv.

``--over-seeds`` prints the same rows for every pair and training seed on record instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.collect import open_runs
from analysis.footer import SCALE_NOTES
from analysis.seeds import print_seeds, seed_rows
from analysis.spec import load_spec
from analysis.tables import Table, from_reported, from_runs
from analysis.terminal import print_table
from analysis.writers import to_csv, to_latex, to_markdown, write_all
from experiments.run_record import EXIT_USER_ERROR, UserError

PROJECT = Path(__file__).resolve().parent.parent
TEXT_WRITERS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument("table", help="name of a spec in paper_tables/specs, e.g. table2")
    parser.add_argument("--scale", choices=sorted(SCALE_NOTES), default="cpu")
    parser.add_argument("--format", choices=["term", *TEXT_WRITERS], default="term", help="what is printed (default: term)")
    parser.add_argument("--source", choices=["runs", "reported"], default="runs", help="reported: what the paper printed")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the runs under --root (default: paper)")
    parser.add_argument("--seed", type=int, default=0, help="training seed (default: 0)")
    parser.add_argument("--over-seeds", action="store_true", help="every pair and training seed on record, to the terminal")
    parser.add_argument("--out", type=Path, help="also write OUT/<scale>/<table>.{md,tex,csv}")
    parser.add_argument("--specs", type=Path, default=PROJECT / "paper_tables/specs", help="folder of the table specs")
    parser.add_argument("--methods", type=Path, default=PROJECT / "sweeps/conf/method", help="folder with one YAML per method")
    return parser.parse_args(argv)


def build(args: argparse.Namespace) -> Table:
    spec = load_spec(args.table, args.specs)
    if args.source == "reported":
        return from_reported(spec)
    records = open_runs(args.root / args.experiment)
    if not records:
        print(f"No run directory under {args.root / args.experiment} (see --root and --experiment).", file=sys.stderr)
    return from_runs(spec, records, scale=args.scale, seed=args.seed, methods=args.methods)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    # Tables hold ± and Δ; under LC_ALL=C the stream would refuse them.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        if args.over_seeds:
            records = open_runs(args.root / args.experiment)
            print_seeds(seed_rows(load_spec(args.table, args.specs), records, scale=args.scale, methods=args.methods), args.scale)
            return 0
        table = build(args)
        written = write_all(table, args.out) if args.out else []
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    if args.format == "term":
        print_table(table)
    else:
        sys.stdout.write(TEXT_WRITERS[args.format](table))
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
