"""Policies that tests share and never update (tiny.gradients holds the optimiser's step back)."""

from __future__ import annotations

from pathlib import Path

import pytest

from graft.policies.torch_policy import TorchPolicy
from tests.graft import tiny


@pytest.fixture(scope="module")
def quick(tiny_dirs: dict[str, Path]) -> TorchPolicy:
    return tiny.policy(tiny_dirs["quick"])


@pytest.fixture(scope="module")
def small(tiny_dirs: dict[str, Path]) -> TorchPolicy:
    return tiny.policy(tiny_dirs["small"])


@pytest.fixture
def frozen(request: pytest.FixtureRequest, kind: str) -> TorchPolicy:
    """The shared policy of the parametrised kind."""
    return request.getfixturevalue(kind)  # type: ignore[no-any-return]
