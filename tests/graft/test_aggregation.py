"""Denominators: hand vectors, and independence of how a minibatch is cut."""

from __future__ import annotations

import pytest
import torch

from graft.aggregation import Totals, seq_mean_token_mean, seq_mean_token_sum, token_mean
from graft.types import Minibatch
from tests.graft.tiny import sequence

LOSSES = torch.tensor([[1.0, 1.0, 9.0, 9.0], [4.0, 4.0, 4.0, 4.0]])  # the nines are padding
MASK = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
PEER = torch.tensor([False, True])
TOTALS = Totals(tokens=6, sequences=2, peer_tokens=4, peer_sequences=1)
ALL = (token_mean, seq_mean_token_sum, seq_mean_token_mean)


# [[1,1],[4,4,4,4]]: (2 + 16)/6 = 3; (2 + 16)/2 = 9; (1 + 4)/2 = 2.5.
@pytest.mark.parametrize(("aggregation", "expected"), zip(ALL, (3.0, 9.0, 2.5), strict=True))
def test_vectors(aggregation, expected: float) -> None:  # type: ignore[no-untyped-def]
    assert float(aggregation(LOSSES, MASK, PEER, TOTALS)) == expected


@pytest.mark.parametrize("aggregation", ALL)
def test_microbatches_add_up(aggregation) -> None:  # type: ignore[no-untyped-def]
    whole = aggregation(LOSSES, MASK, PEER, TOTALS)
    parts = [aggregation(LOSSES[i : i + 1], MASK[i : i + 1], PEER[i : i + 1], TOTALS) for i in range(2)]
    assert float(sum(parts)) == pytest.approx(float(whole), abs=1e-6)


@pytest.mark.parametrize("aggregation", ALL)
def test_empty_rows_and_empty_totals_give_zero_not_nan(aggregation) -> None:  # type: ignore[no-untyped-def]
    assert float(aggregation(LOSSES, torch.zeros_like(MASK), PEER, Totals(0, 0))) == 0.0


def test_totals_of_a_minibatch() -> None:
    rows = (sequence((1, 2), (-1, -1), 0.0), sequence((1, 2, 3, 4), (-1,) * 4, 1.0, weight=0.5, source="b"))
    assert Totals.of(Minibatch(0, rows)) == TOTALS
