"""GRAFT from a log by hand: what moves without balancing, one direction, re-verified rewards; and it is the live exchange otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graft import selection, trajectories
from graft.batches import LoopSettings, batch
from graft.composition import Difference, changed, variant
from graft.cotrain import Setup, run_step
from graft.exchange import exchange
from graft.methods import METHODS
from graft.retokenize import Sender
from graft.stored import Log, LogPeer
from graft.types import Group, Prompt, SamplingSettings, Verdict
from tests.graft import tiny
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["graft_stored"], METHODS["graft"]
RNG = np.random.default_rng(0)
ADMIT_ALL = variant(METHOD, "ungated", Difference("no gate", "admission", "delta"), admission=METHODS["wo_compat_gate"].admission)


def test_differs_in_direction_peers_and_selection() -> None:
    assert changed(METHOD, GRAFT) == {"joint", "peers", "selection"}
    assert METHOD.stored
    assert not METHOD.joint
    with pytest.raises(ValueError, match="no run of the method can be joint"):
        replace(METHOD, joint=True)


def test_the_unbalanced_selection_by_hand() -> None:
    # n = 4. p0: 0 against 1, moves. p1: 0 against 4, all passed: nothing to learn, stays. p2: 0 against 0. p3: 0 against 3, moves.
    # p4: the receiver has one success. a has nothing to give back, so m would be 0 under GRAFT.
    groups = at.groups({"a": (0, 0, 0, 0, 1), "b": (1, 4, 0, 3, 2)})
    chosen = METHOD.bound("selection")(groups, RNG)
    assert chosen.selected["b", "a"] == chosen.candidates["b", "a"] == ("p0", "p3")
    assert chosen.limits["b", "a"] == 2
    assert chosen.selected["a", "b"] == ()
    assert GRAFT.bound("selection")(groups, RNG).selected["b", "a"] == ()
    assert selection.rescue(groups, RNG).selected["b", "a"] == ("p0", "p1", "p3")


def from_log(counts: dict[str, tuple[int, ...]], scores: dict[str, float] | None = None, **changes: object):
    """a learns, b's groups are a log's: no policy of b is there."""
    groups = at.groups(counts)
    groups["b"] = tuple(replace(g, prompt_ids=(), **changes) for g in groups["b"])  # type: ignore[arg-type]
    receivers = {"a": at.Reader(at.CODECS["a"], scores or {})}
    return exchange(groups, METHOD, RNG, receivers=receivers, senders={"b": at.CODECS["b"]}), receivers["a"]


def test_a_stored_exchange_step_by_hand() -> None:
    # p0: b solved 1 of 4. a = (1.5, -.5, -.5, -.5) up to eps; scores .79 (dropped), .81, .95, 1.3 (weight 1).
    got, reader = from_log({"a": (0, 2), "b": (1, 2)}, {"b00": 0.79, "b01": 0.81, "b02": 0.95, "b03": 1.3})
    assert at.weights(got, "a") == pytest.approx({"b01": 0.81, "b02": 0.95, "b03": 1.0})
    assert at.advantages(got, "a") == pytest.approx(dict.fromkeys(("b01", "b02", "b03"), -0.5), abs=1e-5)
    assert sorted(reader.asked) == ["b00", "b01", "b02", "b03"]  # one forward pass over what is offered, nothing else
    assert [g.prompt_id for g in got.own["a"]] == ["p1"]
    assert set(got.own) == {"a"}
    # The one direction is the only one reported; candidates, m, selected, used, offered, admitted.
    assert [(d.source, d.receiver) for d in got.report.directions] == [("b", "a")]
    assert at.direction(got, "b", "a") == (1, 1, 1, 1, 4, 3)
    # As tokens of a they are 5, 6 and 7 long: J = (.81 * -.5 * 5 + .95 * -.5 * 6 + 1 * -.5 * 7) / 18 = -8.375 / 18
    (minibatch,) = METHOD.bound("order")((), got.peer["a"], 1, RNG)
    assert at.objective(METHOD, minibatch) == pytest.approx(-8.375 / 18, abs=1e-5)


def test_it_is_the_live_exchange_where_that_balances_nothing() -> None:
    # One candidate each way: m = 1 and GRAFT moves the same prompt to a.
    counts = {"a": (0, 2, 0), "b": (3, 0, 0)}
    live = at.moved(GRAFT, counts, {"b01": 0.9, "b02": 0.5})
    stored, _ = from_log(counts, {"b01": 0.9, "b02": 0.5})
    assert stored.own["a"] == live.own["a"]
    assert stored.peer["a"] == live.peer["a"]


def bare(groups: tuple[Group, ...], mean: float | None) -> tuple[Group, ...]:
    """As a log without ids has them."""
    return tuple(
        replace(g, responses=tuple(replace(r, ids=(), logprobs=(), mean_logprob=mean) for r in g.responses)) for g in groups
    )


def test_a_mean_is_all_that_is_needed_of_the_source() -> None:
    groups = at.groups({"a": (0,), "b": (1,)})
    only_means = {"a": groups["a"], "b": bare(groups["b"], -1.0)}
    whole, means = (
        exchange(g, METHOD, RNG, receivers={"a": at.Reader(at.CODECS["a"], {"b01": 0.9})}) for g in (groups, only_means)
    )
    assert means.peer == whole.peer


def test_without_log_probs_only_a_method_that_compares_none_works() -> None:
    groups = at.groups({"a": (0,), "b": (1,)})
    groups["b"] = bare(groups["b"], None)
    assert METHOD.needs_source_logprobs
    with pytest.raises(ValueError, match="graft_stored compares log-probs, and the log of b has none for 4 responses"):
        exchange(groups, METHOD, RNG, receivers={"a": at.Reader(at.CODECS["a"])})
    assert not ADMIT_ALL.needs_source_logprobs
    assert METHODS["hacpo"].needs_source_logprobs  # no gate, but its loss reads them
    got = exchange(groups, ADMIT_ALL, RNG, receivers={"a": at.Reader(at.CODECS["a"])})
    assert at.weights(got, "a") == dict.fromkeys(("b00", "b01", "b02", "b03"), 1.0)
    assert [r.score for r in got.report.rows] == [None] * 4


SAMPLING = SamplingSettings(1.0, 1.0, tiny.LIMIT)


def judged(wins: set[str]):
    """A verifier that knows the answers: a text is correct if it is in ``wins``."""
    return lambda items: [Verdict(text in wins, None, "equal" if text in wins else "different") for _, text in items]


def test_one_step_from_a_log_trains_as_beside_the_live_donor(tiny_dirs: dict[str, Path], tmp_path: Path) -> None:
    prompts = tiny.prompts(4)
    settings = LoopSettings(0, 1, 4, 2, 4, SAMPLING)
    order = batch(prompts, settings, 1)
    donor, receiver = tiny.policy(tiny_dirs["small"], "b"), tiny.policy(tiny_dirs["quick"], "a")
    # What b samples in this step; its first answer to each of two prompts is right, and a fails everywhere but on the last.
    first = run_step(Setup({"b": donor}, METHODS["grpo"], settings, judged(set())), prompts, 1).groups["b"]
    right = {g.responses[0].text for g in first[:2]}
    donor = tiny.policy(tiny_dirs["small"], "b")
    alone = run_step(Setup({"b": donor}, METHODS["grpo"], settings, judged(right)), prompts, 1)
    senders = {"b": Sender(donor.codec.fingerprint, donor.codec.special_ids)}
    trajectories.append(tmp_path, 1, alone.groups, trajectories.Facts(0, SAMPLING, senders))
    peer = LogPeer(Log.of(tmp_path), "b", 4, "step", (tuple(p.id for p in order),))
    # The log's reward of one response is disputed by the verifier of today.
    disputed = right - {first[1].responses[0].text}
    got = run_step(Setup({"a": receiver}, METHOD, settings, judged(disputed), peer=peer), prompts, 1)
    assert got.metrics["stored"]["disagreements"] == sum(
        r.text not in disputed for g in first for r in g.responses if r.text in right
    )
    assert got.metrics["stored"]["responses"] == 16
    (direction,) = got.metrics["exchange"]
    assert (direction["source"], direction["receiver"], direction["candidates"]) == ("b", "a", 1)
    assert set(got.groups) == {"a"}
    # The same receiver beside the donor's own groups, taught by hand: bit for bit.
    again = tiny.policy(tiny_dirs["quick"], "a")
    own = got.groups["a"]
    live = {
        "a": own,
        "b": tuple(replace(g, responses=tuple(replace(r, reward=float(r.text in disputed)) for r in g.responses)) for g in first),
    }
    moved = exchange(live, METHOD, np.random.default_rng(0), receivers={"a": again}, senders={"b": donor.codec})
    for m in METHOD.bound("order")(moved.own["a"], moved.peer["a"], 2, np.random.default_rng(0)):
        again.update(m, METHOD.loss())
    assert again.weights_sha256() == receiver.weights_sha256()


def test_a_setup_must_have_the_peer_that_its_method_has(tiny_dirs: dict[str, Path], tmp_path: Path) -> None:
    policy = tiny.policy(tiny_dirs["quick"], "a")
    settings = LoopSettings(0, 1, 4, 2, 4, SAMPLING)
    made = tiny.response("x", 1.0)
    trajectories.append(tmp_path, 1, {"a": (Group(Prompt("p", "q", "1"), "a", (1,), (made,)),)}, trajectories.Facts(0, SAMPLING))
    peer = LogPeer(Log.of(tmp_path), "b", 4, "step", (("p",),))
    with pytest.raises(ValueError, match=r"graft_stored learns from a finished run's log; pass peer="):
        Setup({"a": policy}, METHOD, settings, judged(set()))
    with pytest.raises(ValueError, match="grpo has no stored peer"):
        Setup({"a": policy}, METHODS["grpo"], settings, judged(set()), peer=peer)
    with pytest.raises(ValueError, match="cannot be its own peer"):
        Setup({"a": policy}, METHOD, settings, judged(set()), peer=replace(peer, model="a"))
