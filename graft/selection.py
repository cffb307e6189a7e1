"""Which prompts move in which direction.

A selection has the signature ``(groups, rng, **hyperparameters) -> Selection``. It sees success counts only: which text is
admitted is decided later (compatibility.py). A direction is an ordered pair (source, receiver).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Protocol

import numpy as np

from graft.types import GroupsByModel

Direction = tuple[str, str]


@dataclass(frozen=True)
class Selection:
    """``candidates`` and ``selected`` map each direction to prompt ids; ``limits`` to m, the size asked for before ties.

    ``silent`` prompts move with advantage 0: their responses count in denominators and teach nothing. ``one_source``: a receiver
    takes a prompt from one source only; otherwise from all that selected it.
    """

    candidates: Mapping[Direction, tuple[str, ...]]
    selected: Mapping[Direction, tuple[str, ...]]
    limits: Mapping[Direction, int]
    silent: Mapping[Direction, frozenset[str]] = field(default_factory=dict)
    one_source: bool = True


class Select(Protocol):
    """The signature above."""

    __name__: str

    def __call__(self, groups: GroupsByModel, rng: np.random.Generator) -> Selection: ...


def no_selection(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """Nothing moves (independent training)."""
    return Selection({}, {}, {})


def select_with_ties(counts: Mapping[str, int], m: int) -> tuple[str, ...]:
    """SelectWithTies of section 4.1: the m prompts of highest count and every prompt tied with the m-th; () when m = 0.

    The result keeps the order of ``counts`` (batch order). m may exceed the number of prompts: then all are kept.
    Raises ValueError when m is negative.
    """
    if m < 0:
        raise ValueError(f"m = {m}: the number of prompts to select cannot be negative")
    if m == 0 or not counts:
        return ()
    threshold = sorted(counts.values(), reverse=True)[min(m, len(counts)) - 1]
    return tuple(q for q, k in counts.items() if k >= threshold)


def complementary_counts(groups: GroupsByModel, source: str, receiver: str) -> dict[str, int]:
    """C_{source->receiver} of eq. 4 as {prompt id: k_source}: the receiver's group all failed, the source's is mixed."""
    failed = {g.prompt.id for g in groups[receiver] if g.all_fail}
    return {g.prompt.id: g.successes for g in groups[source] if g.prompt.id in failed and not g.all_fail and not g.all_pass}


def complementary_balanced(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """GRAFT: m = min(|C_AB|, |C_BA|) for each unordered pair, then SelectWithTies by the source's success count in both directions."""
    candidates: dict[Direction, tuple[str, ...]] = {}
    selected: dict[Direction, tuple[str, ...]] = {}
    limits: dict[Direction, int] = {}
    for a, b in combinations(groups, 2):
        counts = {(s, r): complementary_counts(groups, s, r) for s, r in ((a, b), (b, a))}
        m = min(map(len, counts.values()))
        for direction, by_prompt in counts.items():
            candidates[direction] = tuple(by_prompt)
            selected[direction] = select_with_ties(by_prompt, m)
            limits[direction] = m
    return Selection(candidates, selected, limits)


def complementary(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """All of C_{S->R} of eq. 4 in every direction, without balancing: the receiver failed and the source solved in part.

    For a stored peer, to which nothing flows back that could be balanced against. Unlike ``rescue`` it leaves all-pass sources out.
    """
    eligible = {(s, r): tuple(complementary_counts(groups, s, r)) for s, r in permutations(groups, 2)}
    return Selection(eligible, eligible, {d: len(q) for d, q in eligible.items()})


def rescue(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """Every prompt where the receiver's group all failed and the source has a success; no balancing.

    SGT's rescue set (arXiv 2605.07244), and GRAFT without balancing (appendix G), where all-pass source groups are eligible too:
    they move and carry advantage 0.
    """
    eligible = {}
    for source, receiver in permutations(groups, 2):
        failed = {g.prompt.id for g in groups[receiver] if g.all_fail}
        eligible[source, receiver] = tuple(g.prompt.id for g in groups[source] if g.prompt.id in failed and not g.all_fail)
    return Selection(eligible, eligible, {d: len(q) for d, q in eligible.items()})


def count_matched_random(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """Per direction as many prompts as GRAFT would select (ties included), drawn uniformly from the batch whatever the rewards."""
    graft = complementary_balanced(groups, rng)
    drawn = {}
    for (source, receiver), chosen in graft.selected.items():
        prompts = [g.prompt.id for g in groups[source]]
        places = sorted(rng.choice(len(prompts), size=len(chosen), replace=False).tolist())
        drawn[source, receiver] = tuple(prompts[i] for i in places)
    return Selection(graft.candidates, drawn, {d: len(q) for d, q in drawn.items()})


def every_prompt(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """All prompts in all directions, from all sources (HACPO, naive sharing)."""
    moved = {(s, r): tuple(g.prompt.id for g in groups[s]) for s, r in permutations(groups, 2)}
    return Selection(moved, moved, {d: len(q) for d, q in moved.items()}, one_source=False)


def every_prompt_complementary_heard(groups: GroupsByModel, rng: np.random.Generator) -> Selection:
    """As ``every_prompt``, but only what GRAFT selects is heard; the rest moves with advantage 0 (GRAFT's which, HACPO's how)."""
    moved, graft = every_prompt(groups, rng), complementary_balanced(groups, rng)
    silent = {d: frozenset(q) - set(graft.selected[d]) for d, q in moved.selected.items()}
    return Selection(graft.candidates, moved.selected, graft.limits, silent, one_source=False)
