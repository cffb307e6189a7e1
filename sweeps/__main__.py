"""``python -m sweeps plan|launch|status|cancel table2 --scale cpu --cluster local``: from a table's name to finished runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from experiments.config import load_config
from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.progress import Display
from experiments.run_record import RunRecord
from experiments.works import preview
from sweeps import cancel, launch, plan, status
from sweeps.cells import Request

COMMANDS = ("plan", "launch", "status", "cancel")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sweeps", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("table", help="a table or figure of paper_tables/specs, or all")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--cluster", default="local", help="a file of sweeps/conf/cluster")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="training seeds (default: those of the table, or 0)")
    parser.add_argument("--pairs", nargs="+", default=[], help="pairs (default: those of the table)")
    parser.add_argument("--rows", nargs="+", default=[], help="only these rows (slugs of the spec)")
    parser.add_argument("--overrides", nargs="+", default=[], help="further Hydra overrides for every run")
    parser.add_argument("--jobs", type=int, default=0, help="launch: local runs at a time; 0 means one per core")
    parser.add_argument("--wait", action="store_true", help="launch: follow Slurm jobs to their end")
    parser.add_argument("--retry-failed", action="store_true", help="launch: start failed runs again, too")
    parser.add_argument("--require-clean", action="store_true", help="launch: refuse code that differs from its commit")
    parser.add_argument("--budget-gpu-hours", type=float, help="launch, plan: refuse to go past this estimate")
    parser.add_argument("--sbatch", action="store_true", help="plan: print the batch scripts")
    parser.add_argument("--json", action="store_true", help="plan, status: for scripts")
    return parser.parse_args(argv)


def run(args: argparse.Namespace, console: Console) -> int:
    """One command; its exit code."""
    extra = [f"cluster={args.cluster}", *args.overrides]
    cluster = load_config([f"scale={args.scale}", *extra]).cluster
    runs, lacking = Request(args.table, args.scale, args.seeds, args.pairs, args.rows, extra).runs()
    if args.command in ("plan", "launch") and args.budget_gpu_hours is not None:
        plan.require_budget(plan.plan(runs, cluster), args.budget_gpu_hours)
    if args.command == "launch":
        how = launch.How(cluster, args.jobs, args.wait, args.retry_failed, args.require_clean)
        with Display(console) as display:
            if lacking:
                display.say(f"not in this version, left out: {', '.join(sorted({c.method for c in lacking}))}")
            return launch.launch(runs, how, display)
    if args.command == "plan":
        return _plan(args, runs, lacking, console)
    paths = [options.experiment_root / name for name, (_, options) in runs.items()]
    records = [RunRecord.open(p) for p in paths if (p / "run.json").is_file()]
    if args.command == "cancel":
        for line in cancel.cancel(records) or ["nothing of this is queued or running"]:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        return 0
    return _status(args, records, len(paths), console)


def _plan(args: argparse.Namespace, runs: plan.Runs, lacking: Sequence, console: Console) -> int:
    cluster = load_config([f"scale={args.scale}", f"cluster={args.cluster}", *args.overrides]).cluster
    if args.sbatch and cluster.scheduler != "slurm":
        raise UserError(f"--sbatch: cluster {cluster.name} submits nothing; name a Slurm cluster with --cluster (CLUSTER=slurm)")
    lines = plan.plan(runs, cluster)
    if args.json:
        print(plan.to_json(lines))
        return 0
    plan.show(lines, lacking, cluster, console)
    if args.sbatch:
        print(preview(runs, cluster))
    return 0


def _status(args: argparse.Namespace, records: Sequence[RunRecord], wanted: int, console: Console) -> int:
    standings = status.look(records)
    if args.json:
        print(status.to_json(standings))
    else:
        status.show(standings, console)
        if wanted > len(records):
            console.print(f"{wanted - len(records)} of {wanted} runs were never launched", highlight=False)
    return 1 if any(s.state == "failed" for s in standings) else 0


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    # Names of runs are long and a pipe has no width: nothing is cut there.
    console = Console(width=None if sys.stdout.isatty() else 240)
    try:
        return run(args, console)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
