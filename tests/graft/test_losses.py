"""Token losses and eq. 10 by hand, values and gradients."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from graft.aggregation import Totals, token_mean
from graft.losses import LossInputs, MinibatchLoss, token_clip
from tests.graft.tiny import inputs

CLIP = partial(token_clip, clip_low=0.2, clip_high=0.28)
LOSS = MinibatchLoss(CLIP, CLIP, token_mean)


# -min(rho a, clip(rho, .8, 1.28) a). No dual clip: (5, -1) costs 5.
@pytest.mark.parametrize(
    ("rho", "a", "expected"), [(1.5, 1, -1.28), (1.2, 1, -1.2), (0.5, 1, -0.5), (0.5, -1, 0.8), (1.5, -1, 1.5), (5, -1, 5.0)]
)
def test_token_clip_vectors(rho: float, a: float, expected: float) -> None:
    losses, _ = CLIP(inputs([[math.log(rho) - 1.0]], [[-1.0]], [a]))
    assert float(losses) == pytest.approx(expected, abs=1e-12)


def test_clipped_means_strictly_smaller() -> None:
    # a > 0: only rho > 1.28 counts; a < 0: only rho < 0.8; at rho = 1 and on padding nothing does.
    ratios = [1.0, 1.5, 0.5, 1.5]
    old = [[-1.0] * 4] * 3
    logp = [[math.log(r) - 1.0 for r in ratios]] * 3
    _, metrics = CLIP(inputs(logp, old, [1.0, -1.0, 0.0], peer=[False, True, False], mask=[[1, 1, 1, 0]] * 3))
    assert {k: int(v) for k, v in metrics.items()} == {"clipped_own": 1, "clipped_peer": 1}


def test_eq_10_with_one_own_and_one_peer_response() -> None:
    # own:  a = +1, w = 1,   rho = 1, 1.5      -> min terms 1, 1.28        sum  2.28
    # peer: a = -.5, w = .9, rho = 1, .5, 2    -> min terms -.5, -.4, -1   sum -1.9, times .9 = -1.71
    # J = (2.28 - 1.71) / (2 + 3) = 0.114; the weight is not in the denominator (2 + .9*3 would give 0.1213).
    # dL/dlogp = -(w/5) rho a on unclipped tokens: own -.2, 0; peer +.09, 0, +.18.
    old = [[-1.0, -2.0, 0.0], [-0.5, -1.5, -2.5]]
    ratios = [[1.0, 1.5, 1.0], [1.0, 0.5, 2.0]]
    logp = torch.tensor([[o + math.log(r) for o, r in zip(*x, strict=True)] for x in zip(old, ratios, strict=True)])
    logp = logp.double().requires_grad_()
    x = inputs(logp, old, [1.0, -0.5], weights=[1.0, 0.9], peer=[False, True], mask=[[1, 1, 0], [1, 1, 1]])
    value, _ = LOSS(x, Totals(5, 2, 3, 1))
    value.backward()
    assert float(value.detach()) == pytest.approx(-0.114, abs=1e-7)
    torch.testing.assert_close(logp.grad, torch.tensor([[-0.2, 0, 0], [0.09, 0, 0.18]]).double(), atol=1e-7, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("a", [1.0, -1.0])
@pytest.mark.parametrize("gap", [100.0, -100.0, 1e4, -1e4, -math.inf])
def test_huge_ratios_have_finite_values_and_gradients(gap: float, a: float, dtype: torch.dtype) -> None:
    logp = torch.tensor([[gap, -1.0]], dtype=dtype, requires_grad=True)
    value, _ = LOSS(inputs(logp, [[0.0, -1.0]], [a], weights=[0.9], peer=[True]), Totals(2, 1, 2, 1))
    value.backward()
    assert torch.isfinite(value)
    assert logp.grad is not None
    assert torch.isfinite(logp.grad).all()
    # The second token is ordinary and must still learn: rho = 1, gradient -(w/2) a.
    assert float(logp.grad[0, 1]) == pytest.approx(-0.45 * a, rel=1e-2)


def test_padding_never_counts() -> None:
    logp = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    value, _ = LOSS(inputs(logp, [[-1.0, 0.0]], [2.0], mask=[[1, 0]]), Totals(1, 1))
    value.backward()
    assert float(value.detach()) == -2.0
    assert logp.grad is not None
    assert logp.grad.tolist() == [[-2.0, 0.0]]


@pytest.mark.parametrize(("a", "w"), [(0.0, 1.0), (1.0, 0.0)])
def test_zero_advantage_or_weight_is_exactly_nothing(a: float, w: float) -> None:
    logp = torch.tensor([[-3.0, -0.1, 5.0]], requires_grad=True)
    value, _ = LOSS(inputs(logp, [[-1.0, -1.0, -90.0]], [a], weights=[w]), Totals(3, 1))
    value.backward()
    assert float(value.detach()) == 0.0
    assert logp.grad is not None
    assert not logp.grad.any()


def test_own_rows_take_the_own_loss_and_peer_rows_the_peer_loss() -> None:
    # A peer loss of 10 per token beside eq. 10's -rho a = -1: (2 * -1 + 2 * 10) / 4 = 4.5; metrics come from the right side.
    def ten(x: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.full_like(x.logprobs, 10.0), {"clipped_own": torch.tensor(99), "clipped_peer": torch.tensor(7)}

    x = inputs([[-1.0, -1.0], [-1.0, -1.0]], [[-1.0, -1.0], [-1.0, -1.0]], [1.0, 1.0], peer=[False, True])
    value, metrics = MinibatchLoss(CLIP, ten, token_mean)(x, Totals(4, 2, 2, 1))
    assert float(value.detach()) == 4.5
    assert {k: int(v) for k, v in metrics.items()} == {"clipped_own": 0, "clipped_peer": 7}


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="disagree in shape"):
        inputs([[-1.0, -1.0]], [[-1.0]], [1.0])
