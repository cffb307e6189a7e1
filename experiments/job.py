"""Bring frozen runs to their end: train, evaluate, count, mark done. ``python -m experiments.job <run dir> ...`` is what launchers start.

Several directories are done one after the other; one that fails does not keep the next from starting.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

from experiments.config import Options
from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.files import read_json, write_json
from experiments.progress import Display, summary
from experiments.run_record import RunRecord


def options_to_json(options: Options) -> dict[str, Any]:
    return options.__dict__ | {"experiment_root": str(options.experiment_root), "model_paths": dict(options.model_paths)}


def options_from_json(value: dict[str, Any]) -> Options:
    return Options(**value | {"experiment_root": Path(value["experiment_root"])})


def finish(record: RunRecord, options: Options, display: Display) -> None:
    """Do what is missing, and nothing twice. Errors leave ``status.json`` with state failed and the reason."""
    if record.done:
        display.say(f"{record.path}: done already, reused")
        return
    with record.lock():
        try:
            _finish_locked(record, options, display)
        except BaseException as e:
            record.set_status("failed", reason=f"{type(e).__name__}: {e}")
            raise


def _finish_locked(record: RunRecord, options: Options, display: Display) -> None:
    from experiments.evaluation import count_complete, evaluate
    from experiments.training import compute_summary, train

    base = record.config["recipe"]["method"]["name"] == "base"
    label = record.path.name
    display.say(f"{record.path}: writing here")
    if not base and not (record.path / "selected.json").exists():
        train(record, options, lambda _, total, metrics: display.update(label, metrics["step"], total, summary(metrics)))
    if options.evaluate:
        evaluate(record, options, lambda name, k, total: display.update(f"{label} evaluation", k, total, name))
        write_json(record.path / "compute.json", compute_summary(record))
        counts = count_complete(record)
        record.set_status("done", reason=None)
        write_json(record.path / "done.json", counts)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.job", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    args = parser.parse_args(argv)
    with Display() as display:
        return max(attempt(run, display) for run in args.runs)


def attempt(run: Path, display: Display) -> int:
    """The exit code of one run: 0, 2 for a user's mistake, 1 for anything else (its trace is printed)."""
    try:
        finish(RunRecord.open(run), options_from_json(read_json(run / "options.json")), display)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
