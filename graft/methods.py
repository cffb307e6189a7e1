"""METHODS: every method as data, described by how it differs.

A method names one function per role. The functions' keyword-only arguments ARE its hyperparameters: a method must give a value
to each and to nothing else, so a knob without a reader cannot exist. A new method is one entry here, one YAML in
sweeps/conf/method/, and at most one new function in the module of the role that it changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from graft import advantages, aggregation, compatibility, losses, schedule, selection, transfer

ROLES = ("own_advantage", "peer_advantage", "selection", "transfer", "admission", "own_loss", "peer_loss", "aggregation", "order")


def keyword_only(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's keyword-only parameters: its hyperparameters."""
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)


@dataclass(frozen=True)
class Method:
    """One composition. ``joint`` methods train a group of models in one run; independent ones run per model.

    ``zero_at_zero_advantage``: both losses vanish, with their gradient, where w a = 0. ``ranges`` bounds hyperparameters.
    """

    name: str
    own_advantage: advantages.Advantage
    peer_advantage: advantages.Advantage
    selection: selection.Select
    transfer: transfer.Transfer
    admission: compatibility.Admit
    own_loss: losses.TokenLoss
    peer_loss: losses.TokenLoss
    aggregation: aggregation.Aggregation
    order: schedule.Order
    joint: bool
    zero_at_zero_advantage: bool
    differs: tuple[str, ...]
    hyperparameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = {name for role in ROLES for name in keyword_only(getattr(self, role))}
        given = set(self.hyperparameters)
        if asked != given:
            raise ValueError(
                f"method {self.name}: hyperparameters without a reader: {sorted(given - asked)}; without a value: {sorted(asked - given)}"
            )
        for name, value in self.hyperparameters.items():
            low, high = RANGES[name]
            if not low <= value <= high:
                raise ValueError(f"method {self.name}: {name} = {value} is outside [{low}, {high}]")
        object.__setattr__(self, "hyperparameters", MappingProxyType(dict(self.hyperparameters)))

    def bound(self, role: str) -> Callable[..., Any]:
        """The role's function with its hyperparameters filled in."""
        function = getattr(self, role)
        return partial(function, **{k: self.hyperparameters[k] for k in keyword_only(function)})

    def loss(self) -> losses.MinibatchLoss:
        """The whole minibatch loss (eq. 10 for GRAFT); one shared call where own and peer rows use one function."""
        own = self.bound("own_loss")
        peer = own if self.peer_loss is self.own_loss else self.bound("peer_loss")
        return losses.MinibatchLoss(own, peer, self.bound("aggregation"), self.zero_at_zero_advantage)  # type: ignore[arg-type]

    def with_hyperparameters(self, **changes: float) -> Method:
        """A copy with other values. Unknown names are a ValueError that lists the known."""
        unknown = sorted(set(changes) - set(self.hyperparameters))
        if unknown:
            raise ValueError(
                f"method {self.name} has no hyperparameter {', '.join(unknown)}; it has {', '.join(sorted(self.hyperparameters))}"
            )
        return replace(self, hyperparameters={**self.hyperparameters, **changes})


RANGES: Mapping[str, tuple[float, float]] = {
    "advantage_eps": (0.0, 1.0),
    "clip_low": (0.0, 1.0),
    "clip_high": (0.0, 10.0),
    "delta": (0.0, 10.0),
}

GRPO = Method(
    name="grpo",
    own_advantage=advantages.source_group,
    peer_advantage=advantages.source_group,
    selection=selection.no_selection,
    transfer=transfer.nothing,
    admission=compatibility.admit_nothing,
    own_loss=losses.token_clip,
    peer_loss=losses.token_clip,
    aggregation=aggregation.token_mean,
    order=schedule.peer_last,
    joint=False,
    zero_at_zero_advantage=True,
    differs=(
        "1. std of the group is the unbiased one (n-1), eps added to the std (verl).",
        "2. clip-higher 0.2/0.28, no dual clip, no KL, no entropy bonus (paper, appendix B).",
        "3. token mean over the minibatch; zero-variance groups stay in the denominator.",
    ),
    hyperparameters={"advantage_eps": 1e-6, "clip_low": 0.2, "clip_high": 0.28},
)

GRAFT = replace(
    GRPO,
    name="graft",
    selection=selection.complementary_balanced,
    transfer=transfer.replace_group,
    admission=compatibility.gate_and_cap,
    joint=True,
    differs=(
        "1. From GRPO: two models train in one run on the same prompts.",
        "2. A receiver's all-fail group is replaced by a peer's mixed group, balanced per pair, ties kept (eq. 4).",
        "3. Peer responses keep the source group's advantages, computed before any is dropped.",
        "4. Each is weighted by w = 1[s > delta] min(s, 1) (eq. 8); dropped ones count nowhere.",
        "5. The ratio's denominator is always the receiver's own old policy (eq. 9).",
        "6. Minibatches with grafted groups come last.",
    ),
    hyperparameters={**GRPO.hyperparameters, "delta": 0.8},
)

METHODS: Mapping[str, Method] = MappingProxyType({m.name: m for m in (GRPO, GRAFT)})


def build_method(name: str, hyperparameters: Mapping[str, float]) -> Method:
    """The entry ``name`` with the given values; unknown names list the known."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name].with_hyperparameters(**hyperparameters)
