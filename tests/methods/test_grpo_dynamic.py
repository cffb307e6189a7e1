"""GRPO with DAPO's dynamic sampling: only groups whose rewards differ train, more prompts are sampled, all are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graft.batches import batch, refill
from graft.cotrain import Setup, run_step
from graft.methods import METHODS
from graft.types import Group
from tests.graft import tiny
from tests.methods.baseline_situations import (
    counted,
    evaluate,
    group,
    judge,
    numeric,
    ratio_inputs,
    recorded,
    scheduled,
    settings,
    stepped,
)

GRPO, DYNAMIC = METHODS["grpo"], METHODS["grpo_dynamic"]
LOOP = settings(3, 2)


def sampled(successes: list[int]) -> dict[str, dict[str, Group]]:
    return {g.prompt.id: {"a": g} for g in counted("a", successes)}


def take(successes: list[int], wanted: int, rounds: int = 1, max_rounds: int | None = None) -> tuple[tuple[str, ...], bool]:
    method = DYNAMIC if max_rounds is None else DYNAMIC.with_hyperparameters(max_rounds=max_rounds)
    got = method.bound("intake")(sampled(successes), wanted, rounds)
    return got.kept, got.more


# k of 4: 0 and 4 are uniform and go, whatever the reward; the rest stay in sampling order.
def test_only_groups_whose_rewards_differ_are_kept() -> None:
    assert take([1, 0, 4, 3, 2], 3) == (("p0", "p3", "p4"), False)


def test_the_surplus_is_cut() -> None:
    assert take([1, 0, 2, 3, 1], 2) == (("p0", "p2"), False)
    assert take([1, 2], 2) == (("p0", "p1"), False)


# One mixed of two wanted: more, until round max_rounds; the step then keeps what it has.
@pytest.mark.parametrize(("rounds", "more"), [(1, True), (2, True), (3, False), (4, False)])
def test_rounds_are_limited(rounds: int, more: bool) -> None:
    assert take([0, 2, 4], 2, rounds, 3) == (("p1",), more)


def test_none_informative_keeps_none() -> None:
    assert take([0, 4, 0], 2) == ((), True)
    assert take([0, 4, 0], 2, rounds=9) == ((), True)
    assert take([0, 4, 0], 2, rounds=10) == ((), False)  # ten by default
    assert take([], 2) == ((), True)


def test_a_group_of_one_is_never_informative_and_graded_rewards_are() -> None:
    intake = DYNAMIC.bound("intake")
    assert intake({"p0": {"a": group("p0", "a", [1.0])}}, 1, 1).kept == ()
    # 0.5 and 1 are both successes, yet they differ: DAPO asks for the variance of rewards, not for a failure.
    assert intake({"p0": {"a": group("p0", "a", [0.5, 1.0])}}, 1, 1).kept == ("p0",)


def test_a_prompt_is_informative_if_it_is_for_any_model() -> None:
    by_prompt = {q: {"a": group(q, "a", [0.0, 0.0]), "b": group(q, "b", [r, 1.0])} for q, r in (("p0", 1.0), ("p1", 0.0))}
    # p0: a all fails, b all passes: no comparison within either group. p1: b's group is mixed.
    assert DYNAMIC.bound("intake")(by_prompt, 2, 10).kept == ("p1",)


def test_plain_grpo_keeps_everything_and_never_asks_again() -> None:
    got = GRPO.bound("intake")(sampled([0, 4, 0]), 5, 1)
    assert (got.kept, got.more) == (("p0", "p1", "p2"), False)


def test_refills_never_repeat_a_prompt_and_use_all() -> None:
    pool = tiny.prompts(11)
    for step in (1, 2, 3):
        first = [p.id for p in batch(pool, LOOP, step)]
        rounds = [[p.id for p in refill(pool, LOOP, step, r)] for r in range(2, 7)]
        assert [len(r) for r in rounds] == [3, 3, 2, 0, 0]  # 11 - 3 = 8
        every = first + [q for r in rounds for q in r]
        assert sorted(every) == sorted(p.id for p in pool)
        assert [p.id for p in refill(pool, LOOP, step, 2)] == rounds[0]  # a function of seed, step and round
    # Another step draws another order, also of the prompts that are in the refills of both.
    orders = [[p.id for r in (2, 3, 4) for p in refill(pool, LOOP, step, r)] for step in (1, 2)]
    assert [q for q in orders[0] if q in orders[1]] != [q for q in orders[1] if q in orders[0]]


def test_three_rounds_fill_a_step_and_every_rollout_is_counted(tiny_dirs: dict[str, Path]) -> None:
    # Rounds of three: one mixed, one mixed, two mixed. Three are wanted, so the fourth mixed group is cut.
    policy = tiny.policy(tiny_dirs["quick"])
    seen = recorded(policy)
    golds = ["0", "2", "4", "3", "0", "0", "0", "1", "2", "1", "1", "1"]
    result = stepped(DYNAMIC, {"a": policy}, golds, LOOP)
    trained = [s.prompt_id for m in seen for s in m.sequences]
    sampled_ids = [g.prompt.id for g in result.groups["a"]]
    assert len(set(sampled_ids)) == len(sampled_ids) == 9
    assert list(dict.fromkeys(trained)) == [sampled_ids[i] for i in (1, 3, 7)]
    assert [len(m.sequences) for m in seen] == [8, 4]
    assert all(s.advantage != 0 for m in seen for s in m.sequences)
    model = result.metrics["models"]["a"]
    assert (result.metrics["rounds"], model["rollouts"], model["minibatches"]) == (3, 36, 2)
    assert model["own_tokens"] == sum(len(r.ids) for i in (1, 3, 7) for r in result.groups["a"][i].responses)
    assert result.tokens["a"]["sampled"] == sum(len(r.ids) for g in result.groups["a"] for r in g.responses)
    assert result.tokens["a"]["trained"] == model["own_tokens"]
    # 2 + 4 + 3 + 1 + 2 of the 36; 5 of 9 groups all failed, 1 of 9 all passed.
    assert model["reward_mean"] == pytest.approx(12 / 36)
    assert model["all_fail_share"] == pytest.approx(4 / 9)
    assert model["all_pass_share"] == pytest.approx(1 / 9)
    assert result.history["a"] == pytest.approx((12 / 36,))


def test_max_rounds_trains_on_what_there_is(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    seen = recorded(policy)
    golds = ["0", "2", "4", "0", "0", "0", "1", "1", "1"]
    result = stepped(DYNAMIC.with_hyperparameters(max_rounds=2), {"a": policy}, golds, LOOP)
    assert (result.metrics["rounds"], result.metrics["models"]["a"]["rollouts"]) == (2, 24)
    assert [{s.prompt_id for s in m.sequences} for m in seen] == [{result.groups["a"][1].prompt.id}]


def test_nothing_informative_is_no_update(tiny_dirs: dict[str, Path]) -> None:
    # 8 prompts, rounds of 3, 3 and 2: they are used up before the limit of 10 rounds.
    policy = tiny.policy(tiny_dirs["quick"])
    before = policy.weights_sha256()
    result = stepped(DYNAMIC, {"a": policy}, ["0", "4", "0", "0", "4", "4", "0", "0"], LOOP)
    model = result.metrics["models"]["a"]
    assert (result.metrics["rounds"], model["rollouts"], model["minibatches"], model["own_tokens"]) == (3, 32, 0, 0)
    assert (model["loss_mean"], model["grad_norm_mean"], model["clipped_own_share"]) == (0.0, 0.0, None)
    assert policy.weights_sha256() == before  # not even weight decay


def test_recomputed_old_logprobs_of_nothing_are_fine(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    result = stepped(DYNAMIC, {"a": policy}, ["0", "0", "4"], settings(3, 2, old_logprobs="recomputed"))
    assert (result.metrics["rounds"], result.metrics["models"]["a"]["minibatches"]) == (1, 0)


def test_a_full_first_round_is_grpo_bit_for_bit(tiny_dirs: dict[str, Path]) -> None:
    weights = []
    for method in (GRPO, DYNAMIC):
        policy = tiny.policy(tiny_dirs["quick"])
        result = stepped(method, {"a": policy}, ["1", "2", "3", "0", "0", "0"], LOOP)
        assert result.metrics["rounds"] == 1
        weights.append(policy.weights_sha256())
    assert weights[0] == weights[1] != tiny.policy(tiny_dirs["quick"]).weights_sha256()


def test_a_later_step_does_not_depend_on_earlier_rounds(tiny_dirs: dict[str, Path]) -> None:
    # Step 2 of a pool of 6: its batch is the second slice of the epoch's order, however many prompts step 1 took.
    policy = tiny.policy(tiny_dirs["quick"])
    golds = ["0", "0", "0", "1", "1", "1"]
    pool = scheduled(golds, LOOP)
    setup = Setup({"a": policy}, DYNAMIC, LOOP, judge())
    first = run_step(setup, pool, 1)
    second = run_step(setup, pool, 2, first.history)
    assert first.metrics["rounds"] == 2
    assert [g.prompt.id for g in second.groups["a"]][:3] == [p.id for p in batch(pool, LOOP, 2)]
    assert len(second.history["a"]) == 2


def test_the_loss_is_grpos() -> None:
    x = ratio_inputs([[1.0, 1.4, 0.7], [0.9, 0.6]], [1.2, -0.7])
    value, gradient, _ = evaluate(DYNAMIC, x)
    # rho a: 1.2, 1.28 * 1.2 = 1.536, .84; -.63, clip .8: -.56 -> sum 2.386, over 5 tokens.
    assert value == pytest.approx(-2.386 / 5, abs=1e-12)
    assert evaluate(GRPO, x)[0] == value
    torch.testing.assert_close(gradient, numeric(DYNAMIC, x), atol=1e-8, rtol=0)
