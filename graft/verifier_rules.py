"""Rules around math-verify 0.9.0: what it reads wrongly is rewritten or decided here, each fault by one named rule in ``RULES``.

Order of a judgement: the ``rewrite`` rules change gold and answer, the ``decide`` rules may say the verdict, both in the order of
the table; what no rule decides goes to math-verify, where the ``compare`` rules guard the comparison (they live in
``verifier_worker.py``: they need its parsed expressions). Every rule is a pure function, and ``RULES`` is data: its examples are
tests, and docs/verifier.md shows it. A rule may reject what is equal in another notation, but must never accept what is wrong.

Nothing in here knows a data set or a run: the same table serves training, validation and evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from graft import verifier_rewrites as rewrites
from graft.verifier_numbers import Exact, TooLarge, Value, differ, exact_value, value
from graft.verifier_rewrites import PERCENT, Pair, tidy, unit_of
from graft.verifier_worker import close, reads_whole

MAX_CHARACTERS = 4000  # of a side; the longest gold of the six data sets has 316

BASED = re.compile(r"-?0*([0-9A-Z]+)_\{?(?:\\(?:text|mathrm)\{)?([0-9]{1,2}|[a-z]+)\}*")
COLON = re.compile(r"[0-9]{1,15}(?::[0-9]{1,15})+")
CLOCK = re.compile(r"[0-9]{1,2}:[0-5][0-9]")
CLOCK_TAIL = re.compile(r"\s*(?:\\(?:text|mbox|mathrm)\s*\{\s*)?([ap])\.?\s*m\.?\s*\}?$", re.IGNORECASE)
DOTS = re.compile(r"\\[lcd]?dots[cbmo]?(?![A-Za-z])|\.\.\.|…")
GROUP = re.compile(r"(?<!\\)\{[^{}]*\}|\([^()]*\)|\\?\|[^|]*\|")
UNIT_LETTER = re.compile(r"[0-9}\s)][a-z]+$")
BRACKETED = re.compile(r"\s*(?:\\left)?\s*([(\[])([^()\[\]]*,[^()\[\]]*?)(?:\\right)?\s*([)\]])\s*")
TERMS = re.compile(r"[^\s=(,][^=]*?[+-]")
BASE_WORDS = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13)), sixteen=16)


def same_text(gold: str, answer: str) -> str | None:
    """The same text up to spacing; it must say something besides commands."""
    if tidy(gold) == tidy(answer) and re.search(r"[A-Za-z0-9]", re.sub(r"\\[A-Za-z]+", "", gold)):
        return "equal"
    return None


def too_long(gold: str, answer: str) -> str | None:
    """Nobody's answer has thousands of characters, and no rule should have to read it."""
    return "parse error" if max(len(gold), len(answer)) > MAX_CHARACTERS and tidy(gold) != tidy(answer) else None


def percent_of_one(gold: str, answer: str) -> str | None:
    """28\\% = 0.28, exactly."""
    g, a = PERCENT.match(gold), PERCENT.match(answer)
    if bool(g) == bool(a):
        return None
    share, other = (g.group(1), answer) if g else (a.group(1) if a else "", gold)
    hundredths, whole = exact_value(share), exact_value(other)
    if hundredths is None or whole is None:
        return None
    return "equal" if Exact(hundredths.numerator, hundredths.denominator * 100) == whole else None


def numbers_in_bases(gold: str, answer: str) -> str | None:
    """43_5: the digits and the base must agree. Digits alone are accepted where one side leaves the base to the question."""
    g, a = BASED.fullmatch(tidy(gold)), BASED.fullmatch(tidy(answer))
    read = [(m.group(1), BASE_WORDS.get(m.group(2), int(m.group(2)) if m.group(2).isdigit() else 0)) for m in (g, a) if m]
    if len(read) < 2 or not all(any(c.isdigit() for c in digits) and _fits(digits, base) for digits, base in read):
        return None
    return "equal" if read[0] == read[1] and gold.startswith("-") == answer.startswith("-") else "different"


def _fits(digits: str, base: int) -> bool:
    return 2 <= base <= 36 and all(int(c, 36) < base for c in digits)


def clocks_and_ratios(gold: str, answer: str) -> str | None:
    """8:34 is no division. Times agree to the minute (a.m. and p.m. must not contradict), ratios in proportion."""
    sides = [tidy(text) for text in (gold, answer)]
    tails = [CLOCK_TAIL.search(side) for side in sides]
    g, a = (side[: tail.start()] if tail else side for side, tail in zip(sides, tails))
    if not (COLON.fullmatch(g) and COLON.fullmatch(a)):
        return None
    if tails[0] and tails[1] and tails[0].group(1).lower() != tails[1].group(1).lower():
        return "different"
    parts, given = ([int(part) for part in side.split(":")] for side in (g, a))
    if CLOCK.fullmatch(g) or len(parts) != len(given) or 0 in parts + given:
        return "equal" if parts == given else "different"
    return "equal" if all(p * given[0] == q * parts[0] for p, q in zip(parts, given)) else "different"


def dots(gold: str, answer: str) -> str | None:
    """1, 2, \\ldots, n: math-verify drops the dots. Only the same text will do, except for the digits of one number (0.333...)."""
    sides = [tidy(text) for text in (gold, answer)]
    if not any(DOTS.search(side) for side in sides):
        return None
    if any(re.fullmatch(rf"-?[0-9]*\.[0-9]+(?:{DOTS.pattern})", side) for side in sides):
        return None
    g, a = (re.sub(r"\s", "", DOTS.sub("…", side)) for side in sides)
    return "equal" if g == a else "different"


def units(gold: str, answer: str) -> str | None:
    """5 cm is not 5 km. A side without a unit leaves it to the question."""
    g, a = unit_of(gold), unit_of(answer)
    return "different" if g and a and g != a else None


def equation_for_zero(gold: str, answer: str) -> str | None:
    """2x - y + 3 = 0 is an equation of a plane, not the number 0; x = 0, f(2) = 0 and 3 - 3 = 0 do say 0."""
    left, equals, _ = answer.partition("=")
    if not equals or tidy(gold) not in ("0", "-0", "0.0"):
        return None
    for _ in range(20):
        left, replaced = GROUP.subn("", left)
        if not replaced:
            break
    has_variable = re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", left))
    return "different" if has_variable and TERMS.search(left.strip()) else None


def exact_numbers(gold: str, answer: str) -> str | None:
    """Exact arithmetic on both sides is compared as such. Decimals that disagree by more than a thousandth differ, however small."""
    try:
        g, a = exact_value(gold), exact_value(answer)
    except TooLarge:
        return "too large"
    if g is None or a is None:
        return None
    return "equal" if g == a else "different" if differ(g, a) else None


def values_differ(gold: str, answer: str) -> str | None:
    """Expressions, or lists in the same brackets, that differ at one point of their letters; a list is no single value."""
    if any(UNIT_LETTER.search(side) for side in (gold, answer)):
        return None  # the last letter may be a unit
    (g_open, g), (a_open, a) = _elements(gold), _elements(answer)
    if not g or not a or None in g or None in a:
        return None
    if (len(g) == 1) != (len(a) == 1):
        return "different"
    if len(g) == 1:
        return "different" if differ(g[0], a[0]) else None
    if g_open != a_open or not g_open:
        return None
    return "different" if len(g) != len(a) or any(differ(x, y) for x, y in zip(g, a)) else None


def _elements(text: str) -> tuple[str, list[Value]]:
    """(brackets, values) of a list like (a, b) or a, b; one value without a list."""
    if found := BRACKETED.fullmatch(text):
        return found.group(1) + found.group(3), [value(part) for part in found.group(2).split(",")]
    return "", [value(part) for part in text.split(",")]


MV = "Math-Verify issue "


@dataclass(frozen=True)
class Rule:
    """One fault and its remedy. ``accepts`` and ``rejects`` are (gold, answer) pairs as the verifier judges them with all rules."""

    name: str
    kind: (
        str  # rewrite: text -> text; rewrite both: (gold, answer) -> pair; decide: (gold, answer) -> how; compare: in the worker
    )
    apply: Callable[..., Any]
    accepts: Pair
    rejects: Pair
    source: str


REWRITE, BOTH, DECIDE, COMPARE = "rewrite", "rewrite both", "decide", "compare"
LOST = r"\hbar \omega(v+1 / 2)-\frac{E_{0}^{2} e^{2}}{2 m \omega^{2}}"
R = Rule
# Sources: caseNNN is the case's number in the collection of answer cases (docs/verifier.md); MV an issue of huggingface/Math-Verify.
# fmt: off
RULES = (
    R("too long", DECIDE, too_long, ("1", " " * 5000 + "1"), ("1", "1" + "+0" * 2500), MV + "55"),
    R("wrapped number", REWRITE, rewrites.unwrap_number, ("73", r"\textbf{(073)}"), ("73", r"\textbf{(074)}"), MV + "76; AIME24 solutions"),
    R("trailing point", REWRITE, rewrites.drop_trailing_point, ("12", "12."), ("12", "13."), "case096, case084; 6 golds of MATH train"),
    R("bare decimal point", REWRITE, rewrites.drop_bare_point, ("-1./3", r"-\frac{1}{3}"), ("-1./3", "-1/2"), "minerva/038, minerva/049"),
    R("thousands separators", REWRITE, rewrites.join_thousands,
      (r"\dfrac{1}{29,\!322,\!216}", r"\frac{1}{29322216}"), ("1{,}234", "1, 234"), "case086"),
    R("e-notation", REWRITE, rewrites.spell_e_notation, ("3.83e35", r"3.83 \times 10^{35}"), ("1e-8", "2e-8"), "case072, case073"),
    R("plain names", REWRITE, rewrites.spell_plain_names,
      ("np.arcsin(10/13)", r"\arcsin(10/13)"), (r"2\pi", "2*pi/3"), "case075; " + MV + "69"),
    R("dots", DECIDE, dots, (r"1, 2, \ldots, n", "1,2,...,n"), (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"), "case013; " + MV + "14"),
    R("units", DECIDE, units, (r"5\text{ cm}", "5 centimeters"), (r"5\text{ cm}", r"5\text{ km}"), "found here"),
    R("unit words", BOTH, rewrites.drop_units, ("5", "5 dollars"), ("5", "6 dollars"), "found here"),
    R("last letters", REWRITE, rewrites.keep_last_letters,
      ("a + b + c", "c+b+a"), (r"\frac{37}{4} m", r"\frac{37}{4}"), "case076, case087, case088"),
    R("symbols", REWRITE, rewrites.rename_symbols, ("E_{1}+E_{2}", "E_2 + E_1"), (r"\gamma^2-1", r"1-\gamma^2"), "minerva/138, 261, 268, 269"),
    R("two cases of a letter", BOTH, rewrites.tell_cases_apart, ("R-r", "-r+R"), (r"\frac{R}{r}", "1"), "found here"),
    R("same text", DECIDE, same_text, (r"\begin{cases}", r" \begin{cases} "), ("12", "1 2"), "cheap path"),
    R("percent of one", DECIDE, percent_of_one, (r"28\%", "0.28"), (r"28\%", "0.29"), "case046; 32 golds of MATH train"),
    R("percent", BOTH, rewrites.drop_percent, (r"237.5\%", "237.5"), ("0.5", r"0.5\%"), "case046; " + MV + "67"),
    R("bases", DECIDE, numbers_in_bases, ("43_5", "43_{5}"), ("43_5", "43_7"), "math/train/number_theory/852"),
    R("clocks and ratios", DECIDE, clocks_and_ratios, ("3:5", "6 : 10"), ("8:34", "4:17"), "math/train/number_theory/837"),
    R("equation for zero", DECIDE, equation_for_zero, ("0", "x = 0"), ("0", "2x - y + 3z + 8 = 0"), "case081"),
    R("one name", BOTH, rewrites.drop_name, ("5", "x = 5"), ("x = 5", "y = 6"), "cheap path"),
    R("exact numbers", DECIDE, exact_numbers, (r"\frac{1}{2^{99}}", r"\frac{1}{2 \cdot 2^{98}}"), (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
      "case019-021, case056-065, case071; " + MV + "14, 59, 63, 65"),
    R("values differ", DECIDE, values_differ, (r"4\sqrt{6}", r"\sqrt{96}"), (r"4\sqrt{6}", r"-4\sqrt{6}"), "cheap path"),
    R("close numbers", COMPARE, close, (r"\sqrt{2}/2^{99}", "2^{-98.5}"), (r"\frac{\sqrt{2}}{2^{99}}", r"\frac{\sqrt{3}}{2^{99}}"), MV + "14"),
    R("whole reading", COMPARE, reads_whole, ("x", "(x)"), (LOST, "2"), "case078"),
)
# fmt: on


def prepare(gold: str, answer: str) -> tuple[str | None, Pair]:
    """(how, or None if math-verify must say; the two texts for math-verify)."""
    return _explained(gold, answer)[:2] if max(len(gold), len(answer)) <= MAX_CHARACTERS else explain(gold, answer)[:2]


def explain(gold: str, answer: str) -> tuple[str | None, Pair, tuple[str, ...]]:
    """``prepare`` with the names of the rules that changed or decided something."""
    pair = gold, answer
    used: list[str] = []
    for rule in RULES:
        before = pair
        try:
            if rule.kind == REWRITE:
                pair = rule.apply(pair[0]), rule.apply(pair[1])
            elif rule.kind == BOTH:
                pair = rule.apply(*pair)
            elif rule.kind == DECIDE and (how := rule.apply(*pair)):
                return how, pair, (*used, rule.name)
        except TooLarge:
            return "too large", pair, (*used, rule.name)
        if pair != before:
            used.append(rule.name)
    return None, pair, tuple(used)


_explained = lru_cache(maxsize=20_000)(explain)  # rollouts repeat their answers
