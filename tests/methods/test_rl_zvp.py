"""RL-ZVP: groups without variance teach by the entropy of their tokens; all others as in GRPO."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graft.aggregation import Totals
from graft.methods import METHODS
from graft.types import Minibatch
from tests.graft import tiny
from tests.methods.baseline_situations import (
    close,
    counted,
    evaluate,
    exact,
    minibatches,
    moved,
    numeric,
    plain_gradients,
    plain_logprobs,
    ratio_inputs,
    recorded,
    settings,
    stepped,
)

GRPO, RL_ZVP = METHODS["grpo"], METHODS["rl_zvp"]
H = [0.2, 1.0, 0.5]


# alpha .1: failed -.1 (max H - H) = -.08, 0, -.05; passed +.1 H = .02, .1, .05. At rho = 1 the loss is minus their mean over
# three tokens, and the gradient minus a third of each.
@pytest.mark.parametrize(("unanimous", "a"), [(-1, [-0.08, 0.0, -0.05]), (1, [0.02, 0.1, 0.05])])
def test_the_vector(unanimous: int, a: list[float]) -> None:
    x = ratio_inputs([[1.0] * 3], [0.0], unanimous=[unanimous], entropies=[H])
    value, gradient, _ = evaluate(RL_ZVP, x)
    assert value == pytest.approx(-sum(a) / 3, abs=1e-12)
    torch.testing.assert_close(gradient, -exact([a]) / 3, atol=1e-12, rtol=0)


def test_mixed_groups_keep_their_advantage() -> None:
    x = ratio_inputs([[1.0, 1.4, 0.7], [0.9, 0.6]], [1.2, -0.7], unanimous=[0, 0], entropies=[H, [2.0, 3.0]])
    value, gradient, metrics = evaluate(RL_ZVP, x)
    # As GRPO: 1.2 + 1.28 * 1.2 + .84 - .63 - .56 = 2.386 over 5 tokens.
    assert value == pytest.approx(-2.386 / 5, abs=1e-12)
    plain = evaluate(GRPO, x)
    assert value == plain[0]
    assert torch.equal(gradient, plain[1])
    assert metrics == plain[2] == {"clipped_own": 2.0, "clipped_peer": 0.0}


def test_token_advantages_are_clipped_like_any_other() -> None:
    # Passed: a = .02, .1; rho 1.5 -> 1.28 (clipped), .5 -> .5. Failed: top 1, a = -.08, 0; rho .5 -> .8 (clipped), 3 -> 0.
    # Sum .0256 + .05 - .064 + 0 = .0116 over 4 tokens. Where a = 0 nothing is clipped.
    x = ratio_inputs([[1.5, 0.5], [0.5, 3.0]], [0.0, 0.0], unanimous=[1, -1], entropies=[[0.2, 1.0], [0.2, 1.0]])
    value, gradient, metrics = evaluate(RL_ZVP, x)
    assert value == pytest.approx(-0.0116 / 4, abs=1e-12)
    torch.testing.assert_close(gradient, exact([[0.0, -0.05 / 4], [0.0, 0.0]]), atol=1e-12, rtol=0)
    assert metrics == {"clipped_own": 2.0, "clipped_peer": 0.0}


def test_gradient_is_the_numeric_one_in_one_minibatch_of_all_kinds() -> None:
    x = ratio_inputs(
        [[1.0, 1.1, 0.7], [0.9, 1.2], [1.3, 0.85, 1.05]],
        [0.0, 1.3, 0.0],
        unanimous=[-1, 0, 1],
        entropies=[H, [1.0, 2.0], [0.3, 2.0, 1.1]],
    )
    _, gradient, _ = evaluate(RL_ZVP, x)
    torch.testing.assert_close(gradient, numeric(RL_ZVP, x), atol=1e-8, rtol=0)
    # Zero: the top token of the failed row, its .7 (a < 0, below .8), the passed row's 1.3.
    assert (gradient == 0).nonzero().tolist() == [[0, 1], [0, 2], [1, 2], [2, 0]]


def test_entropies_are_constants() -> None:
    x = ratio_inputs([[1.0] * 3], [0.0], unanimous=[1], entropies=[H])
    entropies = torch.tensor([H], dtype=torch.float64, requires_grad=True)
    logp = x.logprobs.clone().requires_grad_()
    value, _ = RL_ZVP.loss()(replace(x, logprobs=logp, entropies=entropies), Totals(3, 1))
    value.backward()
    assert entropies.grad is None
    assert logp.grad is not None
    assert logp.grad.any()


def test_padding_does_not_set_the_top_entropy() -> None:
    # The short row is padded with entropy 9: its top is .5, so a = -.03, 0.
    x = ratio_inputs([[1.0, 1.0], [1.0] * 3], [0.0, 0.0], unanimous=[-1, 0], entropies=[[0.2, 0.5], H])
    _, gradient, _ = evaluate(RL_ZVP, x)
    assert gradient[0].tolist() == pytest.approx([0.03 / 5, 0.0, 0.0], abs=1e-12)


def test_a_one_token_failure_teaches_nothing_and_a_one_token_success_does() -> None:
    # Its only token is its most uncertain one: max H - H = 0. A success gets alpha H = .07.
    value, gradient, _ = evaluate(RL_ZVP, ratio_inputs([[1.0]], [0.0], unanimous=[-1], entropies=[[0.7]]))
    assert (value, float(gradient)) == (0.0, 0.0)
    value, _, _ = evaluate(RL_ZVP, ratio_inputs([[1.0]], [0.0], unanimous=[1], entropies=[[0.7]]))
    assert value == pytest.approx(-0.07)


def test_alpha_scales_and_alpha_zero_is_grpo() -> None:
    x = ratio_inputs([[1.0] * 3, [1.0] * 3], [0.0, 0.8], unanimous=[1, 0], entropies=[H, H])
    # alpha .5: .5 (.2 + 1 + .5) = .85; mixed 3 * .8 = 2.4; over 6.
    assert evaluate(RL_ZVP.with_hyperparameters(zvp_alpha=0.5), x)[0] == pytest.approx(-3.25 / 6)
    zero, plain = evaluate(RL_ZVP.with_hyperparameters(zvp_alpha=0.0), x), evaluate(GRPO, x)
    assert zero[0] == plain[0] == pytest.approx(-2.4 / 6)
    assert torch.equal(zero[1], plain[1])


def test_without_what_it_needs_it_says_so() -> None:
    assert RL_ZVP.loss().needs_entropies
    with pytest.raises(ValueError, match="needs entropies"):
        evaluate(RL_ZVP, ratio_inputs([[1.0]], [0.0], unanimous=[1]))
    with pytest.raises(ValueError, match="unanimity"):
        evaluate(RL_ZVP, ratio_inputs([[1.0]], [0.0], entropies=[[1.0]]))


def test_what_is_trained_on() -> None:
    # Group advantages stay GRPO's (0 in unanimous groups); every sequence knows its group's kind, and all are computed.
    got = moved(RL_ZVP, {"a": counted("a", [0, 1, 4])})
    (batch,) = minibatches(RL_ZVP, got, "a", 3)
    assert [s.unanimous for s in batch.sequences] == [-1] * 4 + [0] * 4 + [1] * 4
    expected = [0.0] * 4 + [1.499997] + [-0.499999] * 3 + [0.0] * 4
    assert [s.advantage for s in batch.sequences] == pytest.approx(expected, abs=1e-6)
    assert all(RL_ZVP.loss().computes(s) for s in batch.sequences)
    assert not any(GRPO.loss().computes(s) for s in batch.sequences[:4])


def test_the_update_takes_the_policys_own_entropies(tiny_dirs: dict[str, Path]) -> None:
    # Entropies over the whole vocabulary by a plain forward pass; failed, passed and mixed rows in one minibatch.
    policy = tiny.policy(tiny_dirs["quick"])
    pairs = [((80, 81), (40, 50, 60)), ((80, 81), (41, 52)), ((90,), (43, 51, 62, 70))]
    rows = tuple(
        replace(tiny.sequence(ids, old, a, prompt=prompt), unanimous=u)
        for (prompt, ids), old, a, u in zip(pairs, policy.score(pairs), (0.0, 0.0, 0.6), (-1, 1, 0), strict=True)
    )
    got, metrics = tiny.gradients(policy, Minibatch(0, rows), RL_ZVP.loss())
    total = torch.zeros(())
    for s in rows:
        logp, h = plain_logprobs(policy, s)
        a = {-1: -0.1 * (h.max() - h), 1: 0.1 * h, 0: torch.full_like(h, 0.6)}[s.unanimous]
        total = total - ((logp - torch.tensor(s.old_logprobs)).exp() * a).sum() / 9
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-6)
    assert metrics["computed_sequences"] == 3
    assert close(got, plain_gradients(policy, total))


def test_a_failed_step_moves_the_weights_where_grpo_does_not(tiny_dirs: dict[str, Path]) -> None:
    norms = {}
    for method in (GRPO, RL_ZVP):
        policy = tiny.policy(tiny_dirs["quick"])
        seen = recorded(policy)
        result = stepped(method, {"a": policy}, ["0", "0"], settings(2, 2))
        assert [s.unanimous for m in seen for s in m.sequences] == [-1] * 8
        norms[method.name] = result.metrics["models"]["a"]["grad_norm_mean"]
    assert norms["grpo"] == 0.0
    assert norms["rl_zvp"] > 1e-4
