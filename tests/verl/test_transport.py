"""Rows on their way to the ranks: no verl needed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from graft.policies.verl_policy.settings import VerlSettings
from graft.policies.verl_policy.transport import spread, summed


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 4), st.integers(1, 4))
def test_every_row_has_one_place_and_every_rank_as_many(lengths: list[int], ranks: int, multiple: int) -> None:
    places = spread(lengths, ranks, multiple)
    assert sorted(i for mine in places for i in mine if i is not None) == list(range(len(lengths)))
    (count,) = {len(mine) for mine in places}
    assert count % multiple == 0
    assert 0 < count <= len(lengths) // ranks + multiple  # never more filler than the rounding up needs


def test_long_rows_are_dealt_first_to_the_emptier_rank() -> None:
    # 9 -> rank 0, 8 -> rank 1, 2 -> rank 1 (8 < 9), 1 -> rank 0 (9 < 10): 10 and 10 tokens
    assert spread([2, 9, 1, 8], 2, 1) == [[1, 2], [3, 0]]
    # 3 rows on 2 ranks in pairs: 5 -> 0, 4 -> 1, 1 -> 1 (4 < 5), and one place of filler
    assert spread([5, 4, 1], 2, 2) == [[0, None], [1, 2]]
    assert spread([], 2, 3) == [[None] * 3, [None] * 3]  # an empty minibatch is still a step of every rank


def test_metrics_of_ranks_and_micro_batches_add_up() -> None:
    # two ranks with two micro-batches: 1 + 2 + 3 + 4 = 10; numbers that are no lists are the engine's own
    assert summed({"clipped_own": [[1.0, 2.0], [3.0, 4.0]], "loss": 0.5, "grad_norm": 1.0}) == {"clipped_own": 10.0}


def test_settings_that_cannot_be() -> None:
    base = {"max_prompt_tokens": 10, "max_response_tokens": 20}
    with pytest.raises(ValueError, match="holds no sequence of 30 tokens"):
        VerlSettings(**base, tokens_per_gpu=29)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        VerlSettings(**base, precision="float16")
    four = VerlSettings(**base, gpus=4, tensor_parallel=2)
    assert four.gpus_of_a_model(2) == four.gpus_of_a_model(3) == 4
    beside = VerlSettings(**base, gpus=4, tensor_parallel=2, layout="side_by_side")
    assert beside.gpus_of_a_model(2) == 2
    with pytest.raises(ValueError, match="4 GPUs cannot be shared evenly by 3 models"):
        beside.gpus_of_a_model(3)
    with pytest.raises(ValueError, match="tensor_parallel=4 does not divide a model's 2 GPUs"):
        VerlSettings(**base, gpus=4, tensor_parallel=4, layout="side_by_side").gpus_of_a_model(2)
