"""The score s (eq. 6, 7), and the gate and cap (eq. 8)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from graft.compatibility import admit_nothing, gate_and_cap, mean_logprob, score

RNG = np.random.default_rng(0)


def test_mean_is_over_a_models_own_tokens() -> None:
    assert mean_logprob((-1.0, -2.0, -0.5, -0.5)) == -1.0
    with pytest.raises(ValueError, match="empty"):
        mean_logprob(())


def test_score_by_hand() -> None:
    # receiver: 2 tokens, mean -1.1; sender: 3 tokens, mean -1.0; s = exp(-0.1) = 0.904837. Each side by its own length.
    assert score(mean_logprob((-1.0, -1.2)), mean_logprob((-0.5, -1.0, -1.5))) == pytest.approx(0.904837, abs=1e-6)
    assert score(-1.0, -1.0) == 1.0
    assert score(-1e4, 0.0) == pytest.approx(math.exp(-20))
    assert score(0.0, -1e4) == pytest.approx(math.exp(20))


def test_gate_is_strict_and_cap_is_one() -> None:
    got = gate_and_cap([0.79, 0.8, 0.81, 0.95, 1.0, 1.3], RNG, delta=0.8)
    assert [a.weight for a in got] == [None, None, 0.81, 0.95, 1.0, 1.0]
    assert [a.reason for a in got] == ["below delta"] * 2 + ["admitted"] * 4


def test_threshold_in_nats_per_token() -> None:
    # ln 0.8 = -0.22314: a receiver 0.2231 nats per token behind is admitted, 0.2232 behind is not.
    assert math.log(0.8) == pytest.approx(-0.22314, abs=5e-6)
    got = gate_and_cap([score(-1.2231, -1.0), score(-1.2232, -1.0)], RNG, delta=0.8)
    assert got[0].weight == pytest.approx(0.80003, abs=1e-5)
    assert got[1].weight is None


def test_delta_zero_drops_nothing() -> None:
    assert gate_and_cap([score(-1e6, 0.0)], RNG, delta=0.0)[0].weight == pytest.approx(math.exp(-20))


def test_admit_nothing() -> None:
    assert [a.weight for a in admit_nothing([1.0, 2.0], RNG)] == [None, None]
    assert gate_and_cap([], RNG, delta=0.8) == ()


@given(st.lists(st.floats(0, 5), max_size=8), st.floats(0, 2))
def test_weights_are_in_range_and_one_verdict_per_score(scores: list[float], delta: float) -> None:
    got = gate_and_cap(scores, RNG, delta=delta)
    assert len(got) == len(scores)
    for s, a in zip(scores, got, strict=True):
        assert (a.weight is None) == (s <= delta)
        assert a.weight is None or (a.weight <= 1.0 and a.weight <= s)
