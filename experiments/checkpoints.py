"""Complete checkpoints of a run: written aside, renamed, found again, pruned only after a newer one is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.errors import UserError
from experiments.files import fsync_dir, read_json, write_json
from graft.policies.base import Policy

MARKER = "COMPLETE"
# The state before the first step: files are empty and no checkpoint has been validated.
NOTHING_YET: Mapping[str, Any] = MappingProxyType(
    {"step": 0, "metrics_offset": 0, "validation_offset": 0, "validation_pending": False, "best": {}, "history": {}}
)


def _sync_tree(directory: Path) -> None:
    for file in directory.rglob("*"):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def publish(aside: Path, target: Path) -> None:
    """Fsync everything under ``aside``, mark it complete (last), and rename it to ``target`` (replacing an unfinished one)."""
    _sync_tree(aside)
    (aside / MARKER).touch()
    fsync_dir(aside)
    if target.exists():
        shutil.rmtree(target)
    os.replace(aside, target)
    fsync_dir(target.parent)


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A directory to write in. An error removes it: on a full disk the next start needs the space."""
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def save(root: Path, step: int, policies: Mapping[str, Policy], state: Mapping[str, Any]) -> Path:
    """``checkpoints/step-<k>/`` with every policy's weights and optimiser and ``state.json``."""
    target = root / f"step-{step:06d}"
    with _aside(target) as aside:
        for name, policy in policies.items():
            (aside / name).mkdir()
            policy.save(aside / name)
        write_json(aside / "state.json", dict(state))
        publish(aside, target)
    return target


def save_weights(root: Path, step: int, policy: Policy) -> None:
    """``best/<model>/step-<k>/``: weights only, for evaluation."""
    target = root / f"step-{step:06d}"
    with _aside(target) as aside:
        policy.save_weights(aside)
        publish(aside, target)


def newest(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest complete checkpoint and its state, or None."""
    complete = sorted(p for p in root.glob("step-*") if (p / MARKER).exists()) if root.is_dir() else []
    return (complete[-1], read_json(complete[-1] / "state.json")) if complete else None


def prune(root: Path, keep: set[int]) -> None:
    """Delete other steps and leftovers of a killed save. Call only when what ``keep`` names is complete."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and (path.name.endswith(".tmp") or int(path.name.removeprefix("step-")) not in keep):
            shutil.rmtree(path)


def to_resume(root: Path, resume: str) -> tuple[Path, dict[str, Any]] | None:
    """What ``resume`` = never | auto | must means for this run. ``must`` without a complete checkpoint is a UserError."""
    found = newest(root)
    if resume == "must" and found is None:
        raise UserError(f"resume=must but {root} holds no complete checkpoint. Use resume=auto to start from the base model.")
    return None if resume == "never" else found
