"""Arithmetic on cells: values and derivatives, noise and rounding by hand, measurements that several cells share."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given, settings, strategies as st

from analysis.cells import (
    OPERATIONS,
    Constant,
    Expression,
    Key,
    Leaf,
    Operation,
    Value,
    evaluate,
    half_width,
    keys,
    rounding_slack,
)

A, B, C = (Key("t", "r", column) for column in "abc")


def op(name: str, *arguments: Expression) -> Operation:
    return Operation(name, arguments)


a, b, c = Leaf(A), Leaf(B), Leaf(C)
VALUES = {A: Value(6.0, 0.4, 4, half_unit=0.005), B: Value(2.0, 0.3, 9, half_unit=0.05), C: Value(5.0, counted=True)}


@pytest.mark.parametrize(
    ("expression", "value", "slopes"),
    [
        (op("sum", a, b, a), 14.0, {A: 2, B: 1}),
        (op("mean", a, b, c), 13 / 3, {A: 1 / 3, B: 1 / 3, C: 1 / 3}),
        (op("difference", a, b), 4.0, {A: 1, B: -1}),
        (op("ratio", a, b), 3.0, {A: 0.5, B: -1.5}),  # 1/b; -a/b^2 = -6/4
        (op("product", a, b), 12.0, {A: 2, B: 6}),
        (op("min", a, b, c), 2.0, {B: 1}),
        (op("max", a, b, c), 6.0, {A: 1}),
        (op("whole_ratio", a, Constant(4)), 1.0, {}),
        (op("product", Constant(100), op("ratio", op("difference", a, b), b)), 200.0, {A: 50, B: -150}),
    ],
)
def test_values_and_slopes_by_hand(expression: Expression, value: float, slopes: dict):
    number = evaluate(expression, VALUES)
    assert number.value == pytest.approx(value)
    assert number.slopes == pytest.approx(slopes)


LEAVES = st.one_of(st.sampled_from([a, b, c]), st.floats(1, 9).map(Constant))
NAMES = [name for name in OPERATIONS if name != "whole_ratio"]


def _operation(children: st.SearchStrategy) -> st.SearchStrategy:
    def build(name: str, first: Expression, second: Expression) -> Operation:
        return Operation(name, (first, second))

    return st.builds(build, st.sampled_from(NAMES), children, children)


@settings(max_examples=150, deadline=None)
@given(st.recursive(LEAVES, _operation, max_leaves=5), st.sampled_from([A, B, C]))
def test_slopes_are_the_derivatives(expression: Expression, key: Key):
    def at(shift: float) -> float:
        return evaluate(expression, VALUES | {key: Value(VALUES[key].mean + shift)}).value

    try:
        number = evaluate(expression, VALUES)
        numeric = (at(1e-6) - at(-1e-6)) / 2e-6
        bend = abs(at(1e-6) + at(-1e-6) - 2 * number.value) / 1e-6
    except ZeroDivisionError:
        return
    if bend < 1e-3 * (1 + abs(numeric)):  # not at the kink of a min or max
        assert number.slopes.get(key, 0.0) == pytest.approx(numeric, rel=1e-3, abs=1e-3 * (1 + abs(number.value)))
    assert set(number.slopes) <= set(keys(expression))


def test_interval_by_hand():
    # a - b: se = sqrt(0.4^2 / 4 + 0.3^2 / 9) = sqrt(0.04 + 0.01) = 0.223607; 4 - 1 = 3 degrees: 3.182.
    number = evaluate(op("difference", a, b), VALUES)
    assert half_width(number, VALUES) == pytest.approx(3.182 * sqrt(0.05))
    # A counted cell has no noise; alone it leaves none.
    assert half_width(evaluate(op("product", a, c), VALUES), VALUES) == pytest.approx(3.182 * 5 * 0.2)
    assert half_width(evaluate(c, VALUES), VALUES) == 0.0
    # One replicate, or a spread that is not known: no interval at all.
    assert half_width(number, VALUES | {B: Value(2.0, 0.3, 1)}) is None
    assert half_width(number, VALUES | {B: Value(2.0, None, 5)}) is None
    # A cell whose slope is 0 does not enter: (a + b) - b.
    cancelled = evaluate(op("difference", op("sum", a, b), b), VALUES | {B: Value(2.0)})
    assert half_width(cancelled, VALUES | {B: Value(2.0)}) == pytest.approx(3.182 * 0.2)


def test_rounding_by_hand():
    # 40.9 / 92.0, each to a tenth: 0.05 / 92 + 40.9 * 0.05 / 92^2 = 0.00054348 + 0.00024161 = 0.00078509.
    values = {A: Value(40.9, counted=True, half_unit=0.05), B: Value(92.0, counted=True, half_unit=0.05)}
    assert rounding_slack(evaluate(op("ratio", a, b), values), values) == pytest.approx(0.00078509, abs=1e-8)


def test_a_measurement_under_two_names_has_one_noise():
    # mean of (a - g1) and (b - g2) with g1, g2 the same run of std 0.6, n = 9: se^2 = (0.3^2 / 9) / 4 * 2 + 0.6^2 / 9
    # = 0.005 + 0.04 = 0.045; as two runs it would be 0.005 + 0.02.
    g1, g2 = Key("t", "g", "x", pair="1"), Key("t", "g", "x", pair="2")
    run = Value(1.0, 0.6, 9, half_unit=0.1, origin="one run")
    values = {A: Value(3.0, 0.3, 9), B: Value(4.0, 0.3, 9), g1: run, g2: run}
    mean = op("mean", op("difference", a, Leaf(g1)), op("difference", b, Leaf(g2)))
    number = evaluate(mean, values)
    assert half_width(number, values) == pytest.approx(2.306 * sqrt(0.045))
    assert rounding_slack(number, values) == pytest.approx(0.1)
    # Subtracted from itself it is exactly 0, without noise.
    itself = evaluate(op("difference", Leaf(g1), Leaf(g2)), values)
    assert (itself.value, half_width(itself, values)) == (0.0, 0.0)


def test_printed_digits():
    assert [Value(2.1, half_unit=0.005).printed, Value(84.0, half_unit=0.5).printed, Value(0.8).printed] == ["2.10", "84", "0.8"]
