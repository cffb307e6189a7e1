"""Many runs: how long submitting, asking and planning take, and how arrays are cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.batch_script import Batch
from experiments.config import load_config
from experiments.progress import Display
from experiments.run_record import RunRecord
from experiments.works import works_of
from sweeps import slurm
from sweeps.batches import read_batches
from sweeps.cells import Request
from sweeps.launch import freeze_all, submit_all
from sweeps.status import look
from tests.slurm.lab import Lab
from tests.slurm.sweeping import SHORT, on_lab

pytestmark = pytest.mark.slurm


@pytest.fixture
def asking(slurm_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """This process may call Slurm; what it submitted is cancelled at the end."""
    for name, value in slurm_lab.environment().items():
        if name.startswith("SLURM"):
            monkeypatch.setenv(name, value)
    yield slurm_lab
    ours = [b.job_id for b in read_batches(tmp_path / "paper") if b.job_id]
    slurm.cancel(ours)


def submitted(root: Path, seeds: int, *more: str) -> tuple[list[Batch], list[RunRecord], float]:
    """(batches, records, seconds from frozen records to the last job id) of two held runs for each seed."""
    extra = ["cluster=slurm", *on_lab(), *SHORT, "cluster.extra=['--hold']", f"runs_root={root}", *more]
    runs, _ = Request("table8", "smoke", range(seeds), (), ["grpo_n8"], extra).runs()
    cluster = load_config(["scale=smoke", *extra]).cluster
    frozen = freeze_all(runs)
    (root / "paper" / ".sweeps").mkdir()
    works = [w for record, options in frozen for w in works_of(record, options, cluster)]
    with Display() as display:
        started = time.monotonic()
        batches = submit_all(root / "paper", works, cluster, root, {}, display)
        return batches, [r for r, _ in frozen], time.monotonic() - started


@pytest.mark.parametrize(("stages", "calls"), [("together", 1), ("apart", 51)])
def test_fifty_cells_are_submitted_in_five_seconds(asking: Lab, tmp_path: Path, stages: str, calls: int) -> None:
    batches, records, seconds = submitted(tmp_path, 25, f"cluster.stages={stages}")
    assert len(batches) == calls
    assert seconds < 5
    started = time.monotonic()
    standings = look(records)
    assert time.monotonic() - started < 2
    assert {s.state for s in standings} == {"queued"}
    assert len({s.job for s in standings}) == 50


def test_arrays_are_cut_where_the_cluster_says(asking: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm.max_array_size() == 1001  # of the lab
    monkeypatch.setattr(slurm, "max_array_size", lambda: 3)
    batches, records, _ = submitted(tmp_path, 4)
    assert [len(b.elements) for b in batches] == [3, 3, 2]
    assert [asking.states(str(b.job_id)) for b in batches] == [["PENDING"] * n for n in (3, 3, 2)]
    runs = [e["run"] for b in batches for e in b.elements]
    assert sorted(runs) == sorted(str(r.path.resolve()) for r in records)
    assert {s.state for s in look(records)} == {"queued"}
