"""The code that a queued run will use: a copy of the tree, made once per state of it, so that later edits change no queued job.

A snapshot is named by its contents. Its ``CODE.json`` says which commit it is and what differed from it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.files import write_json
from experiments.run_record import code_version

PROJECT = Path(__file__).resolve().parent.parent
# What a run imports or reads; notebooks, tests and reports are not needed on a node.
PARTS = ("graft", "experiments", "sweeps", "analysis", "paper_tables", "pyproject.toml")


def files_of(project: Path) -> list[Path]:
    """The project's files below PARTS, relative and sorted: those that git knows or would add; without git, all but caches."""
    names = _git_files(project, "--cached", "--others", "--exclude-standard") if (project / ".git").exists() else set()
    if not names:
        every = (p for part in PARTS for p in ([project / part] if (project / part).is_file() else (project / part).rglob("*")))
        names = {p.relative_to(project) for p in every if "__pycache__" not in p.parts}
    return sorted(n for n in names if (project / n).is_file())


def _git_files(project: Path, *which: str) -> set[Path]:
    """What git lists below PARTS; nothing where git does not answer."""
    command = ["git", "-C", str(project), "ls-files", "-z", *which, "--", *PARTS]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return set()
    return {Path(os.fsdecode(n)) for n in listed.split(b"\0") if n}


def digest_of(project: Path, files: Sequence[Path]) -> str:
    """SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for name in files:
        content = (project / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def version_of(project: Path) -> dict[str, Any]:
    """``code_version``, which does not see new files: those of PARTS that git would add are named, and make the tree dirty."""
    code = code_version(project)
    listed = _git_files(project, "--others", "--exclude-standard") if code["commit"] else []
    new = sorted(str(n) for n in listed)
    return {**code, "dirty": code["dirty"] or bool(new), "new_files": new}


def require_clean(project: Path = PROJECT) -> None:
    """UserError when the tree is no checkout or differs from its commit; it names how to see the difference."""
    code = version_of(project)
    if code["dirty"] or not code["commit"]:
        state = "differs from its commit (git status and git diff HEAD show how)" if code["commit"] else "is not a git checkout"
        raise UserError(f"require_clean: the code in {project} {state}; commit first, or launch without require_clean")


def take(root: Path, project: Path = PROJECT) -> Path:
    """The snapshot of ``project`` as it stands now, under ``root/.code``; made if it is not there yet."""
    code = version_of(project)
    files = files_of(project)
    target = _named(root, code, digest_of(project, files))
    if (target / "CODE.json").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: process ids repeat between machines that share the file system.
    aside = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=target.parent))
    try:
        for name in files:
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / name, aside / name)
        digest = digest_of(aside, files)  # of the copy: a file may have been edited since
        target = _named(root, code, digest)
        write_json(aside / "CODE.json", {**code, "sha256": digest})
        aside.chmod(0o755)  # mkdtemp's is the owner's alone
        os.rename(aside, target)
    except OSError:
        if not (target / "CODE.json").exists():  # else another launch made the same one first
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _named(root: Path, code: Mapping[str, Any], digest: str) -> Path:
    return root / ".code" / f"{(code['commit'] or 'nocommit')[:8]}-{digest[:12]}"
