"""METHODS as a whole: every entry binds, differs from its parent exactly as its list says, and every hyperparameter moves a number.

What each method computes is in tests/methods, one file per method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from graft.aggregation import Totals
from graft.batches import LoopSettings
from graft.composition import RANGES, ROLES, STRUCTURE, Difference, Method, changed, keyword_only, variant
from graft.cotrain import Setup
from graft.losses import TRAITS, LossInputs
from graft.methods import METHODS, build_method
from graft.policies.torch_policy import TorchPolicy
from graft.types import SamplingSettings, SequenceGroup
from tests.graft import tiny
from tests.graft.tiny import group, inputs, sequence

KNOBS = [(name, knob) for name, m in METHODS.items() for knob in m.hyperparameters]
COUNTS = {"a": (0, 3, 1, 0, 4, 2, 0, 0), "b": (2, 0, 3, 1, 0, 0, 4, 3)}
CONF = Path(__file__).parents[2] / "sweeps" / "conf" / "method"
DOCS = Path(__file__).parents[2] / "docs" / "methods"


def probe_inputs() -> LossInputs:
    """An own mixed, an own all-fail, and two peer rows; ratios from 0.4 to 2.2 so that every clip and shape matters."""
    ratios = [[1.0, 0.4, 1.1, 2.4], [0.9, 1.15, 0.7, 1.3], [1.3, 0.8, 1.0, 0.6], [1.01, 0.99, 1.0, 1.002]]
    old = [[-1.0, -0.5, -2.0, -1.5]] * 4
    logp = [[o + float(np.log(r)) for o, r in zip(x, y, strict=True)] for x, y in zip(old, ratios, strict=True)]
    x = inputs(logp, old, [1.2, -0.6, 0.7, 0.9], weights=[1.0, 0.9, 0.85, 1.0], peer=[False, False, True, True])
    # Source means that put s of the two peer rows at .83 and .95: below, and inside, HACPO's first bounds.
    mean = x.logprobs.mean(1)
    source = torch.stack([mean[0], mean[1], mean[2] - np.log(0.83), mean[3] - np.log(0.95)])
    entropies = torch.tensor([[0.2, 1.0, 0.5, 0.3]] * 4, dtype=x.logprobs.dtype)
    return replace(
        x,
        minibatch_index=2,
        source_mean=source,
        unanimous=torch.tensor([0, -1, 0, 1]),
        ref_logprobs=x.old_logprobs - 0.2,
        entropies=entropies,
    )


def probe(method: Method) -> list[float]:
    """Everything that a method computes on one fixed situation, as one list of numbers."""
    groups = {m: tuple(group(f"p{i}", m, [1.0] * k + [0.0] * (4 - k)) for i, k in enumerate(ks)) for m, ks in COUNTS.items()}
    one = {m: gs[2] for m, gs in groups.items()}
    history = {"a": (0.9, 0.2, 0.1, 0.1, 0.1, 0.1, 0.02), "b": (0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)}
    able = {m: method.bound("capability")(h) for m, h in history.items()}
    numbers: list[float] = [
        *method.bound("own_advantage")(one, "a", "a", able),
        *method.bound("peer_advantage")(one, "b", "a", able),
    ]
    by_prompt = {f"p{i}": {"a": groups["a"][i]} for i in range(8)}
    for rounds in (1, 3, 10, 99):
        intake = method.bound("intake")(by_prompt, 6, rounds)
        numbers += [float(intake.more), *(float(f"p{i}" in intake.kept) for i in range(8))]
    chosen = method.bound("selection")(groups, np.random.default_rng(0))
    for d, qs in sorted(chosen.selected.items()):
        numbers += [float(f"p{i}" in qs) - 0.5 * (f"p{i}" in chosen.silent.get(d, ())) for i in range(8)]
    for q in (2, 6):
        moved = method.bound("transfer")(groups["a"][q], groups["b"][q], np.random.default_rng(0))
        numbers += [float(moved.keep_own), *(float(i in moved.indices) for i in range(4))]
    scores = [0.05, 0.3, 0.5, 0.65, 0.75, 0.79, 0.81, 0.85, 0.92, 1.1, 1.5, 5.0]
    admitted = method.bound("admission")(scores, np.random.default_rng(0))
    numbers += [-1.0 if a.weight is None else a.weight for a in admitted]
    own = [SequenceGroup(f"p{i}", False, (sequence((i + 1,), (-1.0,), 1.0),)) for i in range(5)]
    peer = [SequenceGroup(f"p{i}", True, (sequence((i + 101,), (-1.0,), 1.0, source="b"),)) for i in (1, 7, 8)]
    for m in method.bound("order")(own, peer, method.minibatches or 3, np.random.default_rng(0)):
        numbers += [*(s.response_ids[0] for s in m.sequences), -1.0]
    logp = probe_inputs().logprobs.clone().requires_grad_()
    loss, _ = method.loss()(replace(probe_inputs(), logprobs=logp), Totals(16, 4, 8, 2))
    loss.backward()
    assert logp.grad is not None
    return [*numbers, float(loss.detach()), *logp.grad.flatten().tolist()]


@pytest.mark.parametrize("name", METHODS)
def test_every_role_of_every_method_works_and_repeats(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.differs
    numbers = probe(method)
    assert np.isfinite(numbers).all()
    assert numbers == probe(method)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.parent])
def test_a_method_differs_from_its_parent_exactly_as_its_list_says(name: str) -> None:
    method = METHODS[name]
    said = [f for d in method.differs for f in d.fields]
    assert len(said) == len(set(said)), "a field is named twice"
    assert set(said) == changed(method, METHODS[method.parent or ""])
    assert list(method.numbered) == [f"{i}. {d.text}" for i, d in enumerate(method.differs, 1)]


@pytest.mark.parametrize("name", METHODS)
def test_the_list_is_in_the_documentation(name: str) -> None:
    text = " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split())
    assert f"`method={name}`" in text
    for line in METHODS[name].numbered:
        assert line in text


def test_changed_sees_roles_settings_and_values_on_either_side() -> None:
    base = METHODS["graft"]
    # wo_floor's admission reads no delta: it is gone, and that is a difference too.
    assert changed(METHODS["wo_floor"], base) == {"admission", "delta"}
    assert changed(base.with_hyperparameters(delta=0.7), base) == {"delta"}
    assert changed(replace(base, minibatches=2, joint=False), base) == {"minibatches", "joint"}
    assert changed(base, base) == set()
    assert set(STRUCTURE) == {*ROLES, "joint", "minibatches", "peers"}


@pytest.mark.parametrize("name", METHODS)
def test_the_yaml_gives_the_entrys_values(name: str) -> None:
    given = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    rest = {k: v for k, v in given.items() if k not in ("name", "n", "minibatches")}
    expected: Mapping[str, object] = dict(METHODS[name].hyperparameters)
    if "norm_tokens" in expected:  # the constant of Dr. GRPO follows the scale's response limit
        expected = {**expected, "norm_tokens": "${scale.training.max_response_tokens}"}
    assert {k: v if isinstance(v, str) and v.startswith("$") else float(v) for k, v in rest.items()} == expected
    assert (given["name"], given["n"], given.get("minibatches")) == (name, 8, METHODS[name].minibatches)


def test_every_yaml_is_a_method() -> None:
    assert {p.stem for p in CONF.glob("*.yaml")} == {*METHODS, "base"}


def test_no_two_methods_compute_the_same() -> None:
    probes = {name: probe(m) for name, m in METHODS.items()}
    alike = [(a, b) for a, b in combinations(probes, 2) if probes[a] == probes[b]]
    assert alike == []


@pytest.mark.parametrize(("name", "knob"), KNOBS)
def test_every_hyperparameter_moves_a_number(name: str, knob: str) -> None:
    method = METHODS[name]
    low, high = RANGES[knob]
    value = method.hyperparameters[knob]
    candidates = [x for x in (value * 0.5, value * 2, (low + min(high, 1e3)) / 2, low, min(high, 1e3)) if low <= x <= high]
    before = np.array(probe(method))
    after = [np.array(probe(method.with_hyperparameters(**{knob: x}))) for x in candidates if x != value]
    assert any(before.shape != x.shape or not np.allclose(before, x, rtol=0, atol=1e-9) for x in after), (
        f"{knob} of {name}: nothing"
    )


@pytest.mark.parametrize("role", ["own_loss", "peer_loss"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("a", "w"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_loss_declares_rightly_whether_it_vanishes(name: str, role: str, a: float, w: float) -> None:
    x = probe_inputs()
    logp = x.logprobs.clone().requires_grad_()
    ones = torch.ones_like(x.advantages)
    losses, _ = METHODS[name].bound(role)(replace(x, logprobs=logp, advantages=a * ones, weights=w * ones))
    losses.sum().backward()
    assert logp.grad is not None
    zero = float(losses.detach().abs().max()) == 0.0 and not logp.grad.any()
    if TRAITS[getattr(METHODS[name], role)].vanishes:
        assert zero
    elif a == 0:
        assert not zero, "it vanishes; declare it, so that policies can skip such rows"


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameters_are_those_that_have_a_reader(name: str) -> None:
    method = METHODS[name]
    asked = {k for role in ROLES for k in keyword_only(getattr(method, role))}
    assert set(method.hyperparameters) == asked
    with pytest.raises(ValueError, match=r"without a reader: \['fancy'\]"):
        replace(method, hyperparameters={**method.hyperparameters, "fancy": 1.0})
    first = sorted(asked)[0]
    with pytest.raises(ValueError, match=rf"without a value: \['{first}'\]"):
        replace(method, hyperparameters={k: v for k, v in method.hyperparameters.items() if k != first})


def test_a_variant_leaves_behind_what_nobody_reads_and_needs_what_is_new() -> None:
    graft = METHODS["graft"]
    floorless = variant(graft, "x", Difference("no floor", "admission", "delta"), admission=METHODS["wo_floor"].admission)
    assert "delta" not in floorless.hyperparameters
    assert (floorless.name, floorless.parent) == ("x", "graft")
    with pytest.raises(ValueError, match=r"without a value: \['shaping_gamma'\]"):
        variant(graft, "y", peer_loss=METHODS["graft_which_luffy_update"].peer_loss)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match="grpo has no hyperparameter delta; it has advantage_eps, clip_high, clip_low"):
        build_method("grpo", {"delta": 0.7})
    with pytest.raises(ValueError, match="unknown method 'graff'; known: grpo, graft, hacpo, sgt"):
        build_method("graff", {})


@pytest.mark.parametrize("value", [-0.1, 11.0, float("nan")])
def test_values_out_of_range_name_the_range(value: float) -> None:
    with pytest.raises(ValueError, match=r"delta = .* is outside \[0.0, 10.0\]"):
        build_method("graft", {"delta": value})


def test_the_papers_values() -> None:
    clips = {"clip_low": 0.2, "clip_high": 0.28}
    assert dict(METHODS["graft"].hyperparameters) == {"advantage_eps": 1e-6, **clips, "delta": 0.8}
    assert dict(METHODS["sgt"].hyperparameters) == {"advantage_eps": 1e-6, **clips, "nll_weight": 0.1}
    hacpo = METHODS["hacpo"].hyperparameters
    assert (hacpo["clip_low"], hacpo["clip_high"], hacpo["kl_coef"]) == (3e-4, 4e-4, 1e-3)
    assert (hacpo["peer_lower"], hacpo["peer_lower_step"], hacpo["peer_alpha"], hacpo["capability_window"]) == (0.8, 0.025, 1, 5)
    assert METHODS["hacpo"].minibatches == 2  # 64 of the paper's 128 prompts
    assert METHODS["graft_which_luffy_update"].hyperparameters["shaping_gamma"] == 0.1
    assert build_method("graft", {"delta": 0.7}).hyperparameters["delta"] == 0.7
    assert METHODS["graft"].hyperparameters["delta"] == 0.8  # the entry itself never changes
    with pytest.raises(TypeError):
        METHODS["graft"].hyperparameters["delta"] = 0.1  # type: ignore[index]


def verify(items):  # type: ignore[no-untyped-def]
    """Nobody is ever asked in these tests: a setup is refused before its first step."""
    raise AssertionError(items)


def test_a_temperature_of_its_own_is_refused(tiny_dirs: dict[str, Path]) -> None:
    policy: TorchPolicy = tiny.policy(tiny_dirs["quick"], "a")
    settings = LoopSettings(0, 1, 8, 2, 3, SamplingSettings(0.7, 1.0, tiny.LIMIT))
    with pytest.raises(ValueError, match=r"a trains at temperature 1.0 and samples at 0.7; use one"):
        Setup({"a": policy}, METHODS["grpo"], settings, verify)


def test_the_number_of_models_must_fit_the_method(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"], "a")
    settings = LoopSettings(0, 1, 8, 2, 3, SamplingSettings(1.0, 1.0, tiny.LIMIT))
    with pytest.raises(ValueError, match="graft exchanges between models and needs at least two; got a"):
        Setup({"a": policy}, METHODS["graft"], settings, verify)
    with pytest.raises(ValueError, match="grpo trains one model per run; got a, b"):
        Setup({"a": policy, "b": policy}, METHODS["grpo"], settings, verify)
    with pytest.raises(ValueError, match="hacpo needs a frozen reference policy"):
        Setup({"a": policy, "b": policy}, METHODS["hacpo"], settings, verify)
