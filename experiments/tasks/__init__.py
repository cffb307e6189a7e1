"""Prompt sets and benchmarks by name, pinned by count and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.tasks import arithmetic, files
from graft.types import Prompt

# Count and SHA-256 of (id, message, gold) of the generated sets: a change of the generator must not pass unseen.
PINS: Mapping[str, tuple[int, str]] = {
    "arith-train": (800, "b21be4b2dffe5fa06293e43c1cc41bb25f81dbce6c745bce92807bb64184459d"),
    "arith-validation": (48, "62e79cb1424de381aaa3db9296a040c452ca6633762dfeda3b18de603bafda7f"),
    "arith-heldout": (48, "9bfdff9f91e3953901cf06387d3870e13d35785fce495b970c571507d72951dc"),
    "arith-multiply": (36, "e1bae555e9c5d1fedc725ef213c4472bf9e5539ea2970b7d6aeacbf6aaf95a6a"),
    "arith-teens": (36, "65174be7a5dbd6098bb7a42c132cfe441fb9165bfda0d79847287fd706b1f0c9"),
    "arith-unseen": (36, "7b6245f2a45fee2df1f0850ccf63eb45fc269e3a113ccf820548e468bde9ca1b"),
    "arith-aside": (36, "ad60cc982a43779e9303291192874b1c80df9022365d3716bfd84cfbc369af37"),
}


@dataclass(frozen=True)
class PromptSet:
    """Prompts in a fixed order with the hash of their contents."""

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str

    @classmethod
    def of(cls, name: str, prompts: tuple[Prompt, ...]) -> PromptSet:
        """Hash and check: ids must be unique (UserError otherwise)."""
        seen: set[str] = set()
        for p in prompts:
            if p.id in seen:
                raise UserError(f"prompt set {name}: id {p.id!r} occurs twice; give every item its own id")
            seen.add(p.id)
        lines = "\n".join(canonical_json([p.id, p.message, p.gold]) for p in prompts)
        return cls(name, prompts, hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest())


def known_sets() -> tuple[str, ...]:
    return (*arithmetic.SETS, *files.ITEMS)


@lru_cache(maxsize=32)
def load_prompt_set(source: str, root: str | None = None) -> PromptSet:
    """The prompt set ``source``; ``root`` is the directory of file-based sets. UserError for unknown names and changed contents."""
    if source in files.ITEMS:
        return PromptSet.of(source, files.read_prompts(source, root))
    if source not in arithmetic.SETS:
        raise UserError(f"unknown prompt set {source!r}; known: {', '.join(known_sets())}")
    loaded = PromptSet.of(source, tuple(arithmetic.SETS[source]()))
    if PINS.get(source) != (len(loaded.prompts), loaded.sha256):
        raise UserError(
            f"prompt set {source} is not the pinned one: {len(loaded.prompts)} items, sha256 {loaded.sha256}; the generator changed"
        )
    return loaded


def describe_prompt_set(source: str, root: str | None) -> dict[str, Any]:
    """What a recipe says of a set: source, items, sha256. File-based sets without a root have their pinned count and no hash yet."""
    if source in files.ITEMS and root is None:
        return {"source": source, "items": files.ITEMS[source], "sha256": None}
    loaded = load_prompt_set(source, root)
    return {"source": source, "items": len(loaded.prompts), "sha256": loaded.sha256}


def load_pinned(described: Mapping[str, Any], root: str | None) -> PromptSet:
    """The set that a recipe describes; UserError when its contents are no longer those of the recipe."""
    loaded = load_prompt_set(described["source"], root)
    if loaded.sha256 != described["sha256"]:
        raise UserError(
            f"prompt set {described['source']}: contents differ from the recipe's ({len(loaded.prompts)} items, sha256 {loaded.sha256[:12]}; "
            f"the recipe has {described['items']}, {str(described['sha256'])[:12]}). Use the same files, or start a new run."
        )
    return loaded
