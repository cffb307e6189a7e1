"""Generated word problems with verifiable answers: what scale=cpu trains and evaluates on.

A problem applies two operations in order to three numbers; its wording says which two. Twelve wordings (families) cover the nine
ordered pairs of + - *. Every intermediate and final result lies in 0..99. Operand triples with (81a + 9b + c) % 6 == 0 are held
out of all training, the stand-ins' warm start included. Everything is a function of fixed seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from graft.types import Prompt

Triple = tuple[int, int, int]
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y}
OP_PAIRS = tuple((x, y) for x in "+-*" for y in "+-*")
ASIDES = ("It is late. ", "Today is cold. ", "This is easy. ")
UNSEEN_ASIDES = ("Listen well. ", "Here comes one more. ", "Take care. ")
DIGITS = range(1, 10)


@dataclass(frozen=True)
class Family:
    """One wording and the operations that it means."""

    name: str
    ops: tuple[str, str]
    wording: str


FAMILIES = (
    Family("cards", ("+", "-"), "Ben has {a} cards, buys {b} more, then loses {c}. How many?"),
    Family("bus", ("-", "+"), "A bus with {a} riders drops {b} and picks up {c}. How many riders?"),
    Family("pages", ("+", "+"), "Mia reads {a} pages, then {b}, then {c}. How many pages?"),
    Family("pens", ("*", "+"), "Tom packs {a} boxes of {b} pens and finds {c} extra. How many pens?"),
    Family("jars", ("*", "-"), "A shop has {a} shelves of {b} jars and sells {c}. How many jars?"),
    Family("pies", ("+", "*"), "Each day Ann bakes {a} pies and {b} cakes, for {c} days. How many?"),
    Family("eggs", ("-", "*"), "A farm of {a} hens gave away {b}; each left laid {c} eggs. How many eggs?"),
    Family("desks", ("*", "*"), "There are {a} rooms of {b} desks with {c} drawers. How many drawers?"),
    Family("tank", ("-", "-"), "A tank of {a} liters leaks {b} and then {c}. How many liters?"),
    Family("score", ("+", "-"), "Sam scored {a} points, won {b}, and paid {c}. What score?"),
    Family("coins", ("*", "+"), "Zoe saved {a} coins a week for {b} weeks and got {c}. How many coins?"),
    Family("lift", ("-", "+"), "The lift at floor {a} goes down {b} and up {c}. Which floor?"),
)


def held_out(t: Triple) -> bool:
    """Whether a triple is reserved for benchmarks."""
    a, b, c = t
    return (81 * a + 9 * b + c) % 6 == 0


def results(ops: tuple[str, str], t: Triple) -> tuple[int, int] | None:
    """(intermediate, final), or None when one of them leaves 0..99."""
    first = OPERATIONS[ops[0]](t[0], t[1])
    final = OPERATIONS[ops[1]](first, t[2])
    return (first, final) if 0 <= first <= 99 and 0 <= final <= 99 else None


@lru_cache(maxsize=256)
def triples(ops: tuple[str, str], first: range, *, reserved: bool | None) -> tuple[Triple, ...]:
    """All triples in range; ``reserved`` = only held-out ones, only others, or (None) both."""
    every = ((a, b, c) for a in first for b in DIGITS for c in DIGITS)
    return tuple(t for t in every if results(ops, t) and (reserved is None or held_out(t) == reserved))


def solution(ops: tuple[str, str], t: Triple) -> str:
    """The worked answer in the format that the stand-ins learn. ValueError when a result leaves 0..99."""
    both = results(ops, t)
    if both is None:
        raise ValueError(f"{ops} on {t} leaves 0..99")
    first, final = both
    return f" First {t[0]} {ops[0]} {t[1]} = {first}. Then {first} {ops[1]} {t[2]} = {final}. The answer is \\boxed{{{final}}}."


def message(family: Family, t: Triple, aside: str = "") -> str:
    return aside + family.wording.format(a=t[0], b=t[1], c=t[2])


def _prompts(
    name: str,
    per_family: Callable[[int], int],
    families: tuple[Family, ...],
    pool: Callable[[Family], Sequence[Triple]],
    asides: Sequence[str] = ("",),
) -> Iterator[Prompt]:
    for number, family in enumerate(families):
        rng = random.Random(f"{name}/{family.name}")
        for t in rng.sample(pool(family), per_family(number)):
            aside = rng.choice(asides)
            final = results(family.ops, t)[1]  # type: ignore[index]
            yield Prompt(f"{name}/{family.name}/{t[0]}-{t[1]}-{t[2]}", message(family, t, aside), str(final), (family.name,))


def train() -> Iterator[Prompt]:
    """800 prompts: with 32 a step, 25 steps an epoch."""
    return _prompts("arith-train", lambda i: 67 if i < 8 else 66, FAMILIES, lambda f: triples(f.ops, DIGITS, reserved=False))


def validation() -> Iterator[Prompt]:
    """48 prompts of the training distribution that are not in the training set."""
    used = {p.message for p in train()}
    return _prompts(
        "arith-validation",
        lambda i: 4,
        FAMILIES,
        lambda f: [t for t in triples(f.ops, DIGITS, reserved=False) if message(f, t) not in used],
    )


def heldout() -> Iterator[Prompt]:
    """Held-out triples of all families."""
    return _prompts("arith-heldout", lambda i: 4, FAMILIES, lambda f: triples(f.ops, DIGITS, reserved=True))


def multiply() -> Iterator[Prompt]:
    """Held-out triples of the families with a product."""
    families = tuple(f for f in FAMILIES if "*" in f.ops)
    return _prompts("arith-multiply", lambda i: 6, families, lambda f: triples(f.ops, DIGITS, reserved=True))


def teens() -> Iterator[Prompt]:
    """A first operand of 10..19, which no training prompt has."""
    return _prompts("arith-teens", lambda i: 3, FAMILIES, lambda f: triples(f.ops, range(10, 20), reserved=True))


def unseen() -> Iterator[Prompt]:
    """Held-out triples after a sentence that no training text has."""
    return _prompts("arith-unseen", lambda i: 3, FAMILIES, lambda f: triples(f.ops, DIGITS, reserved=True), UNSEEN_ASIDES)


def aside() -> Iterator[Prompt]:
    """Held-out triples after a sentence that has nothing to do with the question."""
    return _prompts("arith-aside", lambda i: 3, FAMILIES, lambda f: triples(f.ops, DIGITS, reserved=True), ASIDES)


SETS: dict[str, Callable[[], Iterator[Prompt]]] = {
    "arith-train": train,
    "arith-validation": validation,
    "arith-heldout": heldout,
    "arith-multiply": multiply,
    "arith-teens": teens,
    "arith-unseen": unseen,
    "arith-aside": aside,
}
