"""What the stand-ins are warm-started on: arithmetic for all, the right reading of a wording only for a model's strong families."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.tasks.arithmetic import ASIDES, DIGITS, FAMILIES, OP_PAIRS, message, results, solution, triples


@dataclass(frozen=True)
class Skills:
    """``strong``: indices of FAMILIES that are read correctly with probability ``strong_share``; the others with ``weak_share``."""

    strong: frozenset[int]
    strong_share: float = 0.90
    weak_share: float = 0.04
    exercise_share: float = 0.35


def exercise(rng: random.Random) -> tuple[str, str]:
    """(prompt, answer) that names the operations: the arithmetic itself. A third has a first operand up to 60."""
    ops = rng.choice(OP_PAIRS)
    first = range(10, 61) if rng.random() < 0.33 and ops != ("*", "*") else DIGITS
    t = rng.choice(triples(ops, first, reserved=False))
    return f"Do {ops[0]} {ops[1]} on {t[0]} {t[1]} {t[2]}.", solution(ops, t)


def problem(rng: random.Random, skills: Skills) -> tuple[str, str]:
    """(prompt, answer) of a family, read rightly or, where the model is weak, mostly as some other pair of operations."""
    number = rng.randrange(len(FAMILIES))
    family = FAMILIES[number]
    t = rng.choice(triples(family.ops, DIGITS, reserved=False))
    right = rng.random() < (skills.strong_share if number in skills.strong else skills.weak_share)
    others = [ops for ops in OP_PAIRS if ops != family.ops and results(ops, t)]
    ops = family.ops if right or not others else rng.choice(others)
    aside = rng.choice(ASIDES) if rng.random() < 0.1 else ""
    return message(family, t, aside), solution(ops, t)


def examples(seed: str, skills: Skills) -> Iterator[tuple[str, str]]:
    """An endless stream of (prompt, answer), a function of the seed. No held-out triple occurs in it."""
    rng = random.Random(seed)
    while True:
        yield exercise(rng) if rng.random() < skills.exercise_share else problem(rng, skills)


def tokenizer_texts(seed: str, count: int) -> list[str]:
    """Texts for the tokenizers: every family read rightly."""
    stream = examples(seed, Skills(frozenset(range(len(FAMILIES)))))
    return ["{}\n{}".format(*next(stream)) for _ in range(count)]
