"""The tests of the verl policy. Without verl they skip; `make verl-test` runs them in an environment of their own."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence as Seq
from pathlib import Path

import pytest

from tests.verl import cpu

INSTALLED = all(importlib.util.find_spec(name) for name in ("verl", "ray", "vllm"))
if INSTALLED:  # before anything imports them, here and in every process that Ray starts
    os.environ.update(cpu.environment())
    sys.path.insert(0, str(cpu.PLUGIN))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and say why, what needs verl."""
    for item in items:
        if item.get_closest_marker("verl") and not INSTALLED:
            item.add_marker(pytest.mark.skip(reason="verl is not installed here (make verl-test)"))


@pytest.fixture(scope="session")
def served_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two models of ``tiny_dirs`` with heads of a size that vLLM has kernels for on a CPU, and no ids beyond the tokenizer's.

    (verl's sampler never draws such an id: it lies at -inf there, and random weights give it a share of the rest.)
    """
    from tests.graft import tiny

    root = tmp_path_factory.mktemp("served-models")
    return {kind: tiny.build(kind, root / kind, head=32, spread=0.1, vocabulary=None) for kind in tiny.KINDS}


Opened = Callable[..., dict]


@pytest.fixture(scope="module")
def opened(served_dirs: dict[str, Path]) -> Iterator[Opened]:
    """``opened(names, samples=..., optimiser=..., **settings)``: policies in one session; an earlier one is closed first."""
    from graft.policies.verl_policy.policy import VerlPolicy
    from graft.policies.verl_policy.session import Session
    from tests.graft.tiny import OPTIMISER

    sessions: list[Session] = []

    def close() -> None:
        """End what is open."""
        while sessions:
            sessions.pop().close()

    def open_(names: Seq[str], *, samples: bool = True, optimiser=OPTIMISER, **changes) -> dict[str, VerlPolicy]:
        """Models by kind, as tests.graft.tiny builds them."""
        close()
        sessions.append(Session(names, cpu.settings(**changes)))
        return {name: VerlPolicy(name, served_dirs[name], sessions[0], optimiser, samples=samples) for name in names}

    yield open_
    close()
