"""The compute ledger: what a run's attempts spent, step by step. Standard library only; clocks are monotonic.

Sources, all written by the attempts themselves: ``devices.json`` (what an attempt occupied), ``startup.json`` (loading, before its
first step), ``steps.jsonl`` (each step's wall-clock time, seconds by phase, tokens), ``evaluation.json``, ``memory.json``,
``end.json``. A step that a restart repeated counts once, as its last attempt made it; its earlier times stand apart as repeated.

Costs follow the paper's appendix D: devices x wall-clock time of the steps, without validation and checkpoint writing. Device-hours
are GPU-hours on GPUs and core-hours on a CPU (the threads of the run; its verifier process is not counted).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.attempts import Attempt
from experiments.files import read_json
from experiments.run_record import RunRecord, read_jsonl

# Phases of a step that the paper's cost leaves out.
APART = ("validation", "checkpoint")
# Phases of one model are called <model>/<phase>; the others belong to all models of the run.
HOUR = 3600.0


@dataclass(frozen=True)
class Devices:
    """What a process occupies for as long as it lives."""

    kind: str = "cpu"
    count: int = 1

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.kind == "gpu" else "core-hours"


@dataclass(frozen=True)
class StepCost:
    """One step as one attempt made it. ``wall``: from the end of the step before it to its own end, in seconds."""

    step: int
    attempt: int
    wall: float
    seconds: Mapping[str, float]
    tokens: Mapping[str, Mapping[str, int]]
    devices: Devices

    @property
    def apart(self) -> float:
        """Seconds of validation and checkpoint writing."""
        return sum(self.seconds.get(phase, 0.0) for phase in APART)

    @property
    def training(self) -> float:
        """Seconds that the paper's rule counts."""
        return self.wall - self.apart

    @property
    def idle(self) -> float:
        """Seconds of no phase: what the clocks between the phases did not see."""
        return self.wall - sum(self.seconds.values())

    def own(self, model: str) -> float:
        """Seconds of this model's own phases."""
        return sum(s for phase, s in self.seconds.items() if phase.startswith(f"{model}/"))

    @property
    def shared(self) -> float:
        """Seconds of training that are no single model's: exchange, recording, idle."""
        return self.training - sum(s for phase, s in self.seconds.items() if "/" in phase)


@dataclass(frozen=True)
class Ledger:
    """One run. ``kept``: each step once, in order; ``repeated``: steps that a restart did again, as they were first.

    ``startup``, ``evaluation``, ``rest``: seconds of all attempts; ``rest`` is known for attempts that could write their end.
    ``killed``: attempts that could not; the newest may still be running, and is not among them. ``peak``: model -> bytes, with the process under "process".
    """

    models: tuple[str, ...]
    kept: tuple[StepCost, ...]
    repeated: tuple[StepCost, ...]
    startup: float
    evaluation: float
    rest: float
    wall: float
    attempts: int
    killed: int
    devices: Devices
    peak: Mapping[str, Mapping[str, int]]

    def hours(self, steps: Iterable[StepCost]) -> float:
        """Device-hours of training of these steps."""
        return sum(s.training * s.devices.count for s in steps) / HOUR

    def until(self, step: int) -> float:
        """Device-hours of training up to and including ``step``: the paper's cost to a checkpoint. ValueError beyond the last step."""
        if step > len(self.kept):
            raise ValueError(f"step {step} is not in the ledger, which ends at {len(self.kept)}")
        return self.hours(s for s in self.kept if s.step <= step)

    @property
    def spent(self) -> float:
        """Device-hours of everything that is on record: all steps of all attempts, loading and evaluation."""
        steps = sum(c.wall * c.devices.count for c in (*self.kept, *self.repeated))
        return (steps + (self.startup + self.evaluation) * self.devices.count) / HOUR

    @property
    def full(self) -> float:
        """Device-hours of training of the whole run."""
        return self.hours(self.kept)

    def share(self, model: str, step: int) -> float:
        """Device-hours up to ``step`` of one model of a joint run: its own phases, and an equal part of what no model owns.

        The shares of all models add up to ``until``. (The paper prints such shares and does not say how it divides the rest.)
        """
        parts = [(s.own(model) + s.shared / len(self.models)) * s.devices.count for s in self.kept if s.step <= step]
        return sum(parts) / HOUR


def read_ledger(record: RunRecord) -> Ledger:
    """The ledger of a run, as far as it came."""
    attempts = record.attempts()
    rows = [cost for a in attempts for cost in _steps(a)]
    last = {cost.step: cost for cost in rows}
    kept = tuple(last[step] for step in sorted(last))
    ended = [a for a in attempts if a.end is not None]
    startup = sum(_seconds(a, "startup.json") for a in attempts)
    evaluation = sum(_seconds(a, "evaluation.json") for a in attempts)
    wall = sum(float(a.end["seconds"]) for a in ended if a.end)
    known = sum(_seconds(a, "startup.json") + _seconds(a, "evaluation.json") + sum(c.wall for c in _steps(a)) for a in ended)
    return Ledger(
        models=tuple(m["name"] for m in record.config["recipe"]["models"]),
        kept=kept,
        repeated=tuple(cost for cost in rows if last[cost.step] is not cost),
        startup=startup,
        evaluation=evaluation,
        rest=wall - known,
        wall=wall,
        attempts=len(attempts),
        killed=sum(a.end is None for a in attempts[:-1]),
        devices=_devices(attempts[-1]) if attempts else Devices(),
        peak=_peaks(attempts),
    )


def _steps(attempt: Attempt) -> list[StepCost]:
    devices = _devices(attempt)
    return [
        StepCost(
            row["step"],
            attempt.number,
            # Runs of before the ledger timed phases only.
            row.get("wall", sum(row["seconds"].values())),
            row["seconds"],
            row.get("tokens", {}),
            devices,
        )
        for row in read_jsonl(attempt.path / "steps.jsonl")
    ]


def _devices(attempt: Attempt) -> Devices:
    file = attempt.path / "devices.json"
    return Devices(**read_json(file)) if file.exists() else Devices()


def _seconds(attempt: Attempt, name: str) -> float:
    file = attempt.path / name
    return float(read_json(file)["seconds"]) if file.exists() else 0.0


def _peaks(attempts: Iterable[Attempt]) -> dict[str, dict[str, int]]:
    """The largest of each number over the attempts."""
    peaks: dict[str, dict[str, int]] = {}
    for attempt in attempts:
        file = attempt.path / "memory.json"
        for owner, numbers in (read_json(file) if file.exists() else {}).items():
            mine = peaks.setdefault(owner, {})
            for name, value in numbers.items():
                mine[name] = max(value, mine.get(name, 0))
    return peaks


def summary(ledger: Ledger) -> dict[str, Any]:
    """``compute.json``: the ledger in sums. Seconds unless a key says otherwise; phases are those of the kept steps."""
    phases: dict[str, float] = {}
    tokens: dict[str, dict[str, int]] = {}
    for cost in ledger.kept:
        for phase, value in (*cost.seconds.items(), ("idle", cost.idle)):
            phases[phase] = phases.get(phase, 0.0) + value
        for model, counted in cost.tokens.items():
            mine = tokens.setdefault(model, {})
            for name, number in counted.items():
                mine[name] = mine.get(name, 0) + number
    return {
        "devices": {"kind": ledger.devices.kind, "count": ledger.devices.count},
        "training_device_hours": ledger.full,
        "unit_of_device_hours": ledger.devices.unit,
        "steps": len(ledger.kept),
        "phases": phases,
        "tokens": tokens,
        "training_seconds": sum(c.training for c in ledger.kept),
        "validation_and_checkpoint_seconds": sum(c.apart for c in ledger.kept),
        "evaluation_seconds": ledger.evaluation,
        "startup_seconds": ledger.startup,
        "repeated_steps_seconds": sum(c.wall for c in ledger.repeated),
        "attempts": ledger.attempts,
        "killed_attempts": ledger.killed,
        "peak_bytes": ledger.peak,
    }
