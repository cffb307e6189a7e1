"""What ``python -m experiments.tasks check`` says of the file-based sets: found, as pinned, golds, repeats, overlaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.errors import UserError
from experiments.tasks import source_items
from experiments.tasks.files import ITEMS, Item, find_file
from experiments.tasks.hub import HUB
from experiments.tasks.pinning import Difference, compare, normalised

TRAIN = "math-train"
HEADER = ("set", "file", "items", "as pinned", "no gold", "same text", f"in {TRAIN}")
NONE = "—"


@dataclass(frozen=True)
class SetReport:
    """Findings about one set. ``error`` says why it could not be read; nothing else is known then.

    ``repeated``: ids of each text that occurs more than once. ``overlap``: (own id, id in MATH train); None where not compared.
    """

    source: str
    file: str = NONE
    items: int = 0
    error: str | None = None
    difference: Difference | None = None
    no_gold: tuple[str, ...] = ()
    repeated: tuple[tuple[str, ...], ...] = ()
    overlap: tuple[tuple[str, str], ...] | None = None

    @property
    def wrong(self) -> bool:
        """Missing golds and repeats of the pinned edition are known and no mistake of the user."""
        return bool(self.error or self.overlap or (self.difference and self.difference.count))


def by_text(items: Sequence[Item]) -> dict[str, list[str]]:
    """Ids by normalised problem text."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        ids[normalised(item.problem)].append(item.id)
    return ids


def examine(root: str, sources: Sequence[str] = tuple(ITEMS)) -> tuple[SetReport, ...]:
    """One report a set. Overlap is checked for benchmarks if MATH train is among ``sources`` and can be read."""
    loaded: dict[str, tuple[Item, ...] | str] = {}
    for source in sources:
        try:
            loaded[source] = source_items(source, root)
        except UserError as e:
            loaded[source] = str(e)
    train = loaded.get(TRAIN)
    train_texts = by_text(train) if isinstance(train, tuple) else None
    return tuple(
        SetReport(source, error=items) if isinstance(items, str) else _report(source, root, items, train_texts)
        for source, items in loaded.items()
    )


def _report(source: str, root: str, items: tuple[Item, ...], train_texts: dict[str, list[str]] | None) -> SetReport:
    texts = by_text(items)
    overlap = None
    if train_texts is not None and source != TRAIN:
        overlap = tuple((own, train_texts[t][0]) for t, ids in texts.items() if t in train_texts for own in ids)
    return SetReport(
        source,
        file=HUB if root == HUB else find_file(source, root).name,
        items=len(items),
        difference=compare(source, items),
        no_gold=tuple(i.id for i in items if not i.gold.strip()),
        repeated=tuple(tuple(ids) for ids in texts.values() if len(ids) > 1),
        overlap=overlap,
    )


def format_report(reports: Sequence[SetReport]) -> str:
    """A table with one row a set, then one line for everything that is not 0 or yes."""
    rows = [HEADER, *(_row(r) for r in reports)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*table, "", *(line for r in reports for line in _notes(r)), verdict(reports)])


def _row(r: SetReport) -> tuple[str, ...]:
    if r.difference is None:
        return (r.source, "NOT READ", f"0/{ITEMS[r.source]}", *[NONE] * 4)
    pinned = f"{r.difference.count} DIFFER" if r.difference.count else "yes"
    overlap = NONE if r.overlap is None else str(len(r.overlap))
    repeated = str(sum(len(ids) - 1 for ids in r.repeated))
    return (r.source, r.file, f"{r.items}/{ITEMS[r.source]}", pinned, str(len(r.no_gold)), repeated, overlap)


def _notes(r: SetReport) -> list[str]:
    lines = [f"{r.source}: {r.error}"] if r.error else []
    if r.difference and r.difference.count:
        lines.append(f"{r.source}: {r.difference}")
    if r.no_gold:
        lines.append(f"{r.source}: no gold, left out unless corrected: {', '.join(r.no_gold)}")
    lines += [f"{r.source}: same text: {' = '.join(ids)}" for ids in r.repeated]
    return lines + [f"{r.source}: {own} is also in {TRAIN} ({other})" for own, other in r.overlap or ()]


def verdict(reports: Sequence[SetReport]) -> str:
    """The last line: all right, or the sets that are not."""
    wrong = [r.source for r in reports if r.wrong]
    return f"WRONG: {', '.join(wrong)} (docs/data.md says what to do)" if wrong else "All sets are the pinned ones."
