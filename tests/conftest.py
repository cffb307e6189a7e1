"""Fixtures for all tests. One thread everywhere: results must not depend on how many cores a machine has."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.graft import tiny

torch.set_num_threads(1)
# Fixed examples: a red test is red again on the next run.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: what several workers do last is brief then, and none waits for another."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def tiny_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two tiny random models with different tokenizers: {"quick": Qwen3, "small": SmolLM3}."""
    root = tmp_path_factory.mktemp("tiny-models")
    return {kind: tiny.build(kind, root / kind) for kind in tiny.KINDS}
