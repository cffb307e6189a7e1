"""Pins: ids and hashes of every item of the file-based sets, so that a check can say which items of a file differ.

``pins/<set>.txt`` has one line an item: id, hash of (problem, gold), hash of the problem's normalised text; 16 hex digits each.
The first hash decides whether an item is the pinned one. The second finds items of other editions and overlaps of two sets.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.tasks.files import Item

FOLDER = Path(__file__).resolve().parent / "pins"
NAMED = 5  # ids that a message names
# LaTeX's space: \, \; \: \! \> "\ " \quad \qquad ~
SPACE = re.compile(r"\\(?:[,;:!> ]|q?quad(?![a-zA-Z]))|~")
ROW_BREAK = "\\\\"


@dataclass(frozen=True, slots=True)
class Pin:
    """One expected item. ``item`` hashes problem and gold, ``text`` the normalised problem."""

    id: str
    item: str
    text: str


def short_hash(text: str) -> str:
    """The first 16 hex digits of the SHA-256 of ``text`` in Unicode normal form C."""
    return hashlib.sha256(unicodedata.normalize("NFC", text).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def normalised(problem: str) -> str:
    """The text by which two problems count as the same: lower case, without white space and LaTeX spacing."""
    # Row breaks stay whole, or their second backslash would make a space of what follows.
    parts = unicodedata.normalize("NFC", problem).split(ROW_BREAK)
    return ROW_BREAK.join("".join(SPACE.sub("", part).split()) for part in parts).lower()


def pin_of(item: Item) -> Pin:
    """The pin that describes ``item``."""
    return Pin(item.id, short_hash(canonical_json([item.problem, item.gold])), short_hash(normalised(item.problem)))


def format_pins(source: str, items: Sequence[Item]) -> str:
    """The pin file of ``items``."""
    lines = [
        f"# {source}: {len(items)} items. Columns: id, hash of problem and gold, hash of the normalised problem (docs/data.md)"
    ]
    lines += [f"{p.id} {p.item} {p.text}" for p in map(pin_of, items)]
    return "\n".join(lines) + "\n"


def load_pins(source: str) -> tuple[Pin, ...]:
    """The committed pins of a set. UserError when the file is missing or damaged."""
    return _read(FOLDER / f"{source}.txt")


@lru_cache(maxsize=16)
def _read(path: Path) -> tuple[Pin, ...]:
    if not path.is_file():
        command = f"python -m experiments.tasks pin {path.stem} --root <directory> --write"
        raise UserError(f"{path} does not exist, so contents cannot be checked; restore it, or write it: {command}")
    pins = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        fields = line.rsplit(" ", 2)
        if len(fields) != 3:
            raise UserError(f"{path}:{number}: not an id and two hashes; restore the file from the repository")
        pins.append(Pin(*fields))
    return tuple(pins)


@dataclass(frozen=True)
class Difference:
    """Ids by what is wrong with them. ``expected`` and ``found`` are numbers of items."""

    expected: int
    found: int
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def count(self) -> int:
        """Items that are not as pinned."""
        return len(self.missing) + len(self.extra) + len(self.changed)

    def __str__(self) -> str:
        kinds = {"changed": self.changed, "missing": self.missing, "extra": self.extra}
        parts = [f"{len(ids)} {kind} ({_some(ids)})" for kind, ids in kinds.items() if ids]
        return f"has {self.found} items, {self.expected} are pinned: {', '.join(parts) or 'none differs'}"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMED]) + (f", and {len(ids) - NAMED} more" if len(ids) > NAMED else "")


def compare(source: str, items: Iterable[Item]) -> Difference:
    """How ``items`` differ from the pins; the order of items is no difference."""
    pins, mine = {p.id: p for p in load_pins(source)}, {i.id: pin_of(i) for i in items}
    return Difference(
        expected=len(pins),
        found=len(mine),
        missing=tuple(name for name in pins if name not in mine),
        extra=tuple(name for name in mine if name not in pins),
        changed=tuple(name for name, pin in pins.items() if name in mine and mine[name].item != pin.item),
    )


def in_pinned_order(source: str, items: Iterable[Item]) -> tuple[Item, ...]:
    """Pinned ids in the pins' order, then the others in theirs: the order of lines in a file changes no run."""
    place = {p.id: number for number, p in enumerate(load_pins(source))}
    return tuple(sorted(items, key=lambda i: place.get(i.id, len(place))))


def name_by_text(source: str, items: Sequence[Item]) -> tuple[Item, ...]:
    """Items with the pinned ids of their texts, exact matches first; the ids of items that match no pin are kept."""
    free: defaultdict[str, list[str]] = defaultdict(list)
    for pin in load_pins(source):
        free[pin.item].append(pin.id)
        free[pin.text].append(pin.id)
    mine, names, taken = [pin_of(i) for i in items], {}, set()
    for column in ("item", "text"):
        for number, pin in enumerate(mine):
            name = next((n for n in free[getattr(pin, column)] if n not in taken), None)
            if number not in names and name is not None:
                names[number] = name
                taken.add(name)
    return tuple(Item(names.get(number, i.id), i.problem, i.gold) for number, i in enumerate(items))
