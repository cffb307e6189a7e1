"""``python -m analysis table2 --scale cpu``: print a table of the run records; with ``--out`` write it as .md, .tex and .csv.

``python -m analysis figure1 --scale cpu --out reports``: a figure as .pdf, .png and .csv; without ``--out`` what it would show.

``--over-seeds`` prints the same rows for every pair and training seed on record instead.
``python -m analysis exchange --run <run directory>``: who taught whom in one joint run.
``python -m analysis trajectories <run directory>``: its rollout groups and responses, and what one receiver was given and why.
``python -m analysis quality --run <run directory>``: pass@k, majority vote, truncation and verifier failures beside pass@1.
``python -m analysis audit-paper``: what the paper's printed numbers say about each other.
``python -m analysis claims [--reported]``: the paper's claims against the runs on record, or against its own numbers.
``python -m analysis reproduce --scale cpu --out reports``: every table of the paper that the runs on record allow.
``python -m analysis selection-audit --scale cpu``: how much of each score comes from picking the best checkpoint on the benchmarks.
``python -m analysis report --scale cpu --out reports``: all of it in one page, reports/<scale>/index.html.
``python -m analysis import-lm-eval <samples.jsonl ...> --model <name> --stands-for <slug>``: lm-eval's sample logs as a run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import audit, claims, exchange, import_lm_eval, quality, reproduce, selection_audit, trajectories
from analysis.collect import open_runs
from analysis.figures import FIGURES, curves
from analysis.footer import SCALES
from analysis.kinds import Asked, build_any, kind_of
from analysis.page import Page
from analysis.report import command as report
from analysis.seeds import print_seeds, seed_rows
from analysis.spec import load_spec
from analysis.terminal import print_page
from analysis.writers import to_texts
from experiments.run_record import EXIT_USER_ERROR, RunRecord, UserError

PROJECT = Path(__file__).resolve().parent.parent
# Commands that are no table; the rest of the command line is theirs.
COMMANDS = {
    "exchange": exchange.main,
    "curves": curves.main,
    "quality": quality.main,
    "trajectories": trajectories.main,
    "import-lm-eval": import_lm_eval.main,
    "audit-paper": audit.main,
    "claims": claims.main,
    "reproduce": reproduce.main,
    "selection-audit": selection_audit.main,
    "report": report.main,
}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument("table", help="name of a spec in paper_tables/specs, e.g. table2 or figure3a")
    parser.add_argument("--scale", choices=sorted(SCALES), default="cpu")
    parser.add_argument("--format", choices=["term", "md", "tex", "csv"], default="term", help="what is printed (default: term)")
    parser.add_argument("--source", choices=["runs", "reported"], default="runs", help="reported: what the paper printed")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the runs under --root (default: paper)")
    parser.add_argument("--seed", type=int, default=0, help="training seed (default: 0)")
    parser.add_argument("--over-seeds", action="store_true", help="every pair and training seed on record, to the terminal")
    parser.add_argument("--out", type=Path, help="also write OUT/<scale>/<table>.{md,tex,csv} or <figure>.{pdf,png,csv}")
    parser.add_argument("--specs", type=Path, default=PROJECT / "paper_tables/specs", help="folder of the table specs")
    parser.add_argument("--methods", type=Path, default=PROJECT / "sweeps/conf/method", help="folder with one YAML per method")
    return parser.parse_args(argv)


def build(args: argparse.Namespace) -> tuple[Page, str, list[Path]]:
    """The page of a table or figure, its CSV, and the files written."""
    if args.format == "tex" and kind_of(args.table, args.specs) in FIGURES:
        raise UserError(f"{args.table} is a figure and has no LaTeX form; include the PDF that --out writes")
    records = None if args.source == "reported" else lambda: records_of(args)
    return build_any(args.table, records, Asked(args.scale, args.seed, args.specs, args.methods), args.out)


def records_of(args: argparse.Namespace) -> list[RunRecord]:
    records = open_runs(args.root / args.experiment)
    if not records:
        print(f"No run directory under {args.root / args.experiment} (see --root and --experiment).", file=sys.stderr)
    return records


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    # Tables hold ± and Δ; under LC_ALL=C the stream would refuse them.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        if argv and argv[0] in COMMANDS:
            return COMMANDS[argv[0]](argv[1:])
        args = arguments(argv)
        if args.over_seeds:
            spec = load_spec(args.table, args.specs)
            print_seeds(seed_rows(spec, records_of(args), scale=args.scale, methods=args.methods), args.scale)
            return 0
        page, csv, written = build(args)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    if args.format == "term":
        print_page(page)
    else:
        sys.stdout.write(to_texts(page, csv)[args.format])
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
