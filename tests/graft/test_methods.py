"""METHODS: every entry binds, every hyperparameter moves a number, and errors say what is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from graft.aggregation import Totals
from graft.losses import LossInputs
from graft.methods import METHODS, RANGES, ROLES, Method, build_method, keyword_only
from graft.types import SequenceGroup
from tests.graft.tiny import group, inputs, sequence

KNOBS = [(name, knob) for name, m in METHODS.items() for knob in m.hyperparameters]
COUNTS = {"a": (0, 3, 1, 0, 4, 2, 0), "b": (2, 0, 3, 1, 0, 0, 4)}


def probe_inputs() -> LossInputs:
    """An own and a peer row; ratios from 0.4 to 2.2 so that every clip and shape matters."""
    ratios = [[1.0, 0.4, 1.1, 2.2], [0.9, 1.15, 0.7, 1.6], [1.3, 0.8, 1.0, 0.6]]
    old = [[-1.0, -0.5, -2.0, -1.5]] * 3
    logp = [[o + float(np.log(r)) for o, r in zip(x, y, strict=True)] for x, y in zip(old, ratios, strict=True)]
    x = inputs(logp, old, [1.2, -0.6, 0.7], weights=[1.0, 0.9, 0.85], peer=[False, False, True])
    return replace(x, minibatch_index=2, source_mean=x.source_mean - 1.2)


def probe(method: Method) -> list[float]:
    """Everything that a method computes on one fixed situation, as one list of numbers."""
    groups = {m: tuple(group(f"p{i}", m, [1.0] * k + [0.0] * (4 - k)) for i, k in enumerate(ks)) for m, ks in COUNTS.items()}
    one = {m: gs[2] for m, gs in groups.items()}
    numbers: list[float] = [*method.bound("own_advantage")(one, "a", "a"), *method.bound("peer_advantage")(one, "b", "a")]
    chosen = method.bound("selection")(groups, np.random.default_rng(0))
    numbers += [float(f"p{i}" in set(qs)) for _, qs in sorted(chosen.selected.items()) for i in range(7)]
    moved = method.bound("transfer")(one["a"], one["b"], np.random.default_rng(0))
    numbers += [float(moved.keep_own), *(float(i in moved.indices) for i in range(4))]
    scores = [0.05, 0.3, 0.5, 0.65, 0.75, 0.79, 0.81, 0.85, 0.92, 1.1, 1.5, 5.0]
    admitted = method.bound("admission")(scores, np.random.default_rng(0))
    numbers += [-1.0 if a.weight is None else a.weight for a in admitted]
    logp = probe_inputs().logprobs.clone().requires_grad_()
    loss, _ = method.loss()(replace(probe_inputs(), logprobs=logp), Totals(12, 3, 4, 1))
    loss.backward()
    assert logp.grad is not None
    return [*numbers, float(loss.detach()), *logp.grad.flatten().tolist()]


@pytest.mark.parametrize("name", METHODS)
def test_every_role_of_every_method_works_and_repeats(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.differs
    assert all(d[0].isdigit() for d in method.differs)
    numbers = probe(method)
    assert np.isfinite(numbers).all()
    assert numbers == probe(method)


@pytest.mark.parametrize("name", METHODS)
def test_order_keeps_every_sequence_once(name: str) -> None:
    own = [SequenceGroup(f"a{i}", False, (sequence((i + 1,), (-1.0,), 1.0),)) for i in range(5)]
    peer = [SequenceGroup(f"b{i}", True, (sequence((i + 101,), (-1.0,), 1.0, source="b"),)) for i in range(3)]
    got = METHODS[name].bound("order")(own, peer, 2, np.random.default_rng(0))
    ids = sorted(s.response_ids[0] for m in got for s in m.sequences)
    assert ids == [1, 2, 3, 4, 5, 101, 102, 103]
    assert [m.index for m in got] == list(range(len(got)))


@pytest.mark.parametrize(("name", "knob"), KNOBS)
def test_every_hyperparameter_moves_a_number(name: str, knob: str) -> None:
    method = METHODS[name]
    low, high = RANGES[knob]
    value = method.hyperparameters[knob]
    candidates = [x for x in (value * 0.5, value * 2, (low + min(high, 1e3)) / 2, low, min(high, 1e3)) if low <= x <= high]
    before = np.array(probe(method))
    after = [np.array(probe(method.with_hyperparameters(**{knob: x}))) for x in candidates if x != value]
    assert any(not np.allclose(before, x, rtol=0, atol=1e-9) for x in after), f"{knob} of {name} does nothing"


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.zero_at_zero_advantage])
@pytest.mark.parametrize(("a", "w"), [(0.0, 1.0), (1.0, 0.0)])
def test_declared_zero_rows_are_exactly_zero(name: str, a: float, w: float) -> None:
    x = probe_inputs()
    logp = x.logprobs.clone().requires_grad_()
    ones = torch.ones_like(x.advantages)
    value, _ = METHODS[name].loss()(replace(x, logprobs=logp, advantages=a * ones, weights=w * ones), Totals(12, 3, 4, 1))
    value.backward()
    assert float(value.detach()) == 0.0
    assert logp.grad is not None
    assert not logp.grad.any()


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameters_are_those_that_have_a_reader(name: str) -> None:
    method = METHODS[name]
    assert set(method.hyperparameters) == {k for role in ROLES for k in keyword_only(getattr(method, role))}
    with pytest.raises(ValueError, match=r"without a reader: \['fancy'\]"):
        replace(method, hyperparameters={**method.hyperparameters, "fancy": 1.0})
    with pytest.raises(ValueError, match=r"without a value: \['advantage_eps'\]"):
        replace(method, hyperparameters={k: v for k, v in method.hyperparameters.items() if k != "advantage_eps"})


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match="grpo has no hyperparameter delta; it has advantage_eps, clip_high, clip_low"):
        build_method("grpo", {"delta": 0.7})
    with pytest.raises(ValueError, match="unknown method 'graff'; known: grpo, graft"):
        build_method("graff", {})


@pytest.mark.parametrize("value", [-0.1, 11.0, float("nan")])
def test_values_out_of_range_name_the_range(value: float) -> None:
    with pytest.raises(ValueError, match=r"delta = .* is outside \[0.0, 10.0\]"):
        build_method("graft", {"delta": value})


def test_the_papers_values() -> None:
    assert dict(METHODS["graft"].hyperparameters) == {"advantage_eps": 1e-6, "clip_low": 0.2, "clip_high": 0.28, "delta": 0.8}
    assert METHODS["graft"].joint
    assert not METHODS["grpo"].joint
    assert build_method("graft", {"delta": 0.7}).hyperparameters["delta"] == 0.7
    assert METHODS["graft"].hyperparameters["delta"] == 0.8  # the entry itself never changes
    with pytest.raises(TypeError):
        METHODS["graft"].hyperparameters["delta"] = 0.1  # type: ignore[index]
