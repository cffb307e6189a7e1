"""Optional mirrors of metrics.jsonl. The local file is the record; a tracker's failure never fails a run (docs/tracking.md)."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from experiments import interruption
from experiments.files import read_json, write_json
from experiments.run_record import RunRecord, read_jsonl

STEP = "train/step"
FINISH_LIMIT_S = 60.0
# A scheduler that asked the run to stop kills it soon; its record comes first.
INTERRUPTED_FINISH_LIMIT_S = 5.0


class Tracker(Protocol):
    """What the trainer calls."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    """logger=none."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class WandbTracker:
    """logger=wandb. One wandb run per fingerprint, whatever the number of attempts.

    Offline, one part holds the whole history: wandb's sync of a second part with the same id erases what the first one sent
    (github.com/wandb/wandb/issues/5865). Online, rows that the server has are not sent again.
    """

    def __init__(self, record: RunRecord):
        # An inherited service is that of whoever started this process, perhaps on another machine: it may be gone, and it takes
        # the run of an attempt that was killed for one still in use.
        if "wandb" not in sys.modules:
            os.environ.pop("WANDB_SERVICE", None)
        import wandb

        name = run_id(record)
        with interruption.shielded():  # wandb's helper process outlives a warning signal as the run does
            self._run = wandb.init(
                project="graft",
                id=name,
                name=record.path.name,
                resume="allow",
                dir=str(record.path),
                config=dict(record.config["recipe"]),
                settings=wandb.Settings(silent=True),
            )
        self._failed = False
        self._sent = 0 if self._run.offline else last_step(self._run.summary)
        if self._run.offline:
            for older in older_parts(record.path / "wandb", name, Path(self._run.dir).parent):
                shutil.rmtree(older)
        # Our own step axis: wandb drops rows whose step it has seen, and a resumed run repeats steps.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        for row in read_jsonl(record.path / "metrics.jsonl"):
            self.log(row["step"], row)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send one row, unless wandb has it."""
        if self._failed or step <= self._sent:
            return
        try:
            self._run.log({STEP: step, **flatten(metrics)})
            self._sent = step
        except Exception as e:
            self._failed = True
            print(f"wandb stopped ({e!r}); metrics.jsonl goes on", file=sys.stderr)

    def close(self) -> None:
        limit = INTERRUPTED_FINISH_LIMIT_S if interruption.received() else FINISH_LIMIT_S
        problem = bounded(self._run.finish, limit)
        if problem:
            print(f"wandb did not finish cleanly ({problem})", file=sys.stderr)


def run_id(record: RunRecord) -> str:
    """The run's wandb id: the fingerprint's beginning, stored in ``wandb.json`` by the first attempt.

    A person may change the file before a restart: wandb never takes the id of a run that was deleted on the server again.
    """
    file = record.path / "wandb.json"
    if not file.exists():
        write_json(file, {"id": record.config["fingerprint"][:16]})
    return str(read_json(file)["id"])


def last_step(summary: Any) -> int:
    """The newest step that the server's summary of a resumed run names; 0 for a new run."""
    value = summary.get(STEP)
    return int(value) if isinstance(value, (int, float)) else 0


def older_parts(directory: Path, name: str, current: Path) -> Iterator[Path]:
    """Offline parts of run ``name`` other than ``current``."""
    for part in sorted(directory.glob(f"offline-run-*-{name}")):
        if part.resolve() != current.resolve():
            yield part


def bounded(call: Callable[[], object], seconds: float) -> str | None:
    """Run ``call`` for at most so long; what went wrong, or None. A call that hangs is left behind."""
    problems: list[str] = ["no answer within its time"]

    def run() -> None:
        try:
            call()
            problems.clear()
        except Exception as e:
            problems[0] = repr(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return problems[0] if problems else None


def flatten(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of one metrics row under the names of docs/metrics.md: model/metric and source->receiver/metric."""
    flat = {f"{m}/{k}": v for m, values in metrics["models"].items() for k, v in values.items() if isinstance(v, (int, float))}
    for d in metrics["exchange"]:
        flat |= {f"{d['source']}->{d['receiver']}/{k}": v for k, v in d.items() if isinstance(v, (int, float))}
    return flat


def open_tracker(logger: str, record: RunRecord) -> Tracker:
    """The tracker named in the options; on any failure to start it, a note and no tracker."""
    if logger == "none":
        return NoTracker()
    try:
        return WandbTracker(record)
    except Exception as e:
        print(f"wandb could not start ({e!r}); the run goes on without it", file=sys.stderr)
        return NoTracker()
