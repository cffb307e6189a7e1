"""Whose sampler sleeps when: the order of calls is what keeps two models within one GPU's memory. No verl needed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from graft.policies.verl_policy.turns import Turns


@dataclass(eq=False)
class Model:
    """Refuses what verl cannot do: sleeping twice, and weights to a sampler that is awake where samplers sleep."""

    name: str
    diary: list[str]
    sleeps: bool
    stale: bool = True
    asleep: bool = field(init=False)

    def __post_init__(self) -> None:
        self.asleep = self.sleeps

    def sleep(self) -> None:
        assert not self.asleep
        self.asleep = True
        self.diary.append(f"{self.name} sleeps")

    def bring_weights(self) -> None:
        assert self.asleep == self.sleeps
        self.asleep = self.stale = False
        self.diary.append(f"{self.name} wakes")


def step(turns: Turns, models: list[Model]) -> list[str]:
    """One co-training step and a validation, as the loop asks for them; at every phase at most one sampler may be awake."""
    diary = models[0].diary
    for phase in ("sampling", "training", "sampling"):
        for m in models:
            turns.enter(m, phase)
            diary.append(f"{m.name} {'samples' if phase == 'sampling' else 'trains'}")
            awake = turns.awake
            if turns.sleep and turns.shared:
                assert awake == ([m] if phase == "sampling" else [])
            if phase == "training":
                m.stale = True
    return diary


def test_colocated_models_take_turns() -> None:
    diary: list[str] = []
    models = [Model(name, diary, sleeps=True) for name in "ab"]
    assert step(Turns(sleep=True, shared=True), models) == [
        *("a wakes", "a samples", "a sleeps", "b wakes", "b samples"),
        *("b sleeps", "a trains", "b trains"),
        *("a wakes", "a samples", "a sleeps", "b wakes", "b samples"),
    ]


def test_beside_each_other_nobody_waits_for_the_other() -> None:
    diary: list[str] = []
    models = [Model(name, diary, sleeps=True) for name in "ab"]
    assert step(Turns(sleep=True, shared=False), models) == [
        *("a wakes", "a samples", "b wakes", "b samples"),
        *("a sleeps", "a trains", "b sleeps", "b trains"),
        *("a wakes", "a samples", "b wakes", "b samples"),
    ]


def test_without_sleep_only_stale_weights_are_brought() -> None:
    diary: list[str] = []
    models = [Model(name, diary, sleeps=False) for name in "ab"]
    turns = Turns(sleep=False, shared=True)
    step(turns, models)
    assert [d for d in diary if d.endswith("wakes")] == ["a wakes", "b wakes"] * 2
    assert not [d for d in diary if d.endswith("sleeps")]
    diary.clear()
    turns.enter(models[0], "sampling")
    assert diary == []  # nothing was trained since


def test_new_weights_for_a_sampler_that_is_awake_find_it_asleep() -> None:
    diary: list[str] = []
    model = Model("a", diary, sleeps=True)
    turns = Turns(sleep=True, shared=True)
    turns.enter(model, "sampling")
    model.stale = True  # a checkpoint was loaded
    turns.enter(model, "sampling")
    assert diary == ["a wakes", "a sleeps", "a wakes"]


@pytest.mark.parametrize("shared", [True, False])
def test_sampling_again_changes_nothing(shared: bool) -> None:
    diary: list[str] = []
    model = Model("a", diary, sleeps=True)
    turns = Turns(sleep=True, shared=shared)
    for _ in range(3):
        turns.enter(model, "sampling")
    assert diary == ["a wakes"]
