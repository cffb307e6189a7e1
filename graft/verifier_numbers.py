"""Values of arithmetic written in LaTeX, by a small recursive reader without sympy: exact where the text is exact arithmetic.

``value`` knows + - * / powers, fractions, factorials, binomials and decimals, all exact with integers of any length; and roots, pi
and single letters as floats with an error bound, each letter standing for a fixed odd number. So two texts can be told apart
cheaply: expressions that differ at one point differ. Floats never show equality. Whatever else stands in a text (functions, e, i, a
number beside a fraction) is a part without a known value, and so is all that contains it.

The reading goes on behind such a part, because it also looks for numbers too large for anybody to evaluate: ``TooLarge`` says that
some part of the text has more than ``MAX_BITS`` binary digits (a power tower, the factorial of a factorial) or such an exponent.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_BITS = 2**20  # about 315,000 decimal digits; the largest gold of the six data sets has 4,951 bits
WORK_BITS = 3 * MAX_BITS  # all intermediate results of one text together: what a text may cost
MAX_CHARACTERS = 1000
MAX_DEPTH = 40
EPSILON = 2.0**-50

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+|\S", re.DOTALL)
SKIPPED = {"\\left", "\\right", "\\displaystyle", "\\,", "\\!", "\\;", "\\:", "\\ "}
CLOSING = {"{": "}", "(": ")"}
TIMES = {"*", "\\cdot", "\\times"}
OVER = {"/", "\\div"}
FRACTIONS = {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"}
BINOMIALS = {"\\binom", "\\dbinom", "\\tbinom"}
LIMITS = {"\\sum", "\\prod", "\\int", "\\lim", "\\bigcup", "\\bigcap"}  # what stands above them is no exponent
NO_VARIABLES = "deiDEI"  # Euler's number, the imaginary unit, differentials


class TooLarge(Exception):
    """Some part of the text is a number with more than MAX_BITS binary digits, or a power with an exponent beyond MAX_BITS."""


@dataclass(frozen=True, slots=True)
class Exact:
    """numerator / denominator, not reduced, denominator > 0; ``decimal``: a decimal point was involved."""

    numerator: int
    denominator: int = 1
    decimal: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and self.numerator * other.denominator == other.numerator * self.denominator

    def __hash__(self) -> int:
        divisor = math.gcd(self.numerator, self.denominator)
        return hash((self.numerator // divisor, self.denominator // divisor))

    def whole(self) -> int | None:
        return None if self.numerator % self.denominator else self.numerator // self.denominator


@dataclass(frozen=True, slots=True)
class Near:
    """A float and a bound of its error."""

    value: float
    error: float
    decimal: bool = False


Value = Exact | Near | None


def value(text: str) -> Value:
    """The value of ``text``, None when some part of it is not known here; TooLarge when a part is absurdly large."""
    if len(text) > MAX_CHARACTERS:
        return None
    reader = _Reader([token for token in TOKEN.findall(text) if token not in SKIPPED])
    try:
        found = reader.sum(0)
    except RecursionError:
        return None
    return found if reader.at_end() else None


def exact_value(text: str) -> Exact | None:
    """``value`` where it is exact."""
    found = value(text)
    return found if isinstance(found, Exact) else None


def differ(a: Value, b: Value) -> bool:
    """Whether two values are surely not the same: beyond their errors, and with decimals beyond a thousandth in proportion (and
    beyond six decimals), since decimals may be rounded."""
    if isinstance(a, Exact) and isinstance(b, Exact) and not (a.decimal or b.decimal):
        return a != b
    if isinstance(a, Exact) and isinstance(b, Exact):
        x, y = a.numerator * b.denominator, b.numerator * a.denominator
        return abs(x - y) * 1000 > max(abs(x), abs(y))
    p, q = _near(a), _near(b)
    if p is None or q is None:
        return False
    distance, size = abs(p.value - q.value), max(abs(p.value), abs(q.value))
    if p.decimal or q.decimal:
        return distance > max(1e-3 * size, 1e-5, 8 * (p.error + q.error))
    return distance > max(1e-9 * size, 8 * (p.error + q.error))


def _near(v: Value) -> Near | None:
    if not isinstance(v, Exact):
        return v
    try:
        x = v.numerator / v.denominator
    except OverflowError:
        return None
    return Near(x, abs(x) * EPSILON, v.decimal) if x or not v.numerator else None


def _finite(x: float, error: float, *parts: Near) -> Near | None:
    error += abs(x) * EPSILON
    known = math.isfinite(x) and math.isfinite(error)
    return Near(x, error, any(part.decimal for part in parts)) if known else None


def _added(a: Near, b: Near, sign: int) -> Near | None:
    return _finite(a.value + sign * b.value, a.error + b.error, a, b)


def _multiplied(a: Near, b: Near) -> Near | None:
    return _finite(a.value * b.value, abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error, a, b)


def _inverted(a: Near) -> Near | None:
    if abs(a.value) <= 2 * a.error or a.value == 0:
        return None
    return _finite(1 / a.value, 2 * a.error / (a.value * a.value), a)


def _powered(a: Near, n: Near) -> Near | None:
    """a ** n for positive a, or for whole exact n."""
    if a.value <= 2 * a.error and not (
        n.value == round(n.value) and n.error <= abs(n.value) * EPSILON and abs(a.value) > 2 * a.error
    ):
        return None
    try:
        x = a.value**n.value
    except (OverflowError, ZeroDivisionError):
        return None
    if isinstance(x, complex) or not math.isfinite(x):
        return None
    relative = 2 * (abs(n.value) * a.error / abs(a.value) + abs(math.log(abs(a.value))) * n.error)
    return _finite(x, abs(x) * (relative + 4 * EPSILON), a, n) if relative < 0.1 else None


def _letter(letter: str) -> Near | None:
    """Each letter has its number; upper and lower case the same, as math-verify has it."""
    if not letter.isascii() or letter in NO_VARIABLES:
        return None
    x = 1.0 + ((ord(letter.lower()) * 7919) % 1009) / 1361
    return Near(x, 0.0)


class _Reader:
    """Recursive descent over tokens; every method returns the value of what it has read."""

    def __init__(self, tokens: list[str]):
        self._tokens = tokens
        self._at = 0
        self._work = 0

    def at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def _made(self, numerator: int, denominator: int, *parts: Exact) -> Exact | None:
        if denominator == 0:
            return None
        bits = numerator.bit_length() + denominator.bit_length()
        self._work += bits
        if bits > MAX_BITS or self._work > WORK_BITS:
            raise TooLarge
        sign = 1 if denominator > 0 else -1
        return Exact(sign * numerator, sign * denominator, any(part.decimal for part in parts))

    def sum(self, depth: int) -> Value:
        """Terms joined by + and -, up to a closing bracket or the end."""
        if depth > MAX_DEPTH:
            raise RecursionError
        total = self._product(depth)
        while self._next() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            term = self._product(depth)
            if isinstance(total, Exact) and isinstance(term, Exact):
                top = total.numerator * term.denominator + sign * term.numerator * total.denominator
                total = self._made(top, total.denominator * term.denominator, total, term)
            else:
                a, b = _near(total), _near(term)
                total = _added(a, b, sign) if a and b else None
        return total

    def _product(self, depth: int) -> Value:
        product = self._signed(depth)
        while not self.at_end() and self._next() not in ("+", "-", "}", ")"):
            operator = self._take() if self._next() in TIMES | OVER else ""
            # A number or fraction behind another factor: 2 1/2 is a mixed number to some and a product to others.
            unclear = not operator and (self._next()[0].isdigit() or self._next() in FRACTIONS or self._next()[0] in ".|[]")
            factor = self._signed(depth)
            product = None if unclear else self._times(product, self._inverse(factor) if operator in OVER else factor)
        return product

    def _times(self, a: Value, b: Value) -> Value:
        if isinstance(a, Exact) and isinstance(b, Exact):
            return self._made(a.numerator * b.numerator, a.denominator * b.denominator, a, b)
        x, y = _near(a), _near(b)
        return _multiplied(x, y) if x and y else None

    def _inverse(self, a: Value) -> Value:
        if isinstance(a, Exact):
            return self._made(a.denominator, a.numerator, a)
        return _inverted(a) if a else None

    def _signed(self, depth: int) -> Value:
        sign = 1
        while self._next() in ("+", "-"):
            sign *= -1 if self._take() == "-" else 1
        found = self._power(depth)
        if sign == 1 or found is None:
            return found
        return (
            Exact(-found.numerator, found.denominator, found.decimal)
            if isinstance(found, Exact)
            else Near(-found.value, found.error, found.decimal)
        )

    def _power(self, depth: int) -> Value:
        limits = self._next() in LIMITS
        base = self._factorials(self._atom(depth))
        while self._next() == "_":
            self._take()
            self._atom(depth)
            base = None
        if self._next() != "^":
            return base
        self._take()
        bare = len(self._next()) > 1 and self._next()[0].isdigit()  # TeX reads 2^10 as 2^1 0, people as 2^{10}
        exponent = self._atom(depth)
        if self._next() in ("!", "^") or bare:
            return None
        n = exponent.whole() if isinstance(exponent, Exact) else None
        if isinstance(base, Exact) and n is not None:
            return self._raised(base, n)
        if n is not None and abs(n) > MAX_BITS and not limits:
            raise TooLarge  # of whatever the base is: nobody can expand or evaluate this power
        x, y = _near(base), _near(exponent)
        return _powered(x, y) if x and y else None

    def _raised(self, base: Exact, n: int) -> Value:
        top, bottom = (base.numerator, base.denominator) if n >= 0 else (base.denominator, base.numerator)
        if bottom == 0 or (n == 0 and top == 0):
            return None
        size = max(abs(top), abs(bottom))
        if size > 1 and abs(n) * (size.bit_length() - 1) > MAX_BITS:
            raise TooLarge
        if size == 1:
            n = abs(n) % 2 + 2  # 1, 0 and -1: the exponent may be as large as it likes
        return self._made(top ** abs(n), bottom ** abs(n), base)

    def _factorials(self, found: Value) -> Value:
        count = 0
        while self._next() == "!":
            self._take()
            count += 1
        if count == 0:
            return found
        n = found.whole() if isinstance(found, Exact) else None
        if count > 1 or n is None or n < 0:
            return None  # n!! is another function
        if n > MAX_BITS or math.lgamma(n + 1) / math.log(2) > MAX_BITS:
            raise TooLarge
        return self._made(math.factorial(n), 1)

    def _atom(self, depth: int) -> Value:
        token = self._take()
        if token in CLOSING:
            found = self.sum(depth + 1)
            return found if self._take() == CLOSING[token] else None
        if token in FRACTIONS:
            top, bottom = self._argument(depth), self._argument(depth)
            return self._times(top, self._inverse(bottom))
        if token in BINOMIALS:
            return self._binomial(self._argument(depth), self._argument(depth))
        if token == "\\sqrt":
            return self._root(depth)
        if token == "\\pi":
            return Near(math.pi, math.pi * EPSILON)
        if len(token) == 1 and token.isalpha():
            return _letter(token)
        if token and token.isascii() and (token[0].isdigit() or (token[0] == "." and len(token) > 1)):
            whole, _, digits = token.partition(".")
            return self._made(int(whole + digits or "0"), 10 ** len(digits), Exact(0, 1, bool(digits)))
        return None

    def _argument(self, depth: int) -> Value:
        """An argument of a command: a group, or one digit (TeX reads \\frac12 as 1/2)."""
        token = self._next()
        if token.isdigit() and len(token) > 1:
            self._tokens[self._at] = token[1:]
            return Exact(int(token[0])) if token.isascii() else None
        return self._atom(depth + 1)

    def _root(self, depth: int) -> Value:
        degree = Near(2.0, 0.0)
        known = True
        if self._next() == "[":
            self._take()
            known = self._next().isdigit() and self._next().isascii() and 0 < int(self._next()[:3]) < 100
            degree = Near(float(self._next()[:3]), 0.0) if known else degree
            self._take()
            known = self._take() == "]" and known
        bare = self._next().isdigit() and len(self._next()) > 1
        x = _near(self._argument(depth))
        return _powered(x, Near(1 / degree.value, EPSILON)) if x and x.value > 0 and known and not bare else None

    def _binomial(self, top: Value, bottom: Value) -> Value:
        n, k = (x.whole() if isinstance(x, Exact) else None for x in (top, bottom))
        if n is None or k is None or not 0 <= k <= n:
            return None
        k = min(k, n - k)
        if k > MAX_BITS or (k > 0 and k * (math.log2(n) - math.log2(k)) > MAX_BITS):  # C(n,k) >= (n/k)^k
            raise TooLarge
        return self._made(math.comb(n, k), 1)
