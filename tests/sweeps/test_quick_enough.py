"""Hundreds of runs are planned and shown while a person waits. The bounds are generous: benchmarks/sweeps.py measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sweeps import cold_cells, made, timed
from experiments.config import load_config
from sweeps import plan, status

pytestmark = pytest.mark.slow
LOADED = 4  # this machine may be doing several other things


def test_three_hundred_runs(tmp_path: Path) -> None:
    runs, records = made(tmp_path, 300, 60)
    assert len(runs) == len(records) == 300
    cluster = load_config(["cluster=slurm"]).cluster
    assert min(timed(lambda: status.look(records), 2)) < 2 * LOADED
    assert min(timed(lambda: plan.plan(cold_cells(tmp_path, 300), cluster), 2)) < 5 * LOADED
    standings = status.look(records)
    assert {(s.state, s.attempt, s.step) for s in standings} == {("interrupted", 2, 60)}
