"""What a check finds in a source: a verdict, the numbers, their interval and what stands behind them.

Verdicts: ``holds``: true of the numbers, and where it is about a sign or an order, by more than the noise. ``holds within noise``: true of
them by less than the noise (or of scores whose noise is not known); a number of the paper that lies in a measured interval; a level that noise
could hide. ``fails``: not true of them. ``not enough data``: a cell is missing; no verdict rests on one. ``not compared``: a number
of the paper at another scale, which takes no part in a claim's verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal

from analysis.audit_check import beside, verdict_of
from analysis.cells import EPSILON, Key, Number, Source, Value, evaluate, half_width, noise_words
from analysis.claim_spec import Check, Claim

Verdict = Literal["holds", "holds within noise", "fails", "not enough data", "not compared"]
HOLDS, WITHIN, FAILS, MISSING, SKIPPED = ("holds", "holds within noise", "fails", "not enough data", "not compared")
# Worst first: a claim is as good as its worst check.
ORDER: tuple[Verdict, ...] = (FAILS, MISSING, WITHIN, HOLDS)
# Scores are in percent points.
Labelled = Sequence[tuple[str, Number]]
Values = Mapping[Key, Value]


@dataclass(frozen=True)
class Finding:
    """Of one check. ``interval``: 95 %, of the number that decides, "" where none is known. ``runs``: what the cells stand on."""

    verdict: Verdict
    numbers: str
    interval: str = ""
    noise: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A claim with what its checks found. The verdict is that of the worst check that could be compared."""

    claim: Claim
    findings: tuple[Finding, ...]
    beside: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        found = [f.verdict for f in self.findings if f.verdict != SKIPPED]
        return next((v for v in ORDER if v in found), MISSING)


def judge_claim(claim: Claim, source: Source) -> Judged:
    """All checks of a claim on one source."""
    return Judged(claim, tuple(judge(c, source) for c in claim.checks), tuple(judge(c, source) for c in claim.beside))


def judge(check: Check, source: Source) -> Finding:
    """One check on one source."""
    if check.kind == "unchecked":
        return Finding(MISSING, _say(check, check.reason))
    if check.kind in NUMBERS and source.comparison == "direction":
        return Finding(SKIPPED, _say(check, "a number of the paper's scale"))
    found = {key: source.cell(key) for key in check.keys}
    values = {key: value for key, value in found.items() if value is not None}
    absent = [key for key in found if key not in values]
    if absent:
        unprinted = check.kind == "given" and source.complete
        verb = "not printed" if unprinted else "no cell"
        text = f"{verb}: {absent[0]}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
        return Finding(FAILS if unprinted else MISSING, _say(check, text))
    try:
        numbers = [(label, evaluate(expression, values)) for label, expression in check.items]
    except ZeroDivisionError:
        return Finding(MISSING, _say(check, "a ratio to 0"))
    verdict, text, interval = RULES[check.kind](check, numbers, values, source)
    runs = tuple(dict.fromkeys(run for value in values.values() for run in value.runs))
    return Finding(verdict, _say(check, text), interval, noise_words(list(values.values())), runs)


def _say(check: Check, text: str) -> str:
    return f"{check.what}: {text}" if check.what else text


def _interval(number: Number, values: Values) -> str:
    half = half_width(number, values)
    return f"[{number.value - half:.2f}, {number.value + half:.2f}]" if half else ""


def _of(label: str) -> str:
    return f"{label} " if label else ""


Ruled = tuple[Verdict, str, str]


def _equals(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    """The number rounds to the printed one; if measured, its interval may hold it instead."""
    ((_, number),) = numbers
    rounded = verdict_of(number.value, check.printed)
    text = f"{beside(number.value, check.printed)}" + (f" ({rounded})" if rounded == "after rounding" else "")
    if rounded != "does not hold":
        return HOLDS, text, _interval(number, values)
    half = half_width(number, values)
    # What is recomputed from printed numbers has no noise to hide behind.
    hidden = source.comparison == "level" and half is not None and abs(number.value - float(check.printed)) <= half
    return WITHIN if hidden else FAILS, text, _interval(number, values)


def _margins(margins: Labelled, values: Values) -> Ruled:
    """Every margin is above 0, and above its noise."""
    label, smallest = min(margins, key=lambda m: m[1].value)
    place = f" ({label})" if label else ""
    text = f"{'smallest ' if len(margins) > 1 else ''}margin {smallest.value:+.3g}{place}"
    failed = sum(m.value <= EPSILON for _, m in margins)
    if failed:
        half = half_width(smallest, values)
        near = ", within noise" if half is not None and abs(smallest.value) <= half else ""
        return FAILS, f"{text}; {failed} of {len(margins)} not above 0{near}", _interval(smallest, values)
    unclear = _unclear(margins, values)
    if unclear and len(margins) > 1:
        text += f"; {unclear} of {len(margins)} within noise"
    return WITHIN if unclear else HOLDS, text, _interval(smallest, values)


def _unclear(margins: Labelled, values: Values) -> int:
    """How many are no larger than their noise, or have noise that is not known."""
    halves = [half_width(m, values) for _, m in margins]
    return sum(half is None or abs(m.value) <= half for (_, m), half in zip(margins, halves, strict=True))


def _minus(number: Number) -> Number:
    return Number(-number.value, {key: -slope for key, slope in number.slopes.items()})


def _less(a: Number, b: Number) -> Number:
    """a - b."""
    slopes = {key: a.slopes.get(key, 0.0) - b.slopes.get(key, 0.0) for key in a.slopes.keys() | b.slopes.keys()}
    return Number(a.value - b.value, slopes)


def _positive(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    return _margins(numbers, values)


def _negative(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    verdict, text, interval = _margins([(label, _minus(n)) for label, n in numbers], values)
    return verdict, text.replace("margin", "loss"), interval


def _descending(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    steps = [("", _less(a, b)) for (_, a), (_, b) in pairwise(numbers)]
    verdict, text, interval = _margins(steps, values)
    return verdict, f"{', '.join(f'{n.value:.4g}' for _, n in numbers)}; {text}", interval


def _count(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    sign = 1 if check.kind == "count_positive" else -1
    count = sum(sign * n.value > EPSILON for _, n in numbers)
    text = f"{count} of {len(numbers)} against {check.printed}"
    if count != float(check.printed):
        return FAILS, text, ""
    unclear = _unclear(numbers, values)
    label, nearest = min(numbers, key=lambda n: abs(n[1].value))
    text += (
        f"; nearest to 0 {nearest.value:+.3g}"
        + (f" ({label})" if label else "")
        + (f"; {unclear} within noise" if unclear else "")
    )
    return WITHIN if unclear else HOLDS, text, _interval(nearest, values)


def _extreme(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    sign = 1 if check.kind == "highest" else -1
    mine = next(n for label, n in numbers if label == check.winner)
    others = [(label, n) for label, n in numbers if label != check.winner]
    margins = [(label, _less(mine, n) if sign > 0 else _less(n, mine)) for label, n in others]
    verdict, text, interval = _margins(margins, values)
    return verdict, f"{check.winner} {mine.value:.4g}; {text}", interval


def _level(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    """No difference is clear of its noise. That shows no equality, so it never holds outright."""
    halves = [half_width(n, values) for _, n in numbers]
    text = ", ".join(f"{n.value:+.3g}" for _, n in numbers)
    if any(half is None for half in halves):
        return MISSING, f"{text}; the noise is not known", ""
    widest = max(numbers, key=lambda n: abs(n[1].value))[1]
    apart = any(abs(n.value) > half for (_, n), half in zip(numbers, halves, strict=True))
    return FAILS if apart else WITHIN, text, _interval(widest, values)


def _near(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    ((_, number),) = numbers
    near = abs(number.value - check.to) <= check.within + EPSILON
    return HOLDS if near else FAILS, f"{number.value:.3f}, within {check.within:g} of {check.to:g}", ""


def _zero(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    odd = [(label, n) for label, n in numbers if abs(n.value) > EPSILON]
    text = f"{len(numbers) - len(odd)} of {len(numbers)} equal"
    if odd:
        label, number = odd[0]
        text += f"; {_of(label)}off by {number.value:.3g}"
    return FAILS if odd else HOLDS, text, ""


def _given(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    return HOLDS, f"all {len(numbers)} cells are there", ""


def _reachable(check: Check, numbers: Labelled, values: Values, source: Source) -> Ruled:
    """A run lies no further from the mean of n than (n - 1) / sqrt(n) sample stds: no single one of n values can."""
    worst = []
    for (label, number), (_, expression) in zip(numbers, check.items, strict=True):
        one, many = (values[leaf.key] for leaf in expression.arguments)
        if many.std is None:
            return MISSING, f"{_of(label)}one run has no spread", ""
        factor = (many.n - 1) / sqrt(many.n)
        rounding = one.half_unit + many.half_unit + factor * many.half_unit
        worst.append((abs(number.value) - factor * many.std - rounding, label))
    over, label = max(worst)
    failed = sum(w > EPSILON for w, _ in worst)
    text = f"{len(worst) - failed} of {len(worst)} possible" + (f"; {_of(label)}too far by {over:.3g}" if failed else "")
    return FAILS if failed else HOLDS, text, ""


RULES: dict[str, Callable[[Check, Labelled, Values, Source], Ruled]] = {
    "equals": _equals,
    "positive": _positive,
    "negative": _negative,
    "descending": _descending,
    "count_positive": _count,
    "count_negative": _count,
    "lowest": _extreme,
    "highest": _extreme,
    "level": _level,
    "near": _near,
    "zero": _zero,
    "given": _given,
    "reachable": _reachable,
}
NUMBERS = ("equals", "near")  # about a number of the paper, which only its own scale can have
