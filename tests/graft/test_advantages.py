"""Group advantages against hand arithmetic, and the two opposite faults of a variance floor (none here)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from graft.advantages import normalise, source_group
from tests.graft.tiny import group

EPS = 1e-6


def binary(successes: int, n: int = 8) -> tuple[float, ...]:
    return (1.0,) * successes + (0.0,) * (n - successes)


# k of 8: mean k/8, sum of squares k(8-k)/8, divisor 7.
# 1 of 8: std sqrt(.875/7) = .3535534; .875/(.3535534+1e-6) = 2.474867; -.125/.3535544 = -.353552.
# 4 of 8: std sqrt(2/7) = .5345225; .5/.5345235 = .935413.  7 of 8 mirrors 1 of 8.
@pytest.mark.parametrize(
    ("successes", "success", "failure"), [(1, 2.474867, -0.353552), (4, 0.935413, -0.935413), (7, 0.353552, -2.474867)]
)
def test_vectors_of_eight(successes: int, success: float, failure: float) -> None:
    got = normalise(binary(successes), advantage_eps=EPS)
    assert got == pytest.approx((success,) * successes + (failure,) * (8 - successes), abs=1e-6)


@pytest.mark.parametrize("base", [1.0, 2.0])
def test_near_equal_rewards_keep_the_plain_formula(base: float) -> None:
    # deviations +-5e-6, std = 1e-5/sqrt(2) = 7.0711e-6, plus eps 1e-6 = 8.0711e-6: 5/8.0711 = 0.6195 (a floor would shrink it).
    assert normalise((base, base + 1e-5), advantage_eps=EPS) == pytest.approx((-0.6195, 0.6195), abs=1e-4)


def test_one_different_of_eight_is_not_thousands() -> None:
    # The value of the rewards does not matter, only their pattern: as 1 of 8, up to eps (std of 1e-3 steps: 3.5355e-4).
    got = normalise((0.351,) + (0.35,) * 7, advantage_eps=0.0)
    assert got == pytest.approx((2.474874,) + (-0.353553,) * 7, abs=1e-5)


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 0.7, 1e6])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_equal_rewards_and_single_members_get_exactly_zero(constant: float, n: int) -> None:
    assert normalise((constant,) * n, advantage_eps=0.0) == (0.0,) * n  # eps 0: nothing hides a 0/0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_rewards_are_errors(bad: float) -> None:
    with pytest.raises(ValueError, match="not all finite"):
        normalise((0.0, bad), advantage_eps=EPS)


def test_peer_data_keeps_the_sources_advantages() -> None:
    groups = {"a": group("q", "a", binary(1)), "b": group("q", "b", binary(0))}
    assert source_group(groups, "a", "b", {}, advantage_eps=EPS) == normalise(binary(1), advantage_eps=EPS)
    assert source_group(groups, "b", "b", {}, advantage_eps=EPS) == (0.0,) * 8


@given(st.lists(st.sampled_from([0.0, 1.0, 0.1, 0.3]), min_size=2, max_size=16), st.sampled_from([2.0, 1024.0]))
def test_centred_scaled_and_blind_to_scale(rewards: list[float], factor: float) -> None:
    got = normalise(tuple(rewards), advantage_eps=0.0)
    assert math.fsum(got) == pytest.approx(0.0, abs=1e-9)
    if len(set(rewards)) > 1:  # sum of squares of a standardised group is n - 1
        assert math.fsum(x * x for x in got) == pytest.approx(len(rewards) - 1, rel=1e-9)
    scaled = normalise(tuple(factor * r for r in rewards), advantage_eps=0.0)
    assert scaled == pytest.approx(got, rel=1e-12)
