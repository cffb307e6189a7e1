"""Dr. GRPO: no division by the std, and none by a response's length."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graft.aggregation import Totals
from graft.methods import METHODS
from tests.graft import tiny
from tests.methods.baseline_situations import (
    contents,
    counted,
    evaluate,
    exact,
    group,
    loss_of_nothing,
    minibatches,
    moved,
    numeric,
    ratio_inputs,
    settings,
    stepped,
)

DR_GRPO = METHODS["dr_grpo"]


def advantages(rewards: list[float]) -> tuple[float, ...]:
    return DR_GRPO.bound("own_advantage")({"a": group("p0", "a", rewards)}, "a", "a", {})


# r - k/8: 1 of 8 gives .875 and -.125; 4 of 8 +-.5; a rare success is not blown up by a small std.
@pytest.mark.parametrize(("k", "success", "failure"), [(1, 0.875, -0.125), (4, 0.5, -0.5), (7, 0.125, -0.875)])
def test_advantages_are_only_centred(k: int, success: float, failure: float) -> None:
    assert advantages([1.0] * k + [0.0] * (8 - k)) == (success,) * k + (failure,) * (8 - k)


@pytest.mark.parametrize("rewards", [[0.0] * 8, [1.0] * 8, [0.1] * 3, [1.0]])
def test_uniform_groups_and_groups_of_one_are_exactly_zero(rewards: list[float]) -> None:
    assert advantages(rewards) == (0.0,) * len(rewards)


def test_token_sum_over_a_constant() -> None:
    # (2 + 16) / 2 sequences = 9; over H = 8: 1.125; over the default 4096: .002197.
    losses = torch.tensor([[1.0, 1.0, 0.0, 0.0], [4.0] * 4])
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0] * 4])
    args = losses, mask, torch.tensor([False, False]), Totals(6, 2)
    assert float(DR_GRPO.with_hyperparameters(norm_tokens=8).bound("aggregation")(*args)) == 1.125
    assert float(DR_GRPO.bound("aggregation")(*args)) == pytest.approx(9 / 4096)


def test_a_minibatch_by_hand() -> None:
    # a = .875: rho 1, 1.5 -> 1, 1.28: 2.28 * .875 = 1.995.  a = -.125: rho 1, .5, 2 -> 1, .8, 2: 3.8 * -.125 = -.475.
    # loss = -(1.995 - .475) / 2 / 10 = -.076. Gradients -rho a / 20 where unclipped: -.04375 and +.00625, +.0125.
    method = DR_GRPO.with_hyperparameters(norm_tokens=10)
    value, gradient, metrics = evaluate(method, ratio_inputs([[1.0, 1.5], [1.0, 0.5, 2.0]], [0.875, -0.125]))
    assert value == pytest.approx(-0.076, abs=1e-12)
    expected = exact([[-0.04375, 0.0, 0.0], [0.00625, 0.0, 0.0125]])
    torch.testing.assert_close(gradient, expected, atol=1e-8, rtol=0)
    assert metrics == {"clipped_own": 2.0, "clipped_peer": 0.0}


def test_gradient_is_the_numeric_one() -> None:
    method = DR_GRPO.with_hyperparameters(norm_tokens=4)
    x = ratio_inputs([[1.0, 1.4, 0.7, 1.1], [0.9, 0.6], [1.3, 1.05, 0.75]], [0.875, -0.125, -0.5])
    _, gradient, _ = evaluate(method, x)
    torch.testing.assert_close(gradient, numeric(method, x), atol=1e-8, rtol=0)


def test_a_token_weighs_the_same_in_short_and_long_responses() -> None:
    # 1 / (2 sequences * 4096) each; a longer neighbour changes nothing (a token mean would halve it).
    for length in (1, 5):
        _, gradient, _ = evaluate(DR_GRPO, ratio_inputs([[1.0], [1.0] * length], [1.0, 1.0]))
        assert gradient.flatten().tolist() == pytest.approx([-1 / 8192] + [0.0] * (length - 1) + [-1 / 8192] * length)


def test_failed_rows_stay_in_the_number_of_sequences() -> None:
    x = ratio_inputs([[1.0, 1.0], [1.3]], [1.0, 0.0])
    assert evaluate(DR_GRPO, x)[0] == pytest.approx(-2 / 2 / 4096)
    assert not DR_GRPO.loss().computes(tiny.sequence((1,), (-1.0,), 0.0))
    assert loss_of_nothing(DR_GRPO) == 0.0


def test_what_is_trained_on() -> None:
    # 2 of 4: +-.5, no eps anywhere; all-pass stays with 0.
    got = moved(DR_GRPO, {"a": counted("a", [2, 4, 1])})
    batches = minibatches(DR_GRPO, got, "a", 2)
    assert contents(batches) == [[("p0", "a", 4), ("p1", "a", 4)], [("p2", "a", 4)]]
    assert [s.advantage for s in batches[0].sequences] == [0.5, 0.5, -0.5, -0.5] + [0.0] * 4
    assert [s.advantage for s in batches[1].sequences] == [0.75] + [-0.25] * 3


def test_hyperparameters() -> None:
    assert dict(DR_GRPO.hyperparameters) == {"clip_low": 0.2, "clip_high": 0.28, "norm_tokens": 4096}
    with pytest.raises(ValueError, match="dr_grpo has no hyperparameter advantage_eps"):
        DR_GRPO.with_hyperparameters(advantage_eps=1e-6)


def test_a_real_step_has_the_loss_of_rho_1(tiny_dirs: dict[str, Path]) -> None:
    # One minibatch, so rho = 1 throughout: loss = -sum a |o| / (12 responses * 4096), a = r - k/4.
    policy = tiny.policy(tiny_dirs["small"])
    result = stepped(DR_GRPO, {"a": policy}, ["1", "2", "3"], settings(3, 3))
    a = [0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5, 0.25, 0.25, 0.25, -0.75]
    lengths = [len(r.ids) for g in result.groups["a"] for r in g.responses]
    assert len(set(lengths)) > 2
    expected = -sum(x * y for x, y in zip(a, lengths, strict=True)) / (12 * 4096)
    assert abs(expected) > 4e-6
    assert result.metrics["models"]["a"]["loss_mean"] == pytest.approx(expected, abs=1e-8)
