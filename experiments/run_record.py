"""The run directory: what ONE frozen run is, how far it came, and whether it is complete. Standard library only.

Layout (see docs/records.md): ``run.json`` is written once and read by every later process; ``attempts/<k>/`` belongs to one
process (``experiments.attempts``); ``status.json`` says where the run stands; ``done.json`` is written last, after every step,
benchmark, run, item and sample was counted. The directory's name ends in the first 8 hex digits of the fingerprint, so one
recipe has one directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.attempts import Attempt, next_attempt, read_attempts
from experiments.errors import EXIT_USER_ERROR, RecordUnwritable, RunBusy, UserError
from experiments.files import canonical_json, iter_jsonl, read_json, write_json

__all__ = ["EXIT_USER_ERROR", "RunRecord", "UserError", "find_runs", "fingerprint", "read_jsonl", "run_name"]

FORMAT = 1
# Runs of these methods hold evaluation rows only: an untouched model, and samples that another program made.
UNTRAINED = ("base", "imported")
# Somebody who asks whether a run is alive holds its lock for microseconds; who wants to run it tries again before giving up.
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.05
ROOT = Path(__file__).resolve().parent.parent
RECORDED_VERSIONS = ("torch", "transformers", "tokenizers", "math-verify", "numpy", "hydra-core")


def fingerprint(recipe: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the canonical JSON of the scientific recipe: no paths, resources or logging are in it."""
    return hashlib.sha256(canonical_json(recipe).encode()).hexdigest()


def trains(recipe: Mapping[str, Any]) -> bool:
    """Whether the recipe trains anything. An untouched model and imported samples only have evaluation rows."""
    return recipe["method"]["name"] not in UNTRAINED


def run_name(cell: Mapping[str, Any], digest: str) -> str:
    """Directory name: method, pair (joint), model (independent) or both (one model with a stored peer), scale, seed, fingerprint."""
    pair, models = cell["pair"], cell["models"]
    who = models[0] if pair is None else pair if len(models) > 1 else f"{pair}-{models[0]}"
    return f"{cell['method']}-{who}-{cell['scale']}-s{cell['seed']}-{digest[:8]}"


def read_jsonl(path: Path) -> list[Any]:
    """All rows of a JSONL file; [] if it does not exist. Rules for torn and bad lines as in ``iter_jsonl``."""
    return list(iter_jsonl(path)) if path.exists() else []


def _git(root: Path, *args: str) -> str:
    try:
        out = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return out.stdout


def code_version(root: Path = ROOT) -> dict[str, Any]:
    """``commit``, ``dirty`` and ``diff`` of the code in ``root``: a checkout, or a snapshot of one with a CODE.json.

    ``commit`` is null for anything else. A snapshot may lie inside a checkout, whose commit says nothing about it.
    """
    if (root / ".git").exists():
        diff = _git(root, "diff", "HEAD")
        return {"commit": _git(root, "rev-parse", "HEAD").strip() or None, "dirty": bool(diff), "diff": diff or None}
    snapshot = read_json(root / "CODE.json") if (root / "CODE.json").exists() else {}
    return {"commit": snapshot.get("commit"), "dirty": bool(snapshot.get("dirty")), "diff": snapshot.get("diff") or None}


@lru_cache(maxsize=1)
def _own_code() -> dict[str, Any]:
    """What this process runs was settled when it started, and a sweep freezes hundreds of runs: git is asked once."""
    return code_version()


def provenance() -> dict[str, Any]:
    """Commit, dirty diff, versions, argv and host of the process that freezes a run."""
    versions = {"python": platform.python_version()}
    for name in RECORDED_VERSIONS:
        versions[name] = metadata.version(name)
    return {
        **_own_code(),
        "versions": versions,
        "argv": sys.argv,
        "host": platform.node(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {k: v for key, sub in value.items() for k, v in _flat(sub, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): value}


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Dotted keys at which two recipes differ."""
    fa, fb = _flat(a), _flat(b)
    return sorted(k for k in fa.keys() | fb.keys() if fa.get(k, ...) != fb.get(k, ...))


@dataclass(frozen=True)
class RunRecord:
    """One run directory and its frozen ``run.json`` (``config``)."""

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def create(
        cls, root: Path, *, cell: Mapping[str, Any], recipe: Mapping[str, Any], deviations: Mapping[str, Any]
    ) -> RunRecord:
        """Freeze a run under ``root``, or open the directory that already holds this very recipe.

        Raises UserError naming the keys if the directory holds another recipe (a changed recipe is another run).
        """
        digest = fingerprint(recipe)
        path = root / run_name(cell, digest)
        path.mkdir(parents=True, exist_ok=True)
        with _flock(path / ".freeze.lock"):
            if (path / "run.json").exists():
                record = cls.open(path)
                record.require_recipe(recipe)
                return record
            config = {
                "format": FORMAT,
                "fingerprint": digest,
                "cell": dict(cell),
                "deviations": dict(deviations),
                "recipe": dict(recipe),
            } | provenance()
            write_json(path / "run.json", config)
            write_json(path / "status.json", {"state": "prepared", "attempt": 0, "step": 0, "steps": None, "reason": None})
            # Read back, so that what runs is what was written and never an object that only this process has.
            return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> RunRecord:
        """Open a run directory; UserError if it is none, is of another format, or its recipe no longer has its fingerprint."""
        file = Path(path) / "run.json"
        if not file.is_file():
            raise UserError(f"{path} is not a run directory (no run.json). Give a directory that experiments.train created.")
        config = read_json(file)
        if config.get("format") != FORMAT:
            raise UserError(f"{file}: format {config.get('format')!r} is not known here (this version reads {FORMAT})")
        if fingerprint(config["recipe"]) != config["fingerprint"]:
            raise UserError(
                f"{file}: the recipe was edited after it was frozen (its fingerprint differs). Start a new run instead."
            )
        return cls(Path(path), config)

    def require_recipe(self, recipe: Mapping[str, Any]) -> None:
        keys = differing_keys(self.config["recipe"], recipe)
        if keys:
            raise UserError(
                f"{self.path} holds another recipe; it differs in {', '.join(keys)}. Use another directory or those values."
            )

    @property
    def trains(self) -> bool:
        return trains(self.config["recipe"])

    @property
    def done(self) -> bool:
        """True only with a positive completion record for this very fingerprint; an exit code is never evidence."""
        file = self.path / "done.json"
        return file.exists() and read_json(file).get("fingerprint") == self.config["fingerprint"]

    def status(self) -> dict[str, Any]:
        return read_json(self.path / "status.json")

    def set_status(self, state: str, **changes: Any) -> None:
        """Raises RecordUnwritable, which is no fault of the run."""
        changed = self.status() | {"state": state} | changes
        try:
            write_json(self.path / "status.json", changed)
        except OSError as e:
            raise RecordUnwritable(e.errno, e.strerror, str(self.path / "status.json")) from e

    def new_attempt(self) -> Path:
        """Create ``attempts/<k>/`` with the next free number and describe its start."""
        return next_attempt(self.path / "attempts", {k: v for k, v in provenance().items() if k != "diff"})

    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts in order. The last one without an end is running if ``alive``, else it was killed; earlier ones were killed."""
        return read_attempts(self.path / "attempts")

    def alive(self) -> bool:
        """Whether a process of this host holds the run. Asks without waiting; a run that starts at this moment is not refused."""
        try:
            with open(self.path / ".run.lock") as f:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run: a second live process is refused with RunBusy. The kernel frees the lock when the process dies."""
        with _flock(self.path / ".run.lock", tries=LOCK_TRIES):
            yield


@contextmanager
def _flock(path: Path, *, tries: int | None = None) -> Iterator[None]:
    """Waits for ever without ``tries``."""
    with open(path, "w") as f:
        for left in range(tries or 1, 0, -1):
            try:
                fcntl.flock(f, fcntl.LOCK_EX | (fcntl.LOCK_NB if tries else 0))
                break
            except BlockingIOError:
                if left == 1:
                    raise RunBusy(f"{path.parent} is being run by another process. Wait for it, or stop it first.") from None
                time.sleep(LOCK_PAUSE_S)
        yield


def find_runs(roots: list[Path]) -> list[RunRecord]:
    """Every run directory directly under the given roots (a root is ``runs/<experiment>``), sorted by path."""
    files = sorted(f for root in roots if root.is_dir() for f in root.glob("*/run.json"))
    return [RunRecord.open(f.parent) for f in files]
