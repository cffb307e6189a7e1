"""Bring frozen runs to their end: train, evaluate, count, mark done. What launchers start:

    python -m experiments.job <run dir> ...                       with each directory's options.json, one after the other
    python -m experiments.job --batch <file.json> [--element <k>] one element, or all, of a frozen batch, with the options in it

Exit codes, the worst of the runs: 0 done; 1 the run's own error; 2 the user's mistake; 69 another process has the run in hand; 75
the machine's failure (disk full, no memory), after which the same command resumes; 128 + signal number for an interruption outside
a scheduler. One run that fails does not keep the next from starting; an interruption does. Under Slurm see ``experiments.requeue``.

Modules that take seconds to import are imported inside functions, so that a signal is caught from the start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from experiments import interruption
from experiments.attempts import noted, reserve, write_end
from experiments.errors import (
    EXIT_BUSY,
    EXIT_ENVIRONMENT,
    EXIT_OWN_ERROR,
    EXIT_USER_ERROR,
    RunBusy,
    UserError,
    engine_failed,
    environment_failure,
)
from experiments.files import read_json, write_json
from experiments.interruption import Interrupted
from experiments.requeue import Leaving, decide, leave, warn_in_time
from experiments.run_record import RunRecord

if TYPE_CHECKING:
    from experiments.config import Options
    from experiments.progress import Display

Stage = Literal["all", "train", "evaluate"]


def options_to_json(options: Options) -> dict[str, Any]:
    return options.__dict__ | {"experiment_root": str(options.experiment_root), "model_paths": dict(options.model_paths)}


def options_from_json(value: dict[str, Any]) -> Options:
    from experiments.config import Options

    return Options(**value | {"experiment_root": Path(value["experiment_root"])})


@dataclass(frozen=True)
class Element:
    """One run as a launcher froze it. ``options`` None: those of the run's directory."""

    run: Path
    options: Options | None = None
    stage: Stage = "all"


def read_element(file: Path, index: int) -> Element:
    """Element ``index`` of a batch file. A launcher that rewrites the run's options.json changes nothing in it."""
    if not file.is_file():
        raise UserError(f"--batch {file}: no such file")
    elements = read_json(file)["elements"]
    if not 0 <= index < len(elements):
        raise UserError(f"--element {index}: {file} has elements 0 to {len(elements) - 1}")
    chosen = elements[index]
    if chosen["stage"] not in get_args(Stage):
        raise UserError(f"{file}: element {index} has stage {chosen['stage']!r}; known: {', '.join(get_args(Stage))}")
    return Element(Path(chosen["run"]), options_from_json(chosen["options"]), cast(Stage, chosen["stage"]))


def finish(record: RunRecord, options: Options, display: Display, stage: Stage = "all") -> None:
    """Do what is missing, and nothing twice. Whatever ends it is in ``status.json`` and the attempt's end.json.

    A failed engine (graft.policies.base.EngineFailure) is started again, unless the attempt before failed at the same place.
    Raises Leaving when a signal ended it, else what the run raised.
    """
    if record.done:
        display.say(f"{record.path}: done already, reused")
        return
    with record.lock():
        if not stages(record, options, stage):
            display.say(f"{record.path}: trained already")
            return
        reached: tuple[int, int] | None = None
        while True:
            try:
                _attempt(record, options, display, stage)
                return
            except Exception as e:
                # An engine whose process died or got stuck is built anew: in an attempt of its own, from the newest checkpoint.
                before, reached = reached, progress(record)
                if not engine_failed(e) or before == reached:
                    raise
                display.say(f"{record.path}: {e}; starting the engine again")
                options = replace(options, resume="auto")


def _attempt(record: RunRecord, options: Options, display: Display, stage: Stage) -> None:
    """One attempt, recorded however it ends. The caller holds the lock."""
    with recorded(record) as attempt:
        # Within the attempt, so that a time limit that leaves no time to start is counted, and ends.
        interruption.check("its start")
        display.say(f"{record.path}: writing here")
        try:
            _finish_locked(record, options, display, (attempt, stages(record, options, stage)))
        except Exception as e:
            if engine_failed(e):  # a signal that goes to every process of a job takes the engine first; the signal is the reason
                interruption.check(f"the loss of its engine ({e})")
            raise


def progress(record: RunRecord) -> tuple[int, int]:
    """How far a run has come, as far as it would not be repeated: (newest complete checkpoint's step, evaluation files)."""
    from experiments.checkpoints import newest

    found = newest(record.path / "checkpoints")
    return (found[1]["step"] if found else 0, sum(1 for _ in record.path.glob("eval/*/*/run*.jsonl")))


def stages(record: RunRecord, options: Options, stage: Stage) -> tuple[Stage, ...]:
    """What is left to do of train and evaluate. UserError for an evaluation alone of a run that is not trained."""
    trained = not record.trains or (record.path / "selected.json").exists()
    if stage == "evaluate" and not trained:
        raise UserError(f"{record.path} has not finished training, so no checkpoint is selected. Run its training first.")
    training: tuple[Stage, ...] = () if trained or stage == "evaluate" else ("train",)
    evaluating = stage == "evaluate" or (stage == "all" and options.evaluate)
    return (*training, "evaluate") if evaluating else training


def _finish_locked(record: RunRecord, options: Options, display: Display, work: tuple[Path, tuple[Stage, ...]]) -> None:
    """``work``: the attempt's directory and the stages to do."""
    from experiments.evaluation import count_complete, evaluate
    from experiments.ledger import read_ledger, summary as summary_of
    from experiments.progress import summary
    from experiments.training import train

    attempt, todo = work
    label = record.path.name
    if "train" in todo:
        train(record, attempt, options, lambda _, total, m: display.update(label, m["step"], total, summary(m)))
    if "evaluate" in todo:
        evaluate(record, attempt, options, lambda name, k, total: display.update(f"{label} evaluation", k, total, name))
        write_json(record.path / "compute.json", summary_of(read_ledger(record)))
        counts = count_complete(record)
        record.set_status("done", reason=None)
        write_json(record.path / "done.json", counts)


@contextmanager
def recorded(record: RunRecord) -> Iterator[Path]:
    """A new attempt around the work on a run; however that ends, status.json and end.json say so."""
    earlier = record.attempts()
    attempt, started = record.new_attempt(), time.monotonic()
    try:
        with reserve(attempt):
            trained = (record.path / "selected.json").exists()
            # "trained" during evaluation: the training of a run is over, whatever happens to its evaluation.
            record.set_status("trained" if trained else "running", attempt=int(attempt.name), reason=None)
            yield attempt
    except Interrupted as e:
        _close(record, attempt, ("interrupted", str(e)), started)  # at once: asking Slurm takes time that may be short
        decision = decide(e, earlier)
        if decision.ending != "interrupted":
            state = "failed" if decision.ending == "failed" else "interrupted"
            detail = decision.reason if state == "failed" else f"{e}: {decision.reason}"
            _close(record, attempt, (decision.ending, detail), started)
        raise Leaving(e.number, decision) from e
    except KeyboardInterrupt:  # only where nobody installed the handlers
        _close(record, attempt, ("interrupted", "KeyboardInterrupt"), started)
        raise
    except BaseException as e:
        broken = environment_failure(e, record.path)
        reason = "failed" if broken is None else "interrupted"
        _close(record, attempt, (reason, broken or f"{type(e).__name__}: {e}"), started)
        raise
    write_end(attempt, "done" if record.done else "trained", None, started)


def _close(record: RunRecord, attempt: Path, ending: tuple[str, str], started: float) -> None:
    """Write how an attempt ended: (reason of end.json, detail)."""
    reason, detail = ending
    with noted(record.path / "status.json"):
        record.set_status("failed" if reason == "failed" else "interrupted", reason=detail)
    write_end(attempt, reason, detail, started)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--batch", type=Path)
    parser.add_argument("--element", type=int)
    args = parser.parse_args(argv)
    if bool(args.runs) == bool(args.batch) or (args.runs and args.element is not None):
        parser.error("give run directories, or --batch")
    from experiments.progress import Display

    with node_scratch(os.environ), Display() as display:
        try:
            return max([attempt(element, display) for element in wanted(args)])
        except Leaving as e:
            return leave(e)
        except Interrupted as e:  # before a run had begun
            return leave(Leaving(e.number, decide(e, ())))


@contextmanager
def node_scratch(environ: MutableMapping[str, str]) -> Iterator[None]:
    """A folder of this process below GRAFT_SCRATCH (a node-local disk; $VARIABLES are those of the node) as TMPDIR, removed at the
    end. Nothing that a run must keep is ever there."""
    if not (root := os.path.expandvars(environ.get("GRAFT_SCRATCH", ""))):
        yield
        return
    try:
        folder = tempfile.mkdtemp(prefix="graft-", dir=root)
    except OSError as e:
        raise SystemExit(f"cluster.scratch={root}: {e.strerror}; it must exist on every node that runs jobs") from e
    environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)


def wanted(args: argparse.Namespace) -> list[Callable[[], Element]]:
    """What the command line names, each to be read when its turn comes: an unreadable one must not keep the others from running."""
    if args.runs:
        return [partial(Element, run) for run in args.runs]
    count = len(read_json(args.batch)["elements"]) if args.element is None and args.batch.is_file() else 0
    return [partial(read_element, args.batch, k) for k in (range(count) if count else [args.element or 0])]


def attempt(element: Callable[[], Element], display: Display) -> int:
    """The exit code of one run; ``element()`` gives it. Traces are printed. An interruption is raised: it ends the process."""
    path: object = "the run"
    try:
        chosen = element()
        path = chosen.run
        record = RunRecord.open(chosen.run)
        options = chosen.options or options_from_json(read_json(chosen.run / "options.json"))
        finish(record, options, display, chosen.stage)
    except RunBusy as e:
        print(f"{e}", file=sys.stderr)
        return EXIT_BUSY
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    except Exception as e:
        traceback.print_exc()
        if (broken := environment_failure(e, path)) is not None:
            print(f"error: {broken}; run the same command again to resume", file=sys.stderr)
            return EXIT_ENVIRONMENT
        return EXIT_OWN_ERROR
    return 0


if __name__ == "__main__":
    interruption.install()
    warn_in_time()
    sys.exit(main())
