"""Tests against a real Slurm. They run under `make slurm-test` only; elsewhere they are skipped, and say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.slurm import lab as labs
from tests.slurm.sweeping import Place, Undisturbed, science

SLURM_TESTS = os.environ.get("SLURM_TESTS", "")  # 1: skip where Slurm cannot be started; require: fail there


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked slurm unless it was asked for."""
    if SLURM_TESTS in ("1", "require"):
        return
    for item in items:
        if item.get_closest_marker("slurm"):
            item.add_marker(pytest.mark.skip(reason="needs a real Slurm: run make slurm-test"))


@pytest.fixture(scope="session")
def slurm_lab() -> Iterator[labs.Lab]:
    """The running cluster, shared by all processes of the test session."""
    lab = labs.find_or_start()
    if isinstance(lab, str):
        if SLURM_TESTS == "require":
            pytest.fail(f"SLURM_TESTS=require, and {lab}", pytrace=False)
        pytest.skip(lab)
    yield lab
    labs.release(lab)


@pytest.fixture(scope="session")
def undisturbed(slurm_lab: labs.Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """What the LONG recipe leaves behind when nothing happens to it: a local run, by content. It runs beside the first tests."""
    place = Place(slurm_lab, tmp_path_factory.mktemp("undisturbed"))
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(place.launch, cluster="local")
        yield lambda: science(place.record().path) if launched.result() else {}
