"""GSPO: one ratio per response, the exponential of its mean token log-ratio; tight clips; responses weigh equally."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from graft.aggregation import Totals
from graft.methods import METHODS
from graft.types import Minibatch
from tests.graft import tiny
from tests.methods.baseline_situations import (
    close,
    contents,
    counted,
    evaluate,
    exact,
    group,
    loss_of_nothing,
    minibatches,
    moved,
    numeric,
    plain_gradients,
    plain_logprobs,
    ratio_inputs,
)

GSPO = METHODS["gspo"]


def test_the_sequence_ratio_vector() -> None:
    # log-ratios +.1, -.1, +.05: mean .0166667, s = 1.016806. With a = -1 the larger cost counts, so the loss is s itself.
    x = tiny.inputs([[-1.0, -2.0, -0.5]], [[-1.1, -1.9, -0.55]], [-1.0])
    value, gradient, _ = evaluate(GSPO, x)
    assert value == pytest.approx(1.016806, abs=1e-6)
    # dL/dlogp_t = -a s / L = 1.016806 / 3 = .338935 on every token, whatever its own ratio.
    torch.testing.assert_close(gradient, exact([[0.338935] * 3]), atol=1e-6, rtol=0)


# s is the ratio of a one-token response. Clip to [.9997, 1.0004].
@pytest.mark.parametrize(
    ("s", "a", "loss", "slope"),
    [
        (1.0003, 1, -1.0003, -1.0003), (1.0005, 1, -1.0004, 0.0), (1.0005, -1, 1.0005, 1.0005),
        (0.9998, -1, 0.9998, 0.9998), (0.9996, -1, 0.9997, 0.0), (0.9996, 1, -0.9996, -0.9996),
        (1.25, 1, -1.0004, 0.0), (5.0, -1, 5.0, 5.0),
    ],
)  # fmt: skip
def test_clips_are_3e_4_and_4e_4(s: float, a: float, loss: float, slope: float) -> None:
    value, gradient, metrics = evaluate(GSPO, ratio_inputs([[s]], [a]))
    assert value == pytest.approx(loss, abs=1e-12)
    assert float(gradient) == pytest.approx(slope, abs=1e-12)
    assert metrics["clipped_own"] == float(slope == 0.0)


def test_a_minibatch_by_hand() -> None:
    # Row 1: ratios 1.0002, 1: s = sqrt(1.0002) = 1.000099995, a = 2, inside: term 2.00019999.
    # Row 2: four ratios of .99: s = .99, a = -1: min(-.99, -.9997) = -.9997, clipped with all 4 tokens.
    # loss = -(2.00019999 - .9997) / 2 = -.500249995: every response weighs 1/2, whatever its length.
    x = ratio_inputs([[1.0002, 1.0], [0.99] * 4], [2.0, -1.0])
    value, gradient, metrics = evaluate(GSPO, x)
    assert value == pytest.approx(-0.500249995, abs=1e-9)
    assert metrics == {"clipped_own": 4.0, "clipped_peer": 0.0}
    # Row 1: -a s / (L N) = -2.00019999 / 4.
    expected = exact([[-0.5000499975, -0.5000499975, 0, 0], [0.0] * 4])
    torch.testing.assert_close(gradient, expected, atol=1e-8, rtol=0)


def test_gradient_is_the_numeric_one() -> None:
    x = ratio_inputs([[1.001, 0.9991, 1.0], [1.2, 1.1], [0.7, 0.9, 0.8, 0.6]], [1.3, -0.8, 0.5])
    _, gradient, _ = evaluate(GSPO, x)
    assert int((gradient != 0).sum()) == 9
    torch.testing.assert_close(gradient, numeric(GSPO, x), atol=1e-8, rtol=0)


def test_only_the_mean_of_log_ratios_counts() -> None:
    # 1.3 and 1/1.3 cancel to s = 1, where GRPO's token clip would cut the first at 1.28.
    value, gradient, metrics = evaluate(GSPO, ratio_inputs([[1.3, 1 / 1.3]], [1.0]))
    assert value == pytest.approx(-1.0, abs=1e-12)
    torch.testing.assert_close(gradient, exact([[-0.5, -0.5]]), atol=1e-12, rtol=0)
    assert metrics["clipped_own"] == 0.0
    assert evaluate(METHODS["grpo"], ratio_inputs([[1.3, 1 / 1.3]], [1.0]))[2]["clipped_own"] == 1.0


def test_log_s_is_bounded_above_by_10_only() -> None:
    # Mean log-ratio 50 with a = -1: e^10 and no gradient, not overflow. -50 with a = +1: s = e^-50, unbounded and harmless.
    value, gradient, _ = evaluate(GSPO, ratio_inputs([[math.exp(50.0)]], [-1.0]))
    assert value == pytest.approx(math.exp(10.0))
    assert not gradient.any()
    value, gradient, _ = evaluate(GSPO, ratio_inputs([[math.exp(-50.0)]], [1.0]))
    assert value == pytest.approx(-math.exp(-50.0), rel=1e-9)
    assert float(gradient) == pytest.approx(-math.exp(-50.0), rel=1e-9)


def test_seq_mean_token_mean() -> None:
    # (1 + 4) / 2 = 2.5 (token mean would be 3).
    losses = torch.tensor([[1.0, 1.0, 0.0, 0.0], [4.0] * 4])
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0] * 4])
    assert float(GSPO.bound("aggregation")(losses, mask, torch.tensor([False, False]), Totals(6, 2))) == 2.5


def test_zero_variance_and_empty_rows_stay_in_the_divisor() -> None:
    # One response with a = 1 at s = 1 beside a failed one and a row without tokens: -1/3.
    x = ratio_inputs([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [1.0, 0.0, 1.0])
    x.mask[2] = 0
    value, gradient, _ = evaluate(GSPO, x)
    assert value == pytest.approx(-1 / 3, abs=1e-12)
    assert not gradient[1:].any()
    assert loss_of_nothing(GSPO) == 0.0


@pytest.mark.parametrize("rewards", [[0.0] * 4, [1.0] * 4, [1.0]])
def test_degenerate_groups_teach_nothing(rewards: list[float]) -> None:
    assert GSPO.bound("own_advantage")({"a": group("p0", "a", rewards)}, "a", "a", {}) == (0.0,) * len(rewards)


def test_advantages_and_batches_are_grpos() -> None:
    got = moved(GSPO, {"a": counted("a", [1, 0, 3])})
    batches = minibatches(GSPO, got, "a", 2)
    assert contents(batches) == [[("p0", "a", 4), ("p1", "a", 4)], [("p2", "a", 4)]]
    assert [s.advantage for s in batches[0].sequences] == pytest.approx([1.499997] + [-0.499999] * 3 + [0.0] * 4, abs=1e-6)
    assert not GSPO.needs_reference


def test_the_update_is_the_plain_formula(tiny_dirs: dict[str, Path]) -> None:
    # s = exp(mean log-ratio), -(1/N) sum min(s a, clip(s) a), one forward pass per row.
    policy = tiny.policy(tiny_dirs["quick"])
    rows = tuple(s for s in tiny.mixed_minibatch(policy, drift=2e-4).sequences if not s.is_peer)
    got, metrics = tiny.gradients(policy, Minibatch(0, rows), GSPO.loss())
    total = torch.zeros(())
    for row in rows:
        logp, _ = plain_logprobs(policy, row)
        s = (logp - torch.tensor(row.old_logprobs)).mean().exp()
        total = total - torch.minimum(s * row.advantage, s.clamp(1 - 3e-4, 1 + 4e-4) * row.advantage) / len(rows)
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-5)
    assert close(got, plain_gradients(policy, total))
