"""A record that exists is whole: construction refuses every kind of damage."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest

from graft.types import Group, Minibatch, Prompt, Response, SamplingSettings, Sequence
from tests.graft.tiny import group, response, sequence


@pytest.mark.parametrize("fields", [("", "m", "g"), ("i", "", "g"), ("i", "m", ""), ("i", "m", "  ")])
def test_prompt_needs_id_message_and_gold(fields: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Prompt(*fields)


def test_alternatives_are_golds_too() -> None:
    assert Prompt("i", "m", "g").golds == ("g",)
    assert Prompt("i", "m", "g", alternatives=("h", "k")).golds == ("g", "h", "k")
    with pytest.raises(ValueError, match="must not be empty"):
        Prompt("i", "m", "g", alternatives=(" ",))
    with pytest.raises(ValueError, match="repeats another gold"):
        Prompt("i", "m", "g", alternatives=("h", "g"))


def test_every_response_id_needs_its_own_logprob() -> None:
    with pytest.raises(ValueError, match="2 response ids but 1 log-probs"):
        Response((1, 2), (-1.0,), "x", "length")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_logprobs_and_rewards_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="log-prob is not finite"):
        Response((1,), (bad,), "x", "length")
    with pytest.raises(ValueError, match="not finite"):
        Response((1,), (-1.0,), "x", "length", bad)


def test_group_counts() -> None:
    g = group("q", "a", [1.0, 0.0, 1.0, 0.0])
    assert (g.successes, g.all_fail, g.all_pass) == (2, False, False)
    assert group("q", "a", [0.0, 0.0]).all_fail
    assert group("q", "a", [1.0, 1.0]).all_pass


def test_group_with_a_member_unverified_is_never_used() -> None:
    with pytest.raises(ValueError, match=r"prompt 'q', model 'a': responses \[1\] have no reward"):
        _ = group("q", "a", [1.0, None]).rewards
    with pytest.raises(ValueError, match="no responses"):
        Group(Prompt("q", "m", "g"), "a", (1,), ())


@pytest.mark.parametrize(
    "changes",
    [{"response_ids": ()}, {"old_logprobs": (-1.0,)}, {"advantage": math.nan}, {"weight": math.inf}, {"weight": -0.1}],
)
def test_sequence_refuses(changes: dict[str, object]) -> None:
    good: dict[str, object] = {
        "prompt_id": "q", "source": "a", "receiver": "b", "prompt_ids": (1,), "response_ids": (1, 2),
        "old_logprobs": (-1.0, -1.0), "advantage": 1.0, "weight": 1.0,
    }  # fmt: skip
    assert Sequence(**good).is_peer  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sequence of prompt 'q'"):
        Sequence(**(good | changes))  # type: ignore[arg-type]


def test_minibatch_tokens_ignore_weights() -> None:
    # eq. 10's denominator: 2 + 3 response tokens, whatever w is.
    rows = (sequence((1, 2), (-1, -1), 1.0), sequence((1, 2, 3), (-1, -1, -1), 1.0, weight=0.1, source="b"))
    assert Minibatch(0, rows).tokens == 5


@pytest.mark.parametrize("bad", [(0.0, 1.0, 5), (-1.0, 1.0, 5), (1.0, 0.0, 5), (1.0, 1.1, 5), (1.0, 1.0, 0), (math.nan, 1.0, 5)])
def test_sampling_settings_out_of_range(bad: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SamplingSettings(*bad)


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        response().text = "y"  # type: ignore[misc]
