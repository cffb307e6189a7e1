"""Optional mirrors of metrics.jsonl. The local file is the record; a tracker's failure never fails a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from experiments.run_record import RunRecord


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
    """logger=wandb. One wandb run per fingerprint (resumed, never duplicated); WANDB_MODE=offline works and syncs later."""

    def __init__(self, record: RunRecord):
        import wandb

        digest = record.config["fingerprint"]
        self._run = wandb.init(
            project="graft",
            id=digest[:16],
            name=record.path.name,
            resume="allow",
            dir=str(record.path),
            config=dict(record.config["recipe"]),
            settings=wandb.Settings(silent=True),
        )
        self._failed = False

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            # Our own step axis: wandb drops rows whose step it has seen, and a resumed run repeats steps.
            self._run.log({"train/step": step, **flatten(metrics)})
        except Exception as e:
            self._failed = True
            print(f"wandb stopped ({e!r}); metrics.jsonl goes on", file=sys.stderr)

    def close(self) -> None:
        try:
            self._run.finish(quiet=True)
        except Exception as e:
            print(f"wandb did not finish cleanly ({e!r})", file=sys.stderr)


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
