"""Phases: nested ones are taken out of the phase around them."""

from __future__ import annotations

import pytest

from graft import timing
from graft.timing import Stopwatch, TimedReceiver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_an_inner_phase_is_not_in_the_outer_one(clock):
    watch = Stopwatch()
    with watch("exchange"):
        clock[0] += 1
        with watch("a/peer_scoring"):
            clock[0] += 4
            with watch("deep"):
                clock[0] += 2
        clock[0] += 3
    with watch("exchange"):
        clock[0] += 10
    # 1 + 3 and 10 outside; 4 of the inner phase without the 2 of the innermost.
    assert watch.seconds == {"deep": 2.0, "a/peer_scoring": 4.0, "exchange": 14.0}
    assert sum(watch.seconds.values()) == clock[0]


def test_a_phase_that_fails_is_closed(clock):
    watch = Stopwatch()

    def failing():
        with watch("outer"):
            clock[0] += 1
            with watch("inner"):
                clock[0] += 2
                raise ValueError("inner")

    with pytest.raises(ValueError, match="inner"):
        failing()
    with watch("later"):
        clock[0] += 5
    assert watch.seconds == {"inner": 2.0, "outer": 1.0, "later": 5.0}


def test_scoring_of_peer_responses_is_the_models_own_phase(clock):
    class Policy:
        name, codec, max_response_tokens = "a", "the codec", 7

        def score(self, items):
            clock[0] += 3
            return [(0.5,) for _ in items]

    watch = Stopwatch()
    receiver = TimedReceiver(Policy(), watch)  # type: ignore[arg-type]
    assert (receiver.codec, receiver.max_response_tokens) == ("the codec", 7)
    with watch("exchange"):
        assert receiver.score([((1,), (2,))]) == [(0.5,)]
    assert watch.seconds == {"a/peer_scoring": 3.0, "exchange": 0.0}
