"""``python -m analysis exchange --run <run directory>``: who taught whom, summed over the steps of one joint run."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.metrics import Step, count, read_steps
from analysis.page import Item, Line, Page, Part, Span, csv_number, csv_text, number
from analysis.terminal import print_page
from analysis.writers import to_markdown
from experiments.run_record import RunRecord, UserError

# Of one direction in one step, in the order in which prompts and responses drop out.
COUNTS = ("candidates", "m", "selected", "used", "offered", "admitted")
CSV_COLUMNS = ("source", "receiver", "steps", *COUNTS, "weight_mean", "reason", "responses")


@dataclass
class Taught:
    """One direction: counts and reasons summed over ``steps``, and the admitted responses' weights."""

    source: str
    receiver: str
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    weight: float = 0.0

    @property
    def weight_mean(self) -> float | None:
        """Mean over all admitted responses of the run: each step's mean enters with its number of admitted responses."""
        return self.weight / self.counts["admitted"] if self.counts["admitted"] else None

    def add(self, row: Mapping[str, Any], where: str) -> None:
        """One step's row of this direction."""
        self.steps += 1
        counts = {key: count(row, key, where) for key in COUNTS}
        mean = row.get("weight_mean")
        if counts["admitted"] and type(mean) not in (int, float):
            raise UserError(f"{where}: weight_mean is {mean!r} with {counts['admitted']} admitted responses")
        if not isinstance(row.get("reasons"), Mapping):
            raise UserError(f"{where}: reasons is {row.get('reasons')!r}, expected counts by reason")
        self.counts.update(counts)
        self.reasons.update({reason: count(row["reasons"], reason, where) for reason in row["reasons"]})
        self.weight += counts["admitted"] * mean if counts["admitted"] else 0.0


def summed(steps: Sequence[Step]) -> list[Taught]:
    """Every ordered pair of models that occurs, by source and receiver. UserError if nothing was exchanged in any step."""
    directions: dict[tuple[str, str], Taught] = {}
    for step in steps:
        for row in step.exchange:
            if not isinstance(row, Mapping) or not {"source", "receiver"} <= row.keys():
                raise UserError(f"{step.where}: an exchange row names its source and its receiver")
            key = (row["source"], row["receiver"])
            directions.setdefault(key, Taught(*key)).add(row, step.where)
    return [directions[key] for key in sorted(directions)]


def load(run: Path) -> tuple[RunRecord, list[Taught], int]:
    """(record, directions, steps) of a run directory; UserError for one in which nothing is exchanged."""
    record = RunRecord.open(run)
    if record.config["cell"]["pair"] is None:
        method, (model, *_) = record.config["cell"]["method"], record.config["cell"]["models"]
        raise UserError(
            f"{run}: {method} trained {model} alone; nothing was exchanged. Give the directory of a joint run or of one with a stored peer."
        )
    steps = read_steps(record.path)
    directions = summed(steps)
    if not directions:
        raise UserError(f"{record.path / 'metrics.jsonl'} holds no exchange row in {len(steps)} steps")
    return record, directions, len(steps)


def to_page(record: RunRecord, directions: Sequence[Taught], steps: int) -> Page:
    """Two parts: counts per direction, and what became of the offered responses."""
    names = [f"{t.source} -> {t.receiver}" for t in directions]
    counts = [
        Line(name, (*(Item(str(t.counts[key])) for key in COUNTS), Item(number(t.weight_mean, 3))))
        for name, t in zip(names, directions)
    ]
    reasons = sorted({reason for t in directions for reason in t.reasons})
    became = [
        Line(reason, tuple(Item(f"{t.reasons[reason]} ({_percent(t.reasons[reason], t.counts['offered'])})") for t in directions))
        for reason in reasons
    ]
    title = f"Who taught whom: {record.path.name}"
    return Page(
        name="exchange",
        folder=record.config["cell"]["scale"],
        heading=title,
        title=title,
        caption=f"Sums over {steps} steps of {record.path}; source -> receiver.",
        parts=(
            Part("Prompts and responses", (Span("", (*COUNTS, "weight mean")),), tuple(counts)),
            Part("What became of the offered responses", (Span("", tuple(names)),), tuple(became)),
        ),
        notes=(
            "candidates, m, selected, used: prompts eligible, asked for, chosen with ties, and left after conflicts between "
            "sources; offered, admitted: peer responses before and after the gate (docs/metrics.md). What counts as eligible is the "
            "method's.",
            "weight mean: over the admitted responses of all steps. The percentages are of the offered responses.",
        ),
    )


def _percent(part: int, whole: int) -> str:
    return f"{number(100 * part / whole if whole else None, 1)} %"


def to_csv(directions: Sequence[Taught]) -> str:
    """One line per direction with its sums (reason empty), then one per direction and reason."""
    rows: list[Sequence[str]] = []
    for t in directions:
        head = [t.source, t.receiver, str(t.steps)]
        rows.append([*head, *(str(t.counts[key]) for key in COUNTS), csv_number(t.weight_mean), "", ""])
        rows += [[*head, *("" for _ in COUNTS), "", reason, str(n)] for reason, n in sorted(t.reasons.items())]
    return csv_text(CSV_COLUMNS, rows)


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    parser = argparse.ArgumentParser(prog="python -m analysis exchange", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="directory of a joint run, e.g. runs/paper/graft-1-cpu-s0-...")
    parser.add_argument("--format", choices=["term", "md", "csv"], default="term", help="what is printed (default: term)")
    args = parser.parse_args(argv)
    record, directions, steps = load(args.run)
    if args.format == "csv":
        sys.stdout.write(to_csv(directions))
    elif args.format == "md":
        sys.stdout.write(to_markdown(to_page(record, directions, steps)))
    else:
        print_page(to_page(record, directions, steps))
    return 0
