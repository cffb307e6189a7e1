"""Command lines without the seconds that imports take: a process that has imported everything forks a child for each.

    python -m tests.warm      reads requests from stdin and writes what became of them to stdout, a JSON line each

A child is a process of its own, with the asked-for arguments, folder and environment, that runs the module as ``python -m`` does,
catches signals, dies of them and leaves an exit code. What it cannot show is a module that lacks an import, or results that depend on
Python's hash seed, which all children share. So everything is started cold somewhere: whatever is compared with was made cold.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


# ---- the forking process


# What the commands import sooner or later. Nothing of polars: its threads do not survive a fork, and the child's end waits for them.
PRELOADED = (
    *("experiments.train", "experiments.evaluate", "experiments.training", "experiments.evaluation", "experiments.ledger"),
    *("sweeps.launch", "sweeps.plan", "graft.policies.torch_policy", "hydra.core.plugins"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("auto", "llama", "qwen3", "smollm3")),
)


def preload() -> None:
    """Import; nothing is computed, so that the children inherit modules and no other state."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert "polars" not in sys.modules


def serve() -> None:
    """Fork for each request until stdin ends; then end the children that are left. In a child this raises what the command does."""
    preload()
    gc.collect()
    gc.freeze()  # the children's collections leave the pages of what they share alone
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children: dict[int, int] = {}
    lines = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            while (ended := waited(children)) is not None:
                pid, code = ended
                say({"id": children.pop(pid), "code": code})
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *whole, lines = (lines + data).split(b"\n")
            for request in map(json.loads, whole):
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(woken)
                    os.close(wake)
                    become(request)
                    return
                children[pid] = request["id"]
                say({"id": request["id"], "pid": pid})
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def waited(children: Mapping[int, int]) -> tuple[int, int] | None:
    """(process id, exit code as subprocess has it) of a child that has ended."""
    pid, status = os.waitpid(-1, os.WNOHANG) if children else (0, 0)
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def say(message: dict[str, int]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def become(request: dict[str, Any]) -> None:
    """Be the asked-for process. How it ends is how the interpreter ends."""
    if request["new_session"]:
        os.setsid()
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(name, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["cwd"]
    sys.argv = [request["module"], *request["arguments"]]  # runpy replaces the first
    # That the module was imported before is the point.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


# ---- what tests use


class Process:
    """A command that runs; the part of subprocess.Popen that tests need."""

    def __init__(self, forker: Forker, number: int, command: Sequence[str]):
        self.forker, self.number, self.command = forker, number, list(command)
        self.pid, self.returncode = forker.answer(number, "pid", None), None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.forker.answer(self.number, "code", 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self.forker.answer(self.number, "code", timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.command, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The forking process, started once for each worker of pytest."""

    def __init__(self) -> None:
        surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            cwd=ROOT,
            env=surroundings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.count, self.rest = 0, b""
        self.answers: dict[tuple[int, str], int] = {}

    def start(self, module: str, *arguments: str, environment: Mapping[str, str], **how: Any) -> Process:
        """``how``: cwd, stdout and stderr (names of files that are appended to; devnull), new_session (False)."""
        self.count += 1
        places = {"cwd": str(how.pop("cwd", ROOT)), "new_session": how.pop("new_session", False)}
        outputs = {name: str(how.pop(name, os.devnull)) for name in ("stdout", "stderr")}
        assert not how, how
        request = {"id": self.count, "module": module, "arguments": arguments, "environment": dict(environment)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request | places | outputs).encode() + b"\n")
        self.process.stdin.flush()
        return Process(self, self.count, [module, *arguments])

    def answer(self, number: int, kind: str, timeout: float | None) -> int | None:
        """What the forking process said of a request; None if it says nothing in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        assert self.process.stdout is not None
        said = self.process.stdout.fileno()
        while True:
            # What has been said already is read, even without a second to wait.
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if (number, kind) in self.answers:
                return self.answers[number, kind]
            if not select.select([said], [], [], left)[0]:
                return None
            data = os.read(said, 1 << 16)
            assert data, f"the forking process ended with {self.process.wait()}"
            *whole, self.rest = (self.rest + data).split(b"\n")
            for message in map(json.loads, whole):
                self.answers |= {(message["id"], name): value for name, value in message.items() if name != "id"}

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


@cache
def forker() -> Forker:
    import atexit

    made = Forker()
    atexit.register(made.close)
    return made


def run(
    module: str, *arguments: str, cwd: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run of ``python -m module arguments``, with what it said."""
    with tempfile.TemporaryDirectory(prefix="said-") as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = forker().start(module, *arguments, environment=environment, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess([module, *arguments], code, stdout.read_text(), stderr.read_text())


if __name__ == "__main__":
    serve()
