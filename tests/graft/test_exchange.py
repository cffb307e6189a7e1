"""One step's exchange: scores by hand with scripted receivers, identical copies with real ones, the report, the errors."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graft.aggregation import Totals
from graft.exchange import Exchange, exchange
from graft.methods import METHODS
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, Prompt, Response, SamplingSettings, StepKey
from tests.graft import tiny

GRPO, GRAFT = METHODS["grpo"], METHODS["graft"]
QUICK, SMALL = tiny.codec("quick"), tiny.codec("small")


class Scripted:
    """A receiver whose mean log-prob of a text is looked up, -1 per token where nothing is said."""

    def __init__(self, codec: TextCodec, means: dict[str, float] | None = None, limit: int = 40):
        self.codec, self.max_response_tokens, self.means = codec, limit, means or {}
        self.asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def score(self, items: Seq[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[float, ...]]:
        self.asked += items
        return [(self.means.get(self.codec.response_text(r), -1.0),) * len(r) for _, r in items]


def group(q: str, model: str, rewards: Seq[float], codec: TextCodec, *, texts: Seq[str] | None = None) -> Group:
    """Responses "<model> <q> r<i>" that stopped by EOS, -1 per token at the sender."""
    responses = []
    for i, r in enumerate(rewards):
        ids = (*codec.encode(texts[i] if texts else f"{model} {q} r{i}"), codec.eos_id)
        responses.append(Response(ids, (-1.0,) * len(ids), codec.response_text(ids), "eos", r))
    prompt = Prompt(q, f"prompt {q}", "1")
    return Group(prompt, model, codec.render(prompt), tuple(responses))


def crossing(*, texts: Seq[str] | None = None) -> dict[str, tuple[Group, ...]]:
    """p0: a mixed (1 of 4), b all fail. p1: the reverse (3 of 4). p2: both fail. p3: both pass. p4: both mixed."""
    fail, full, one, three = [0.0] * 4, [1.0] * 4, [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    a = [one, fail, fail, full, one]
    b = [fail, three, fail, full, three]
    return {
        "a": tuple(group(f"p{i}", "a", r, QUICK, texts=texts if i == 0 else None) for i, r in enumerate(a)),
        "b": tuple(group(f"p{i}", "b", r, SMALL) for i, r in enumerate(b)),
    }


def run(groups: dict[str, tuple[Group, ...]], receivers: dict[str, Scripted], delta: float = 0.8) -> Exchange:
    return exchange(groups, GRAFT.with_hyperparameters(delta=delta), np.random.default_rng(0), receivers=receivers)


def both(means: dict[str, float] | None = None, limit: int = 40) -> dict[str, Scripted]:
    return {"a": Scripted(QUICK), "b": Scripted(SMALL, means, limit)}


def test_scores_weights_and_advantages_by_hand() -> None:
    # b's means of a's four texts at sender mean -1: s = .79 (dropped), .81, .95, 1.3 (capped at 1).
    # 1 of 4: mean .25, std sqrt((.5625 + 3*.0625)/3) = .5; a = .75/.500001 = 1.499997, -.25/.500001 = -.499999.
    receivers = both({f"a p0 r{i}": -1.0 + math.log(s) for i, s in enumerate((0.79, 0.81, 0.95, 1.3))})
    got = run(crossing(), receivers)
    rows = [r for r in got.report.rows if r.receiver == "b"]
    assert [r.score for r in rows] == pytest.approx([0.79, 0.81, 0.95, 1.3])
    assert [r.weight for r in rows] == [None, *(pytest.approx(x) for x in (0.81, 0.95, 1.0))]
    assert [r.advantage for r in rows] == pytest.approx([1.499997] + [-0.499999] * 3, abs=1e-6)
    (grafted,) = got.peer["b"]
    # The success was dropped; the failures keep the advantages of the FULL group and are not normalised again.
    assert [s.advantage for s in grafted.sequences] == pytest.approx([-0.499999] * 3, abs=1e-6)
    assert [s.weight for s in grafted.sequences] == pytest.approx([0.81, 0.95, 1.0])


def test_old_logprobs_prompt_and_ids_are_the_receivers() -> None:
    receivers = both({"a p0 r1": -1.1})
    got = run(crossing(), receivers)
    s = got.peer["b"][0].sequences[1]
    assert (s.source, s.receiver, s.is_peer) == ("a", "b", True)
    assert s.response_ids == (*SMALL.encode("a p0 r1"), SMALL.eos_id)
    assert s.old_logprobs == (-1.1,) * len(s.response_ids)
    assert s.source_mean_logprob == -1.0
    assert s.prompt_ids == SMALL.render(Prompt("p0", "prompt p0", "1")) == receivers["b"].asked[0][0]
    assert len(receivers["b"].asked) == 4
    assert len(receivers["a"].asked) == 4


def test_replaced_groups_leave_and_everything_else_stays_in_order() -> None:
    got = run(crossing(), both())
    assert [g.prompt_id for g in got.own["a"]] == ["p0", "p2", "p3", "p4"]
    assert [g.prompt_id for g in got.peer["a"]] == ["p1"]
    assert [g.prompt_id for g in got.own["b"]] == ["p1", "p2", "p3", "p4"]
    assert [g.prompt_id for g in got.peer["b"]] == ["p0"]
    # Zero-variance groups stay, with advantage exactly 0.
    assert {s.advantage for g in got.own["a"][1:3] for s in g.sequences} == {0.0}
    assert all(s.weight == 1.0 and not s.is_peer for g in got.own["a"] for s in g.sequences)


def test_report_counts_and_reasons() -> None:
    receivers = both({"a p0 r0": -9.0})
    got = run(crossing(texts=("a p0 r0", "a p0 r1", "<|user|>", "far too long for forty tokens " * 4)), receivers)
    there, back = got.report.directions
    assert (there.source, there.receiver, there.candidates, there.m, there.selected, there.used) == ("a", "b", 1, 1, 1, 1)
    assert (there.offered, there.admitted, back.offered, back.admitted) == (4, 1, 4, 4)
    assert got.report.reasons("b") == {"admitted": 1, "below delta": 1, "over length": 1, "special token": 1}
    assert got.report.reasons("a") == {"admitted": 4}
    assert dict(got.report.all_fail) == {"a": 2, "b": 2}
    assert dict(got.report.all_pass) == {"a": 1, "b": 1}
    by_index = {r.index: r for r in got.report.rows if r.receiver == "b"}
    assert by_index[2].score is None
    assert by_index[3].weight is None
    assert by_index[0].weight is None


def test_unbalanced_ties_are_used_in_full() -> None:
    # C_ab = two prompts with 1 success each, C_ba = one: m = 1, both tied prompts move.
    one, fail = [1.0, 0.0], [0.0, 0.0]
    groups = {
        "a": tuple(group(f"p{i}", "a", r, QUICK) for i, r in enumerate([one, one, fail])),
        "b": tuple(group(f"p{i}", "b", r, SMALL) for i, r in enumerate([fail, fail, one])),
    }
    there, back = run(groups, both()).report.directions
    assert (there.candidates, there.m, there.selected, back.candidates, back.m, back.selected) == (2, 1, 2, 1, 1, 1)


def test_a_group_dropped_whole_counts_nowhere() -> None:
    got = run(crossing(), both({f"a p0 r{i}": -9.0 for i in range(4)}))
    (empty,) = got.peer["b"]
    assert empty.prompt_id == "p0"
    assert empty.sequences == ()
    minibatches = GRAFT.bound("order")(got.own["b"], got.peer["b"], 1, np.random.default_rng(0))
    assert len(minibatches) == 4  # five prompts, one of them without a response: no step on nothing


@pytest.mark.parametrize("drop", [(1,), (0, 2)])
def test_dropped_responses_change_nothing(tiny_dirs: dict[str, Path], drop: tuple[int, ...]) -> None:
    # The gate drops some of a's responses; the minibatch must equal one built as if they had never been offered.
    b = tiny.policy(tiny_dirs["small"], "b")
    groups = crossing()
    offered = groups["a"][0]
    items = [(groups["b"][0].prompt_ids, (*SMALL.encode(r.text), SMALL.eos_id)) for r in offered.responses]
    means = [sum(x) / len(x) for x in b.score(items)]
    # Sender log-probs chosen so that s = exp(-1) for the dropped and exp(-.1) for the others.
    responses = tuple(
        replace(r, logprobs=(m + (1.0 if i in drop else 0.1),) * len(r.ids))
        for i, (r, m) in enumerate(zip(offered.responses, means, strict=True))
    )
    groups["a"] = (replace(offered, responses=responses), *groups["a"][1:])
    got = run(groups, {"a": Scripted(QUICK), "b": b})  # type: ignore[dict-item]
    kept = got.peer["b"][0].sequences
    assert [s.response_ids for s in kept] == [items[i][1] for i in range(4) if i not in drop]
    own = got.own["b"][0].sequences
    minibatch = Minibatch(0, (*own, *kept))
    assert Totals.of(minibatch).tokens == sum(len(s.response_ids) for s in own) + sum(
        len(items[i][1]) for i in range(4) if i not in drop
    )
    # eq. 10 at rho = 1 over the kept responses: J = sum w a |o| / sum |o| (own log-probs are scripted here, so peers alone).
    _, metrics = tiny.gradients(b, Minibatch(0, kept), GRAFT.loss())
    expected = -sum(s.weight * s.advantage * len(s.response_ids) for s in kept) / sum(len(s.response_ids) for s in kept)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["peer_tokens"] == sum(len(s.response_ids) for s in kept)


def test_an_identical_copy_scores_one_for_every_response(tiny_dirs: dict[str, Path]) -> None:
    policies = {name: tiny.policy(tiny_dirs["quick"], name) for name in "ab"}
    sampled = {
        name: p.generate(
            tiny.prompts(6), n=4, key=StepKey(0, f"train/{name}", 1), sampling=SamplingSettings(1.0, 1.0, tiny.LIMIT)
        )
        for name, p in policies.items()
    }
    # Rewards by fiat: a solves the even prompts, b the odd ones, so that every group moves.
    groups = {
        name: tuple(
            replace(g, responses=tuple(replace(r, reward=float(i == 0 and j % 2 == k)) for i, r in enumerate(g.responses)))
            for j, g in enumerate(gs)
        )
        for k, (name, gs) in enumerate(sampled.items())
    }
    got = exchange(groups, GRAFT, np.random.default_rng(0), receivers=policies)
    scored = [r for r in got.report.rows if r.score is not None]
    assert len(scored) > 15
    assert {r.reason for r in got.report.rows} <= {"admitted", "empty", "special token"}
    assert all(abs((r.score or 0) - 1.0) < 1e-5 and (r.weight or 0) > 0.99999 for r in scored)
    sent = {r.ids for gs in sampled.values() for g in gs for r in g.responses}
    assert all(s.response_ids in sent for gs in got.peer.values() for g in gs for s in g.sequences)


def test_own_ids_are_never_encoded_again() -> None:
    letters = tuple(QUICK.encode(c)[0] for c in "Ben")
    assert QUICK.encode("Ben") != letters
    r = Response(letters, (-0.5, -1.0, -1.5), "Ben", "length", 1.0)
    g = Group(Prompt("p0", "prompt p0", "1"), "a", (5, 6), (r, replace(r, reward=0.0)))
    got = exchange({"a": (g,)}, GRPO, np.random.default_rng(0))
    (s, _) = got.own["a"][0].sequences
    assert (s.response_ids, s.old_logprobs, s.prompt_ids, s.source_mean_logprob) == (letters, r.logprobs, (5, 6), -1.0)


def test_a_donor_gives_and_does_not_learn() -> None:
    got = run(crossing(), {"b": Scripted(SMALL)})
    assert set(got.own) == set(got.peer) == {"b"}
    # Nothing can flow towards a donor, so that direction is not reported.
    assert [(d.source, d.used, d.offered) for d in got.report.directions] == [("a", 1, 4)]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")])
def test_of_two_sources_the_one_with_more_successes_teaches_once(names: tuple[str, ...]) -> None:
    # c fails p0; a has 1 and b has 2 of 4. c returns the favour on p1, so that both directions balance at m = 1.
    wins = {"a": (1, 0), "b": (2, 0), "c": (0, 1)}
    groups = {m: tuple(group(f"p{i}", m, [1.0] * k + [0.0] * (4 - k), QUICK) for i, k in enumerate(wins[m])) for m in names}
    got = run(groups, {m: Scripted(QUICK) for m in names})
    assert {s.source for g in got.peer["c"] for s in g.sequences} == {"b"}
    assert {(d.source, d.receiver): d.used for d in got.report.directions if d.receiver == "c"} == {("a", "c"): 0, ("b", "c"): 1}


def test_independent_training_is_an_exchange_of_nothing() -> None:
    got = exchange(crossing(), GRPO, np.random.default_rng(0))
    assert all(len(g) == 5 for g in got.own.values())
    assert not any(got.peer.values())
    assert got.report.rows == ()


def broken(**changes: object) -> dict[str, tuple[Group, ...]]:
    groups = crossing()
    return {**groups, "b": (replace(groups["b"][0], **changes), *groups["b"][1:])}  # type: ignore[arg-type]


def test_different_prompts_are_an_error_that_says_where() -> None:
    with pytest.raises(ValueError, match="position 0: 'p0' and 'x'"):
        run(broken(prompt=Prompt("x", "m", "g")), both())
    groups = crossing()
    with pytest.raises(ValueError, match="lengths differ"):
        run({**groups, "b": groups["b"][:4]}, both())
    with pytest.raises(ValueError, match="position 0: 'p0' and 'p1'"):
        run({**groups, "b": (groups["b"][1], groups["b"][0], *groups["b"][2:])}, both())


def test_groups_that_lost_a_member_repeat_or_belong_elsewhere_are_errors() -> None:
    groups = crossing()
    with pytest.raises(ValueError, match=r"group sizes differ within one step: \[3, 4\]"):
        run(broken(responses=groups["b"][0].responses[:3]), both())
    with pytest.raises(ValueError, match="belongs to another model"):
        run(broken(model="c"), both())
    with pytest.raises(ValueError, match="occurs twice"):
        run({m: (*gs, gs[0]) for m, gs in groups.items()}, both())


@pytest.mark.parametrize("method", [GRPO, GRAFT], ids=["grpo", "graft"])
def test_unverified_responses_are_errors(method) -> None:  # type: ignore[no-untyped-def]
    first = crossing()["b"][0].responses
    groups = broken(responses=(replace(first[0], reward=None), *first[1:]))
    with pytest.raises(ValueError, match=r"prompt 'p0', model 'b': responses \[0\] have no reward"):
        exchange(groups, method, np.random.default_rng(0), receivers=both())
    with pytest.raises(ValueError, match="not finite"):
        replace(first[0], reward=math.nan)


def test_scoring_needs_receivers() -> None:
    with pytest.raises(ValueError, match="pass receivers="):
        exchange(crossing(), GRAFT, np.random.default_rng(0))


def test_nothing_scorable_is_fine() -> None:
    got = run(crossing(texts=["<|user|>"] * 4), both())
    assert got.report.reasons("b") == {"special token": 4}
    assert got.peer["b"][0].sequences == ()
    assert torch.is_grad_enabled()
