"""Which prompts move: SelectWithTies, eq. 4's eligibility, balance."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from graft.selection import complementary_balanced, complementary_counts, no_selection, select_with_ties
from graft.types import Group
from tests.graft.tiny import group

COUNTS = {"q1": 7, "q2": 5, "q3": 5, "q4": 1}
RNG = np.random.default_rng(0)


def batch(counts: Mapping[str, tuple[int, ...]], n: int = 8) -> dict[str, tuple[Group, ...]]:
    """{model: successes per prompt} -> groups of prompts p0, p1, ..."""
    return {m: tuple(group(f"p{i}", m, [1.0] * k + [0.0] * (n - k)) for i, k in enumerate(ks)) for m, ks in counts.items()}


@pytest.mark.parametrize(
    ("m", "expected"),
    [(0, ()), (1, ("q1",)), (2, ("q1", "q2", "q3")), (3, ("q1", "q2", "q3")), (4, tuple(COUNTS)), (9, tuple(COUNTS))],
)
def test_select_with_ties(m: int, expected: tuple[str, ...]) -> None:
    assert select_with_ties(COUNTS, m) == expected


def test_result_keeps_batch_order() -> None:
    assert select_with_ties({"z": 1, "y": 5, "x": 7}, 2) == ("y", "x")


def test_no_prompts_and_negative_m() -> None:
    assert select_with_ties({}, 3) == ()
    with pytest.raises(ValueError, match="m = -1"):
        select_with_ties(COUNTS, -1)


def test_eligible_is_receiver_all_fail_and_source_mixed() -> None:
    # (k_a, k_b): only k_b = 0 with 1 <= k_a <= 7 qualifies; all-pass (8) and all-fail (0) sources do not.
    groups = batch({"a": (1, 7, 8, 0, 3, 3), "b": (0, 0, 0, 0, 1, 8)})
    assert complementary_counts(groups, "a", "b") == {"p0": 1, "p1": 7}
    assert complementary_counts(groups, "b", "a") == {}


def test_balance_takes_the_smaller_side_and_its_ties() -> None:
    # C_ab = {p0:7, p1:5, p2:5, p3:1}, C_ba = {p4:2, p5:6}; m = 2: a->b keeps p0 and the tie p1, p2; b->a keeps both.
    got = complementary_balanced(batch({"a": (7, 5, 5, 1, 0, 0, 4), "b": (0, 0, 0, 0, 2, 6, 4)}), RNG)
    assert got.limits == {("a", "b"): 2, ("b", "a"): 2}
    assert got.selected == {("a", "b"): ("p0", "p1", "p2"), ("b", "a"): ("p4", "p5")}
    assert got.candidates == {("a", "b"): ("p0", "p1", "p2", "p3"), ("b", "a"): ("p4", "p5")}


def test_one_empty_side_moves_nothing() -> None:
    got = complementary_balanced(batch({"a": (7, 5), "b": (0, 0)}), RNG)
    assert got.selected == {("a", "b"): (), ("b", "a"): ()}
    assert got.limits == {("a", "b"): 0, ("b", "a"): 0}
    assert got.candidates[("a", "b")] == ("p0", "p1")


def test_no_selection_is_empty() -> None:
    assert no_selection(batch({"a": (1,), "b": (0,)}), RNG).selected == {}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 8), max_size=10), st.integers(0, 12))
def test_selected_are_exactly_those_not_beaten_by_m_others(counts: dict[str, int], m: int) -> None:
    got = set(select_with_ties(counts, m))
    assert got == {q for q, k in counts.items() if sum(other > k for other in counts.values()) < m}


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_order_of_models_does_not_matter(rows: list[tuple[int, int, int]]) -> None:
    columns = dict(zip("abc", zip(*rows, strict=True), strict=True))
    results = []
    for names in permutations("abc"):
        got = complementary_balanced(batch({m: columns[m] for m in names}, n=4), RNG)
        results.append((dict(got.selected), dict(got.limits)))
    assert all(r == results[0] for r in results)
    selected = results[0][0]
    for (source, receiver), chosen in selected.items():
        assert len(chosen) >= results[0][1][(source, receiver)]
