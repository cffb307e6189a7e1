"""What one step's exchange says about itself: who taught whom, how much, and what became of every response offered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass

from graft.selection import Direction, Selection
from graft.types import GroupsByModel

# (receiver, prompt) -> the sources that it takes the prompt from
Teachers = Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TransferRow:
    """One offered peer response: the score s and weight w (None = dropped or never scored) and the reason."""

    prompt_id: str
    source: str
    receiver: str
    index: int
    reward: float
    advantage: float
    score: float | None
    weight: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class DirectionReport:
    """Counts of one direction: |C|, m, prompts selected and used after conflicts between sources, responses offered and admitted."""

    source: str
    receiver: str
    candidates: int
    m: int
    selected: int
    used: int
    offered: int
    admitted: int


@dataclass(frozen=True)
class ExchangeReport:
    """Everything that a reader needs to see what moved. ``all_fail``/``all_pass``: groups per model."""

    directions: tuple[DirectionReport, ...]
    rows: tuple[TransferRow, ...]
    all_fail: Mapping[str, int]
    all_pass: Mapping[str, int]

    def reasons(self, receiver: str) -> dict[str, int]:
        """How many offered responses of a receiver ended with each reason."""
        return dict(sorted(Counter(r.reason for r in self.rows if r.receiver == receiver).items()))


def report(
    groups: GroupsByModel, selection: Selection, teachers: Teachers, rows: Seq[TransferRow], learners: Seq[str]
) -> ExchangeReport:
    """Counts per direction towards a learner over ``rows``, and all-fail and all-pass groups per model."""

    def direction(d: Direction) -> DirectionReport:
        """Counts of one ordered pair."""
        mine = [r for r in rows if (r.source, r.receiver) == d]
        used = sum(d[0] in sources for (receiver, _), sources in teachers.items() if receiver == d[1])
        admitted = sum(r.weight is not None for r in mine)
        return DirectionReport(
            *d, len(selection.candidates[d]), selection.limits[d], len(selection.selected[d]), used, len(mine), admitted
        )

    return ExchangeReport(
        directions=tuple(direction(d) for d in selection.candidates if d[1] in learners),
        rows=tuple(rows),
        all_fail={name: sum(g.all_fail for g in gs) for name, gs in groups.items()},
        all_pass={name: sum(g.all_pass for g in gs) for name, gs in groups.items()},
    )
