"""Cells of the paper's tables, wherever their numbers come from, and arithmetic on them that knows its noise and rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10, sqrt
from typing import Literal, Protocol

from analysis.significance import t_95

# How a number of the paper can be held against a source's.
#   printed: the source is what the paper printed; a number is recomputed and must round to what the text says.
#   level: the same scale, measured; a number must lie within the interval.
#   direction: another scale; numbers are not compared, only signs and orders.
Comparison = Literal["printed", "level", "direction"]
EPSILON = 1e-9  # float error of sums of two-decimal numbers, far below any printed digit


@dataclass(frozen=True)
class Key:
    """Name of a cell: table (``table1`` .. ``table9``, ``figure1`` .., ``setup``), row and column slugs, receiver ("" for a setting,
    "both" for a pair's), pair. The cell of a model trained alone is the same in every pair of its receiver.
    """

    table: str
    row: str
    column: str
    receiver: str = ""
    pair: str = "1"

    def __str__(self) -> str:
        pair = f"pair {self.pair}" if self.receiver else ""
        return " ".join(x for x in (self.table, self.row, pair, self.receiver, self.column) if x)


@dataclass(frozen=True)
class Value:
    """A number of a source, in the paper's unit (scores in percent).

    ``std`` is the sample std (n - 1) over ``n`` replicates, None if there is one replicate or it is not known; ``noise`` names the
    replicates. ``counted``: a setting, cost or token count of one run, which has no replicates and takes no part in noise.
    ``half_unit``: half of the last printed digit, 0 if not rounded. ``runs``: what stands behind it, run directories or files.
    ``origin``: cells with the same one are one measurement under several names (a GRPO run in two pairs); "" is none but its own.
    """

    mean: float
    std: float | None = None
    n: int = 1
    noise: str = ""
    counted: bool = False
    half_unit: float = 0.0
    runs: tuple[str, ...] = ()
    origin: str = ""

    @property
    def printed(self) -> str:
        """The number with the digits that it was printed with; all of them if it was not rounded."""
        return f"{self.mean:.{round(-log10(2 * self.half_unit))}f}" if self.half_unit else f"{self.mean:g}"


class Source(Protocol):
    """Where cells come from. ``complete``: a cell that it lacks is one that was not printed, not one that is yet to be measured."""

    name: str
    comparison: Comparison
    complete: bool

    def cell(self, key: Key) -> Value | None:
        """The value of a cell; None if the source does not have it whole (a short cell is no cell)."""
        ...


@dataclass(frozen=True)
class Leaf:
    """A cell in an expression."""

    key: Key


@dataclass(frozen=True)
class Constant:
    """A number that the claim itself states."""

    value: float


@dataclass(frozen=True)
class Operation:
    """One of ``OPERATIONS`` on one or more expressions."""

    name: str
    arguments: tuple[Expression, ...]


Expression = Leaf | Constant | Operation


@dataclass(frozen=True)
class Number:
    """Value of an expression with its derivative by every cell in it: what noise and rounding of the cells do to it, to first order."""

    value: float
    slopes: Mapping[Key, float] = field(default_factory=dict)


def _linear(arguments: Sequence[Number], weights: Sequence[float], value: float) -> Number:
    slopes: dict[Key, float] = {}
    for argument, weight in zip(arguments, weights, strict=True):
        for key, slope in argument.slopes.items():
            slopes[key] = slopes.get(key, 0.0) + weight * slope
    return Number(value, slopes)


def _sum(a: Sequence[Number]) -> Number:
    return _linear(a, [1.0] * len(a), sum(x.value for x in a))


def _mean(a: Sequence[Number]) -> Number:
    return _linear(a, [1 / len(a)] * len(a), sum(x.value for x in a) / len(a))


def _difference(a: Sequence[Number]) -> Number:
    x, y = a
    return _linear(a, [1.0, -1.0], x.value - y.value)


def _ratio(a: Sequence[Number]) -> Number:
    x, y = a
    return _linear(a, [1 / y.value, -x.value / y.value**2], x.value / y.value)


def _product(a: Sequence[Number]) -> Number:
    x, y = a
    return _linear(a, [y.value, x.value], x.value * y.value)


def _whole_ratio(a: Sequence[Number]) -> Number:
    x, y = a
    return Number(float(floor(x.value / y.value + EPSILON)))


def _min(a: Sequence[Number]) -> Number:
    return min(a, key=lambda x: x.value)


def _max(a: Sequence[Number]) -> Number:
    return max(a, key=lambda x: x.value)


# name -> (function, number of arguments; None: one or more)
OPERATIONS = {
    "sum": (_sum, None),
    "mean": (_mean, None),
    "min": (_min, None),
    "max": (_max, None),
    "difference": (_difference, 2),
    "ratio": (_ratio, 2),
    "product": (_product, 2),
    "whole_ratio": (_whole_ratio, 2),  # how many whole times the second goes into the first
}


def keys(expression: Expression) -> list[Key]:
    """All cells of an expression, each once, in order."""
    if isinstance(expression, Leaf):
        return [expression.key]
    if isinstance(expression, Constant):
        return []
    return list(dict.fromkeys(key for argument in expression.arguments for key in keys(argument)))


def evaluate(expression: Expression, values: Mapping[Key, Value]) -> Number:
    """The number of an expression; KeyError for a cell that is not in ``values``, ZeroDivisionError for a ratio to 0."""
    if isinstance(expression, Constant):
        return Number(expression.value)
    if isinstance(expression, Leaf):
        return Number(values[expression.key].mean, {expression.key: 1.0})
    function, _ = OPERATIONS[expression.name]
    return function([evaluate(argument, values) for argument in expression.arguments])


def half_width(number: Number, values: Mapping[Key, Value]) -> float | None:
    """Half of the 95 % interval of a number, from the stds of its cells over their replicates; None if one of them is not known.

    Standard error sqrt(sum (slope * std)^2 / n), cells independent, times Student's quantile with the fewest degrees of freedom
    among the cells: Welch's interval on its cautious side. It shows the replicates' noise and no other (``noise_words``).
    """
    used = [(slope, value) for slope, value in _by_origin(number, values) if not value.counted]
    if any(v.std is None or v.n < 2 for _, v in used):
        return None
    variance = sum((slope * v.std) ** 2 / v.n for slope, v in used)
    return t_95(min(v.n for _, v in used) - 1) * sqrt(variance) if used else 0.0


def rounding_slack(number: Number, values: Mapping[Key, Value]) -> float:
    """How far the number can be from that of the unrounded cells, to first order."""
    return sum(abs(slope) * value.half_unit for slope, value in _by_origin(number, values))


def _by_origin(number: Number, values: Mapping[Key, Value]) -> list[tuple[float, Value]]:
    """(slope, value) of every measurement. One that enters twice has the sum of its slopes: its noise is shared, not averaged out."""
    slopes: dict[str | Key, float] = {}
    measured: dict[str | Key, Value] = {}
    for key, slope in number.slopes.items():
        name = values[key].origin or key
        slopes[name] = slopes.get(name, 0.0) + slope
        measured[name] = values[key]
    return [(slope, measured[name]) for name, slope in slopes.items() if slope]


def noise_words(cells: Sequence[Value]) -> tuple[str, ...]:
    """Which replicates the spread of these cells is over, each said once."""
    return tuple(dict.fromkeys(v.noise for v in cells if v.noise and not v.counted))
