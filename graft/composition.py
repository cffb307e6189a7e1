"""Method: one named composition of the core's functions, described by how it differs from its parent.

A method names one function per role. The functions' keyword-only arguments ARE its hyperparameters: a method must give a value
to each and to nothing else, so a knob without a reader cannot exist.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from graft import advantages, aggregation, compatibility, intake, losses, schedule, selection, transfer

ROLES = (
    "intake",
    "capability",
    "own_advantage",
    "peer_advantage",
    "selection",
    "transfer",
    "admission",
    "own_loss",
    "peer_loss",
    "aggregation",
    "order",
)
STRUCTURE = (*ROLES, "joint", "minibatches", "peers")

RANGES: Mapping[str, tuple[float, float]] = {
    "advantage_eps": (0.0, 1.0),
    "capability_ratio_max": (1.0, 1e3),
    "capability_window": (1.0, 1e3),
    "clip_high": (0.0, 10.0),
    "clip_low": (0.0, 1.0),
    "delta": (0.0, 10.0),
    "kl_coef": (0.0, 10.0),
    "max_rounds": (1.0, 100.0),
    "nll_weight": (0.0, 10.0),
    "norm_tokens": (1.0, 1e6),
    "peer_alpha": (0.0, 10.0),
    "peer_lower": (0.0, 1.0),
    "peer_lower_step": (0.0, 1.0),
    "shaping_gamma": (1e-6, 10.0),
    "zvp_alpha": (0.0, 10.0),
}


def keyword_only(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's keyword-only parameters: its hyperparameters."""
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)


@dataclass(frozen=True)
class Difference:
    """One numbered difference from the parent: the sentence, and the roles, hyperparameters or settings that it is about."""

    text: str
    fields: tuple[str, ...]

    def __init__(self, text: str, *fields: str):
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "fields", fields)


@dataclass(frozen=True)
class Method:
    """One composition. ``joint`` methods train a group of models in one run; independent ones run per model.

    ``peers``: ``live`` peers train in the same run; a ``stored`` peer is a finished run's log, so the method is an independent one.
    ``minibatches``: own minibatches per step, or None for the scale's minibatch size. ``parent`` is the method that ``differs``
    refers to (None: the published algorithm that the method is named after).
    """

    name: str
    parent: str | None
    differs: tuple[Difference, ...]
    intake: intake.TakeIn
    capability: advantages.Capability
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
    minibatches: int | None = None
    peers: Literal["live", "stored"] = "live"
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
        if self.joint and self.stored:
            raise ValueError(f"method {self.name}: a stored peer does not train, so no run of the method can be joint")
        object.__setattr__(self, "hyperparameters", MappingProxyType(dict(self.hyperparameters)))

    @property
    def numbered(self) -> tuple[str, ...]:
        """The differences as a numbered list."""
        return tuple(f"{i}. {d.text}" for i, d in enumerate(self.differs, 1))

    @property
    def needs_reference(self) -> bool:
        """Whether own sequences need log-probs of a frozen reference policy."""
        return losses.TRAITS[self.own_loss].reference

    @property
    def stored(self) -> bool:
        """Whether it learns from a finished run's log."""
        return self.peers == "stored"

    @property
    def needs_source_logprobs(self) -> bool:
        """Whether any of its parts reads how likely the source held its own responses."""
        return self.admission not in compatibility.SCORE_FREE or losses.TRAITS[self.peer_loss].source_mean

    def bound(self, role: str) -> Callable[..., Any]:
        """The role's function with its hyperparameters filled in."""
        function = getattr(self, role)
        return partial(function, **{k: self.hyperparameters[k] for k in keyword_only(function)})

    def loss(self) -> losses.MinibatchLoss:
        """The whole minibatch loss (eq. 10 for GRAFT); one shared call where own and peer rows use one function."""
        own = self.bound("own_loss")
        peer = own if self.peer_loss is self.own_loss else self.bound("peer_loss")
        traits = losses.TRAITS[self.own_loss], losses.TRAITS[self.peer_loss]
        return losses.MinibatchLoss(own, peer, self.bound("aggregation"), *traits)  # type: ignore[arg-type]

    def with_hyperparameters(self, **changes: float) -> Method:
        """A copy with other values. Unknown names are a ValueError that lists the known."""
        unknown = sorted(set(changes) - set(self.hyperparameters))
        if unknown:
            raise ValueError(
                f"method {self.name} has no hyperparameter {', '.join(unknown)}; it has {', '.join(sorted(self.hyperparameters))}"
            )
        return replace(self, hyperparameters={**self.hyperparameters, **changes})


def variant(parent: Method, name: str, *differs: Difference, **changes: Any) -> Method:
    """A new method from ``parent``: ``changes`` are roles, settings (STRUCTURE) or hyperparameter values.

    Hyperparameters that no function of the new composition reads any more are left behind.
    """
    structure = {k: v for k, v in changes.items() if k in STRUCTURE}
    values = {k: v for k, v in changes.items() if k not in STRUCTURE}
    functions = [structure.get(role, getattr(parent, role)) for role in ROLES]
    asked = {k for f in functions for k in keyword_only(f)}
    kept = {k: v for k, v in parent.hyperparameters.items() if k in asked}
    return replace(parent, name=name, parent=parent.name, differs=differs, hyperparameters={**kept, **values}, **structure)


def changed(method: Method, parent: Method) -> set[str]:
    """Roles, settings and hyperparameters in which two methods differ, those that only one of them has included."""
    structure = {k for k in STRUCTURE if getattr(method, k) != getattr(parent, k)}
    names = {*method.hyperparameters, *parent.hyperparameters}
    return structure | {k for k in names if method.hyperparameters.get(k) != parent.hyperparameters.get(k)}
