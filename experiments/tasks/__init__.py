"""Prompt sets and benchmarks by name, pinned by count and hash."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.tasks import arithmetic, files
from experiments.tasks.corrections import PAPER, correct, describe_golds
from experiments.tasks.hub import HUB, fetch_items
from experiments.tasks.pinning import compare, in_pinned_order
from graft.types import Prompt

# Count and SHA-256 of (id, message, golds) of the generated sets: a change of the generator must not pass unseen.
PINS: Mapping[str, tuple[int, str]] = {
    "arith-train": (800, "b21be4b2dffe5fa06293e43c1cc41bb25f81dbce6c745bce92807bb64184459d"),
    "arith-validation": (48, "62e79cb1424de381aaa3db9296a040c452ca6633762dfeda3b18de603bafda7f"),
    "arith-heldout": (48, "9bfdff9f91e3953901cf06387d3870e13d35785fce495b970c571507d72951dc"),
    "arith-multiply": (36, "e1bae555e9c5d1fedc725ef213c4472bf9e5539ea2970b7d6aeacbf6aaf95a6a"),
    "arith-teens": (36, "65174be7a5dbd6098bb7a42c132cfe441fb9165bfda0d79847287fd706b1f0c9"),
    "arith-unseen": (36, "7b6245f2a45fee2df1f0850ccf63eb45fc269e3a113ccf820548e468bde9ca1b"),
    "arith-aside": (36, "ad60cc982a43779e9303291192874b1c80df9022365d3716bfd84cfbc369af37"),
}

STRICT = "strict"


@dataclass(frozen=True)
class PromptSet:
    """Prompts in a fixed order with the hash of their contents.

    ``differing``: items of a file-based set that are not as pinned, None where nothing was compared. ``corrected``: number of
    golds that an overlay changed.
    """

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str
    differing: int | None = None
    corrected: int = 0

    @classmethod
    def of(cls, name: str, prompts: tuple[Prompt, ...], *, differing: int | None = None, corrected: int = 0) -> PromptSet:
        """Hash and check: ids must be unique (UserError otherwise)."""
        seen: set[str] = set()
        for p in prompts:
            if p.id in seen:
                raise UserError(f"prompt set {name}: id {p.id!r} occurs twice; give every item its own id")
            seen.add(p.id)
        lines = "\n".join(canonical_json([p.id, p.message, *p.golds]) for p in prompts)
        digest = hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest()
        return cls(name, prompts, digest, differing, corrected)


def known_sets() -> tuple[str, ...]:
    return (*arithmetic.SETS, *files.ITEMS)


@lru_cache(maxsize=32)
def load_prompt_set(source: str, root: str | None = None, golds: str = PAPER, pins: str = STRICT) -> PromptSet:
    """The prompt set ``source``. UserError for unknown names and changed contents.

    The other arguments concern file-based sets. ``root``: their directory, or ``hub``. ``golds``: paper or corrected. ``pins``:
    strict refuses items that differ from the pinned ones, warn names them, off compares nothing.
    """
    if source in files.ITEMS:
        return _from_files(source, root, golds, pins)
    if source not in arithmetic.SETS:
        raise UserError(f"unknown prompt set {source!r}; known: {', '.join(known_sets())}")
    loaded = PromptSet.of(source, tuple(arithmetic.SETS[source]()))
    if PINS.get(source) != (len(loaded.prompts), loaded.sha256):
        raise UserError(
            f"prompt set {source} is not the pinned one: {len(loaded.prompts)} items, sha256 {loaded.sha256}; the generator changed"
        )
    return loaded


def source_items(source: str, root: str | None) -> tuple[files.Item, ...]:
    """All items of a file-based set as its source has them, from a directory or the hub."""
    return fetch_items(source) if root == HUB else files.read_items(source, root)


def _from_files(source: str, root: str | None, golds: str, pins: str) -> PromptSet:
    """Items without a gold cannot be verified and are left out."""
    items = source_items(source, root)
    differing = None
    if pins != "off":
        difference = compare(source, items)
        differing = difference.count
        if differing and pins == STRICT:
            raise UserError(
                f"{source} in {root} {difference}. This is not the edition behind the pins, so numbers would not compare: get "
                "the edition that docs/data.md names, or use this one knowingly with data.pins=warn (the recipe then says so)."
            )
        if differing:
            print(f"warning: {source} in {root} {difference}", file=sys.stderr)
        items = in_pinned_order(source, items)
    items, corrected = correct(source, items, golds)
    prompts = tuple(Prompt(i.id, i.problem, i.gold, alternatives=i.alternatives) for i in items if i.gold.strip())
    return PromptSet.of(source, prompts, differing=differing, corrected=corrected)


def describe_prompt_set(source: str, root: str | None, golds: str = PAPER, pins: str = STRICT) -> dict[str, Any]:
    """What a recipe says of a set: source, items, sha256; of a file-based set also its golds, its pins' rule and what differed.

    File-based sets without a root have their pinned count, and no hash yet.
    """
    if source not in files.ITEMS:
        loaded = load_prompt_set(source, root)
        return {"source": source, "items": len(loaded.prompts), "sha256": loaded.sha256}
    chosen = describe_golds(golds)
    if root is None:
        size: dict[str, Any] = {"items": files.ITEMS[source], "sha256": None}
        return {"source": source, **size, "golds": chosen, "pins": {"rule": pins, "differing": None}}
    loaded = load_prompt_set(source, root, golds, pins)
    if golds != PAPER:
        chosen["changed"] = loaded.corrected
    size = {"items": len(loaded.prompts), "sha256": loaded.sha256}
    return {"source": source, **size, "golds": chosen, "pins": {"rule": pins, "differing": loaded.differing}}


def load_pinned(described: Mapping[str, Any], root: str | None) -> PromptSet:
    """The set that a recipe describes, under the recipe's golds and pins; UserError when its contents are no longer those."""
    source = described["source"]
    golds, rule = described.get("golds", {"name": PAPER}), described.get("pins", {}).get("rule", STRICT)
    here = describe_golds(golds["name"])
    if any(golds.get(key) != value for key, value in here.items()):
        raise UserError(
            f"prompt set {source}: the recipe's golds are {golds['name']} version {golds.get('version')}, this code has "
            f"version {here.get('version')} or other contents of it. Use the code of the run, or start a new run."
        )
    loaded = load_prompt_set(source, root, golds["name"], rule)
    if loaded.sha256 != described["sha256"]:
        raise UserError(
            f"prompt set {source}: contents differ from the recipe's ({len(loaded.prompts)} items, sha256 {loaded.sha256[:12]}; "
            f"the recipe has {described['items']}, {str(described['sha256'])[:12]}). Use the same files, or start a new run."
        )
    return loaded
