"""The cluster itself: what other tests rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.lab import Lab, until

pytestmark = pytest.mark.slurm


def test_a_finished_job_is_in_the_accounting_with_its_comment(slurm_lab: Lab, tmp_path: Path) -> None:
    job = slurm_lab.sbatch("--comment=a run, and more", "-o", f"{tmp_path}/out", "--wrap", "echo hello")
    assert slurm_lab.wait(job) == ["COMPLETED"]
    assert (tmp_path / "out").read_text() == "hello\n"
    until(lambda: slurm_lab.sacct(job, "State") == [["COMPLETED"]], 15, "sacct to know it")
    assert slurm_lab.sacct(job, "JobID", "ExitCode", "Comment") == [[job, "0:0", "a run, and more"]]


def test_array_elements_end_each_in_their_own_state(slurm_lab: Lab) -> None:
    job = slurm_lab.sbatch("--array=0-2", "-o", "/dev/null", "--wrap", "exit $((SLURM_ARRAY_TASK_ID == 1))")
    assert slurm_lab.wait(job) == ["COMPLETED", "FAILED", "COMPLETED"]


def test_jobs_at_the_same_time_on_a_node_get_gpus_of_their_own(slurm_lab: Lab, tmp_path: Path) -> None:
    wrap = f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/$SLURM_ARRAY_TASK_ID; sleep 3"
    job = slurm_lab.sbatch("--array=0-3", "-w", "n2", "--gres=gpu:1", "-o", "/dev/null", "--wrap", wrap)
    assert slurm_lab.wait(job) == ["COMPLETED"] * 4
    assert sorted((tmp_path / str(i)).read_text().strip() for i in range(4)) == ["0", "1", "2", "3"]


def test_a_high_job_preempts_a_low_one_which_is_requeued(slurm_lab: Lab, tmp_path: Path) -> None:
    """Slurm sends USR2 to the batch process when the grace period starts, and starts it again later, under the same id."""
    script = tmp_path / "low.sh"
    handler = 'trap "echo warned; exit_now=1" USR2; trap "exit 1" TERM'
    first = f'{handler}; echo started; while sleep 0.2; do [ -z "$exit_now" ] || exec scontrol requeue $SLURM_JOB_ID; done'
    script.write_text(f'#!/bin/bash\n[ -z "$SLURM_RESTART_COUNT" ] || {{ echo again; exit 0; }}\n{first}\n')
    out = tmp_path / "out"
    options = ("-p", "low", "-w", "n1", "-c", "16", "--requeue", "--signal=B:USR2@20", "--open-mode=append")
    low = slurm_lab.sbatch(*options, "-o", str(out), str(script))
    until(lambda: out.exists() and "started" in out.read_text(), 30, "the low job to start")
    high = slurm_lab.sbatch("-p", "high", "-w", "n1", "-c", "16", "-o", "/dev/null", "--wrap", "true")
    assert slurm_lab.wait(high) == ["COMPLETED"]
    assert slurm_lab.wait(low) == ["COMPLETED"]
    assert [line for line in out.read_text().splitlines() if line in ("started", "warned", "again")] == [
        "started",
        "warned",
        "again",
    ]
