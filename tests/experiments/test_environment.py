"""The machine's failures: a really full disk in mid-run, errors as libraries wrap them, a record that cannot be written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time

import pytest

from experiments.errors import RecordUnwritable, UserError, environment_failure
from experiments.run_record import RunRecord
from tests.experiments.smoke import fresh_copy, results, run, start, whole_run


def test_what_is_the_machines_and_what_is_the_runs_own():
    full = OSError(errno.ENOSPC, "No space left on device", "/d/f")
    assert environment_failure(full, "/run") == "no space left on device: /d/f"
    assert environment_failure(OSError(errno.EIO, "x"), "/run") == "input/output error: /run"
    assert environment_failure(MemoryError(), "/run") == "cannot allocate memory: /run"
    assert (
        environment_failure(RecordUnwritable(errno.EACCES, "x", "/run/status.json"), "/run")
        == "permission denied: /run/status.json"
    )
    for number in (errno.EDQUOT, errno.ESTALE, errno.ENOMEM, errno.EROFS):
        assert environment_failure(OSError(number, "x"), "/run")
    for own in (
        ValueError("code: 28"),
        UserError("x"),
        FileNotFoundError(errno.ENOENT, "x"),
        FloatingPointError(),
        RuntimeError("28"),
    ):
        assert environment_failure(own, "/run") is None


def raised(error, cause=None, *, hide=False):
    """``error`` as Python chains it when it is raised while an ENOSPC is handled."""
    try:
        try:
            raise OSError(errno.ENOSPC, "x")
        except OSError as full:
            if hide:
                raise error from None
            raise error from (full if cause == "full" else cause)
    except Exception as e:
        return e


def test_wrapped_errors_are_found():
    assert environment_failure(raised(ValueError("wrapped"), "full"), "/run") == "no space left on device: /run"
    assert environment_failure(raised(ValueError("own"), hide=True), "/run") is None
    assert environment_failure(raised(ValueError("own"), KeyError("another")), "/run") is None
    alloc = (
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory. Error code 12 (Cannot allocate memory)"
    )
    assert environment_failure(RuntimeError(alloc), "/run") == "cannot allocate memory: /run"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that can be filled."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_safetensors_says_it_in_its_own_way(small_disk):
    import torch
    from safetensors.torch import save_file

    fill(small_disk, leave=1 << 20)
    with pytest.raises(Exception, match=r".") as caught:
        save_file({"x": torch.zeros(1 << 20)}, small_disk / "x.safetensors")
    assert environment_failure(caught.value, "/run") == "no space left on device: /run"


def fill(disk, leave):
    """A filler that leaves this many bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    with open(disk / "filler", "ab") as f:
        f.write(b"\0" * max(0, free - leave))


def test_status_that_cannot_be_written_is_not_the_runs_error(small_disk):
    record = RunRecord.create(
        small_disk,
        cell={"method": "graft", "pair": "1", "models": ["a"], "scale": "cpu", "seed": 0},
        recipe={"seed": 0},
        deviations={},
    )
    fill(small_disk, leave=0)
    with pytest.raises(RecordUnwritable):
        record.set_status("running", step=1, reason="x" * 100_000)
    assert record.status()["state"] == "prepared"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return whole_run(tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave",
    [0, 30_000, 110_000, 1_000_000],
    ids=["at the first file", "in the attempt's reserve", "in the log of a step", "in a checkpoint"],
)
def test_full_disk_in_mid_run_and_resumed_is_byte_identical(leave, whole, small_disk):
    path = fresh_copy(whole, small_disk, checkpoint_every=1)
    record = RunRecord.open(path)
    if leave != 1_000_000:  # a run that had come somewhere; the other one fills up by itself
        assert run_until_checkpoint(path)
    fill(small_disk, leave)
    stopped = run("experiments.job", str(path))
    assert stopped.returncode == 75, stopped.stderr
    assert "no space left on device" in stopped.stderr
    status = record.status()
    if leave:  # with no byte left from the start not even the attempt can be noted
        assert status["state"] == "interrupted"
        assert status["reason"].startswith("no space left on device: ")
        assert record.attempts()[-1].reason == "interrupted"
        assert record.attempts()[-1].end["detail"] == status["reason"]
    assert not list(path.glob("**/.step-*.tmp")), "an unfinished checkpoint keeps the disk full"
    (small_disk / "filler").unlink()
    again = run("experiments.job", str(path))
    assert again.returncode == 0, again.stderr
    assert results(path) == results(whole)


def run_until_checkpoint(path):
    """Interrupt the run after its first checkpoint."""
    process = start("experiments.job", str(path))
    while process.poll() is None and not any(path.glob("checkpoints/step-*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGUSR2)
    return process.wait(timeout=120) == 140
