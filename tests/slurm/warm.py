"""Command lines without the seconds that imports take: a process that has imported everything forks one child for each.

    python -m tests.slurm.warm      reads requests, a JSON line each: module, argv, cwd, env, out (a folder for what it says)

A child is a process of its own with the asked-for arguments, folder and environment; it runs the module as ``python -m`` does.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from experiments.files import write_atomic

POLL_S = 0.05


def serve() -> None:
    """Fork for each request until the input ends."""
    import sweeps.cancel
    import sweeps.launch
    import sweeps.plan
    import sweeps.status  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            guard(json.loads(line))


def guard(request: dict[str, Any]) -> None:
    """Run the command in a child, which may be killed, and note how it ended."""
    child = os.fork()
    if child == 0:
        become(request)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write_atomic(Path(request["out"]) / "code", str(code))
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Be the asked-for process; never returns."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(request["out"]) / name, os.O_WRONLY | os.O_CREAT, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["module"], *request["argv"]]
    warnings.filterwarnings(
        "ignore", category=RuntimeWarning, module="runpy"
    )  # the module was imported before, which is the point
    code: Any = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as e:
        code = e.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


class Warm:
    """The forking process; ``run`` may be called by several threads."""

    def __init__(self, folder: Path, root: Path):
        self.folder, self.count, self.lock = folder, 0, threading.Lock()
        environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.slurm.warm"], cwd=root, env=environment, stdin=subprocess.PIPE, text=True
        )

    def run(
        self, module: str, argv: list[str], cwd: Path, env: dict[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run of ``python -m module argv``, with what it said."""
        with self.lock:
            self.count += 1
            out = self.folder / str(self.count)
            out.mkdir()
            request = {"module": module, "argv": argv, "cwd": str(cwd), "env": env, "out": str(out)}
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        deadline = time.monotonic() + seconds
        while not (out / "code").exists():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"{module} {' '.join(argv)}: no end within {seconds:g} s")
            time.sleep(POLL_S)
        said = [(out / name).read_text() if (out / name).exists() else "" for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess([module, *argv], int((out / "code").read_text()), *said)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


if __name__ == "__main__":
    serve()
