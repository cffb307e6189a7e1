"""Three models: ordered pairs, balance per unordered pair, one teacher per prompt, all sources for HACPO and naive sharing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from graft.exchange import Exchange, exchange
from graft.methods import METHODS
from tests.methods import graft_situations as at

GRAFT = METHODS["graft"]


def used(got: Exchange) -> dict[str, int]:
    """{"ab": prompts that a taught b}."""
    return {d.source + d.receiver: d.used for d in got.report.directions}


def teacher(got: Exchange, receiver: str, prompt: str) -> set[str]:
    return {s.source for g in got.peer[receiver] if g.prompt_id == prompt for s in g.sequences}


# c fails p0. a and b can both teach it; c pays back on p1 (to a and b, which fail there), so every pair balances at m = 1.
def contest(a: int, b: int) -> dict[str, tuple[int, ...]]:
    return {"a": (a, 0), "b": (b, 0), "c": (0, 2)}


@pytest.mark.parametrize("names", list(permutations("abc")))
def test_the_higher_success_count_teaches(names: tuple[str, ...]) -> None:
    counts = contest(1, 3)
    # b scores .85 and a 1: successes come before compatibility.
    got = at.moved(GRAFT, {m: counts[m] for m in names}, {f"b0{j}": 0.85 for j in range(4)})
    assert teacher(got, "c", "p0") == {"b"}
    assert used(got) == {"ab": 0, "ba": 0, "ac": 0, "bc": 1, "ca": 1, "cb": 1}
    # Both directions into c selected p0; only b's was offered.
    assert at.direction(got, "a", "c") == (1, 1, 1, 0, 0, 0)
    assert at.direction(got, "b", "c") == (1, 1, 1, 1, 4, 4)
    assert list(at.weights(got, "c").values()) == pytest.approx([0.85] * 4)


@pytest.mark.parametrize("names", list(permutations("abc")))
def test_of_equal_counts_the_higher_mean_compatibility_teaches(names: tuple[str, ...]) -> None:
    counts = contest(2, 2)
    # Means: a (.9 + .9 + .9 + .9)/4 = .9, b (1.2 + .9 + .9 + .9)/4 = .975, a single low one does not decide.
    scores = {**{f"{m}0{j}": 0.9 for m in "ab" for j in range(4)}, "b00": 1.2}
    got = at.moved(GRAFT, {m: counts[m] for m in names}, scores)
    assert teacher(got, "c", "p0") == {"b"}
    low = at.moved(GRAFT, {m: counts[m] for m in names}, {**scores, "b03": 0.5})  # (1.2 + .9 + .9 + .5)/4 = .875
    assert teacher(low, "c", "p0") == {"a"}


@pytest.mark.parametrize("names", list(permutations("abc")))
def test_of_equal_compatibility_the_first_name_teaches(names: tuple[str, ...]) -> None:
    counts = contest(2, 2)
    got = at.moved(GRAFT, {m: counts[m] for m in names})
    assert teacher(got, "c", "p0") == {"a"}
    assert used(got) == {"ab": 0, "ba": 0, "ac": 1, "bc": 0, "ca": 1, "cb": 1}


def test_a_source_whose_texts_cannot_be_exchanged_loses_the_tie() -> None:
    # a's texts on p0 hold a replacement character, so none has a score (mean 0); b's score .1 each, and the gate drops them.
    made = at.groups(contest(2, 2))
    first = made["a"][0]
    broken = replace(first, responses=tuple(replace(r, text=r.text + "\ufffd") for r in first.responses))
    got = at.moved(GRAFT, {**made, "a": (broken, *made["a"][1:])}, {f"b0{j}": 0.1 for j in range(4)})
    assert {r.source for r in got.report.rows if r.receiver == "c"} == {"b"}
    assert got.report.reasons("c") == {"below delta": 4}
    # Where no source can be exchanged, the name decides and c's group is gone: the prompt counts nowhere.
    readers = {m: at.Reader(at.CODECS[m], {}, 9 if m == "c" else 99) for m in "abc"}
    nothing = exchange(made, GRAFT, np.random.default_rng(0), receivers=readers)
    assert {r.source for r in nothing.report.rows if r.receiver == "c"} == {"a"}
    assert nothing.report.reasons("c") == {"over length": 4}
    assert at.names(at.trained(nothing, GRAFT, "c")) == [["c1"]]


def test_directions_are_ordered_pairs_and_balance_is_per_pair() -> None:
    # a-b: C_ab = p0 (3), p1 (1); C_ba = p2: m = 1 -> p0 there, p2 back.
    # a-c: C_ac = p1; C_ca = none (c solves only p3, where a is mixed): m = 0.
    # b-c: C_bc = p2; C_cb = none (c fails wherever b fails): m = 0. A surplus of one pair does not feed another.
    counts = {"a": (3, 1, 0, 2), "b": (0, 0, 1, 2), "c": (4, 0, 0, 2)}
    got = at.moved(GRAFT, counts)
    assert {d.source + d.receiver: (d.candidates, d.m, d.selected) for d in got.report.directions} == {
        "ab": (2, 1, 1),
        "ba": (1, 1, 1),
        "ac": (1, 0, 0),
        "ca": (0, 0, 0),
        "bc": (1, 0, 0),
        "cb": (0, 0, 0),
    }
    assert used(got) == {"ab": 1, "ba": 1, "ac": 0, "ca": 0, "bc": 0, "cb": 0}
    assert at.names(at.trained(got, GRAFT, "c")) == [["c0"], ["c1"], ["c2"], ["c3"]]


def test_one_receiver_can_learn_different_prompts_from_different_sources() -> None:
    # c fails p0 (a: 1) and p1 (b: 1); c pays both back on p2 and p3.
    counts = {"a": (1, 0, 0, 2), "b": (0, 1, 2, 0), "c": (0, 0, 1, 3)}
    got = at.moved(GRAFT, counts, {"a00": 0.9})
    assert (teacher(got, "c", "p0"), teacher(got, "c", "p1")) == ({"a"}, {"b"})
    assert at.names(at.trained(got, GRAFT, "c")) == [["c2"], ["c3"], ["a0"], ["b1"]]
    # Each with its own source's statistics (1 of 4: 1.5, -.5) and c's tokens (10, 13, 16, 19).
    assert at.advantages(got, "c") == {
        f"{m}{j}": pytest.approx(1.5 if j == 0 else -0.5, abs=1e-5) for m in ("a0", "b1") for j in range(4)
    }
    assert [len(s.response_ids) for s in at.peers(got, "c").values()] == [10, 13, 16, 19] * 2
    assert at.weights(got, "c")["a00"] == pytest.approx(0.9)
    # J of a's group at rho = 1: (.9*1.5*10 - .5*(13 + 16 + 19)) / 58 = (13.5 - 24) / 58 = -.181034.
    assert at.objective(GRAFT, at.trained(got, GRAFT, "c")[2]) == pytest.approx(-0.181034, abs=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "graft", "wo_compat_gate", "wo_floor", "wo_balancing", "wo_token_ratio", "random_prompts", "random_admission",
        "peer_first", "peer_uniform", "pooled_groups", "success_only", "success_only_wo_floor", "graft_which_sft_update",
        "graft_which_luffy_update", "sgt",
    ],
)  # fmt: skip
def test_these_methods_take_a_prompt_from_one_source(name: str) -> None:
    # Three receivers, each with a prompt that both others solve in part.
    counts = {"a": (0, 2, 1, 2), "b": (1, 0, 2, 2), "c": (2, 1, 0, 2)}
    got = at.moved(METHODS[name], counts, {"b00": 0.9})
    taught = [(receiver, g.prompt_id) for receiver in got.peer for g in got.peer[receiver]]
    assert len(taught) == len(set(taught)) > 0
    for receiver, prompt in taught:
        assert len(teacher(got, receiver, prompt)) <= 1
    if name != "random_prompts":
        # c has more successes than b on p0, and so on round.
        assert [teacher(got, r, p) for r, p in (("a", "p0"), ("b", "p1"), ("c", "p2"))] == [{"c"}, {"a"}, {"b"}]
        assert used(got) == {"ca": 1, "ab": 1, "bc": 1, "ba": 0, "cb": 0, "ac": 0}


@pytest.mark.parametrize("name", ["hacpo", "naive_sharing", "graft_which_hacpo_update"])
def test_these_methods_take_every_source(name: str) -> None:
    counts = {"a": (0, 2), "b": (1, 0), "c": (2, 1)}
    got = at.moved(METHODS[name], counts)
    assert set(used(got).values()) == {2}
    for receiver, others in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        for prompt in ("p0", "p1"):
            assert teacher(got, receiver, prompt) == set(others)
        assert len(got.own[receiver]) == 2


def test_naive_sharing_pools_three_groups() -> None:
    # p0: 0 + 1 + 2 of 12: mean .25, std sqrt((3*.5625 + 9*.0625)/11) = sqrt(2.25/11) = .452267;
    # a = .75/std = 1.658310 and -.25/std = -.552770.
    got = at.moved(METHODS["naive_sharing"], {"a": (0,), "b": (1,), "c": (2,)})
    up, down = pytest.approx(1.658309, abs=1e-5), pytest.approx(-0.552770, abs=1e-5)
    assert at.own_advantages(got, "a", "p0") == [down] * 4
    expected: Mapping[str, object] = {f"{m}0{j}": up if j < k else down for m, k in (("b", 1), ("c", 2)) for j in range(4)}
    assert at.advantages(got, "a") == expected
    assert at.names(at.trained(got, METHODS["naive_sharing"], "a")) == [["a0", "b0", "c0"]]


def test_hacpo_joins_three_groups_and_gives_each_source_a_block() -> None:
    # Learner a (P .2) with b (.4) and c (.8): mu = (0 + 1*.2/.4 + 2*.2/.8) / 12 = 1/12 = .083333; raw sigma .452267 as above.
    # b's success: omega(b, a) = 2 times (1 - .083333)/.452268 = 4.053646; c's: omega 4, 8.107291; own -.184257.
    method = METHODS["hacpo"]
    counts = {"a": (0, 2), "b": (1, 2), "c": (2, 2)}
    got = at.moved(method, counts, capability={"a": 0.2, "b": 0.4, "c": 0.8})
    assert at.advantages(got, "a")["b00"] == pytest.approx(4.053640, abs=1e-4)
    assert at.advantages(got, "a")["c00"] == pytest.approx(8.107281, abs=1e-4)
    assert at.own_advantages(got, "a", "p0") == pytest.approx([-0.184256] * 4, abs=1e-5)
    assert at.names(at.trained(got, method, "a", 2)) == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]
    assert [m.index for m in at.trained(got, method, "a")] == [0, 1, 2, 3, 4, 5]


def test_hacpo_on_grafts_prompts_hears_both_selected_sources() -> None:
    # c fails p0 and pays both back on p1: a and b are both heard on p0, and c alone on p1 by a and b.
    got = at.moved(METHODS["graft_which_hacpo_update"], {**contest(1, 3)})
    heard = {r: {k[:2] for k, a in at.advantages(got, r).items() if a != 0} for r in "abc"}
    assert heard == {"a": {"c1"}, "b": {"c1"}, "c": {"a0", "b0"}}


def test_a_third_model_with_nothing_to_give_changes_nothing() -> None:
    two, three = at.moved(GRAFT), at.moved(GRAFT, {**at.CROSSING, "c": (0, 0, 0, 0, 0)})
    for m in "ab":
        assert (three.own[m], three.peer[m]) == (two.own[m], two.peer[m])
    # c fails p0 and p1, but has nothing to balance with.
    assert not three.peer["c"]
    assert at.direction(three, "a", "c") == (2, 0, 0, 0, 0, 0)  # p0 and p4
