"""Gold answers under ``data.golds``: the source's own (``paper``), or with the overlay of corrections (``corrected``).

The overlay is data: ``golds/corrected.json`` maps an id to the gold that replaces the source's, with kind and reason. It has a
version, and its hash is part of every recipe that uses it. Entries with ``any_of`` instead of ``answer`` name several answers, each
of which is right: the first becomes the gold, the others its alternatives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.files import canonical_json, read_json
from experiments.tasks.files import Item
from experiments.tasks.pinning import load_pins, pin_of

FOLDER = Path(__file__).resolve().parent / "golds"
PAPER = "paper"
CHOICES = (PAPER, "corrected")


@dataclass(frozen=True)
class Overlay:
    """Named, versioned corrections: ``golds`` maps ids to accepted answers. ``sha256`` covers the whole file's contents."""

    name: str
    version: int
    sha256: str
    golds: Mapping[str, tuple[str, ...]]

    def describe(self) -> dict[str, Any]:
        """What a recipe says of the overlay."""
        return {"name": self.name, "version": self.version, "sha256": self.sha256}


def overlay(name: str) -> Overlay | None:
    """The overlay of that name; None for ``paper``. UserError for unknown names."""
    if name not in CHOICES:
        raise UserError(f"data.golds={name} is unknown; known: {', '.join(CHOICES)}")
    return None if name == PAPER else _read(FOLDER / f"{name}.json")


@lru_cache(maxsize=4)
def _read(path: Path) -> Overlay:
    content = read_json(path)
    golds = {name: tuple(entry.get("any_of") or [entry["answer"]]) for name, entry in content["items"].items()}
    digest = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    return Overlay(content["name"], content["version"], digest, golds)


def describe_golds(name: str) -> dict[str, Any]:
    """What a recipe says of ``data.golds``: the name, and of an overlay its version and hash."""
    chosen = overlay(name)
    return chosen.describe() if chosen else {"name": PAPER}


def correct(source: str, items: Iterable[Item], name: str) -> tuple[tuple[Item, ...], int]:
    """Items with the golds of ``name``, and how many golds that changed.

    A correction belongs to a problem, not to an id: it is applied only where the problem's text is the pinned one, so that an
    edition with other ids for other problems is never given a wrong gold.
    """
    chosen = overlay(name)
    if chosen is None:
        return tuple(items), 0
    texts = {p.id: p.text for p in load_pins(source) if p.id in chosen.golds}
    corrected, changed = [], 0
    for item in items:
        if item.id in texts and pin_of(item).text == texts[item.id]:
            gold, *alternatives = chosen.golds[item.id]
            better = replace(item, gold=gold, alternatives=tuple(alternatives))
            changed += better != item
            item = better
        corrected.append(item)
    return tuple(corrected), changed
