"""``python -m analysis report --scale cpu --out reports``: reports/<scale>/index.html with all that the runs on record say.

Starts no run. A table that cannot be made stands in the page with the reason; the command then ends with 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.footer import SCALES
from analysis.kinds import Asked
from analysis.report.document import render
from analysis.report.gather import gather
from analysis.writers import write_atomic
from experiments.run_record import EXIT_USER_ERROR, UserError

PROJECT = Path(__file__).resolve().parents[2]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analysis report", description=__doc__)
    parser.add_argument("--scale", choices=sorted(SCALES), default="cpu")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the runs under --root (default: paper)")
    parser.add_argument("--seed", type=int, default=0, help="training seed of the tables and figures (default: 0)")
    parser.add_argument("--seeds", type=int, nargs="+", help="training seeds of the claims (default: that of the tables)")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder to write to (default: reports)")
    parser.add_argument(
        "--paper", type=Path, default=PROJECT / "paper_tables", help="folder with claims.yaml, specs/ and reported/"
    )
    parser.add_argument("--methods", type=Path, default=PROJECT / "sweeps/conf/method", help="folder with one YAML per method")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    args = arguments(argv)
    seeds = args.seeds or [args.seed]
    if len(set(seeds)) != len(seeds):
        raise UserError(f"--seeds {seeds} names one twice; two training runs with one seed are one run")
    root, folder = args.root / args.experiment, args.out / args.scale
    content = gather(root, Asked(args.scale, args.seed, args.paper / "specs", args.methods), seeds, args.paper)
    if not content.runs:
        print(f"No run at scale {args.scale} under {root} (see --root and --experiment).", file=sys.stderr)
    text = render(content, folder)
    write_atomic(folder / "index.html", text)
    print(f"wrote {folder / 'index.html'} ({len(text.encode()) / 1e6:.1f} MB)")
    failed = [s.outcome for s in (*content.tables, *content.figures) if s.outcome.state == "error"]
    for outcome in failed:
        print(f"error: {outcome.name}: {outcome.what}", file=sys.stderr)
    return EXIT_USER_ERROR if failed else 0
