"""The code that queued runs use: named by its contents, with the difference from its commit on record, untouched by later edits."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.files import read_json
from experiments.run_record import code_version
from sweeps import snapshot
from sweeps.snapshot import PARTS, PROJECT, files_of, require_clean, take


def git(project: Path, *args: str) -> str:
    command = ["git", "-C", str(project), "-c", "user.name=t", "-c", "user.email=t@localhost", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small checkout: code, a cache that git ignores, and something that no run needs."""
    made = tmp_path / "project"
    for name, text in {
        "graft/a.py": "A = 1\n",
        "sweeps/conf/é ü.yaml": "x: 1\n",
        "pyproject.toml": "[project]\n",
        "docs/page.md": "page\n",
        ".gitignore": "__pycache__/\n",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made / "graft" / "__pycache__").mkdir()
    (made / "graft" / "__pycache__" / "a.pyc").write_bytes(b"\0")
    git(made, "init", "-q")
    git(made, "add", "-A")
    git(made, "commit", "-q", "-m", "all")
    return made


def test_a_clean_tree(project: Path, tmp_path: Path) -> None:
    taken = take(tmp_path / "runs", project)
    files = sorted(str(p.relative_to(taken)) for p in taken.rglob("*") if p.is_file())
    assert files == ["CODE.json", "graft/a.py", "pyproject.toml", "sweeps/conf/é ü.yaml"]
    code = read_json(taken / "CODE.json")
    commit = git(project, "rev-parse", "HEAD")
    assert (code["commit"], code["dirty"], code["diff"], code["new_files"]) == (commit, False, None, [])
    assert taken.name == f"{commit[:8]}-{code['sha256'][:12]}"
    # A process that runs from the snapshot knows its commit.
    assert code_version(taken) == {"commit": commit, "dirty": False, "diff": None}
    require_clean(project)


def test_equal_contents_are_one_folder_and_others_are_another(project: Path, tmp_path: Path) -> None:
    first = take(tmp_path / "runs", project)
    before = (first / "CODE.json").stat().st_mtime_ns
    assert take(tmp_path / "runs", project) == first
    assert (first / "CODE.json").stat().st_mtime_ns == before
    (project / "docs" / "page.md").write_text("no run reads this")
    git(project, "commit", "-q", "-a", "--amend", "-m", "all", "--no-edit")
    (project / "graft" / "a.py").write_text("A = 2\n")
    second = take(tmp_path / "runs", project)
    assert second != first
    assert (first / "graft" / "a.py").read_text() == "A = 1\n"
    assert (second / "graft" / "a.py").read_text() == "A = 2\n"


def test_the_difference_from_the_commit_is_recorded(project: Path, tmp_path: Path) -> None:
    (project / "graft" / "a.py").write_text("A = 2\n")
    code = read_json(take(tmp_path / "runs", project) / "CODE.json")
    assert code["dirty"] is True
    assert "-A = 1\n+A = 2\n" in code["diff"]
    with pytest.raises(UserError, match="differs from its commit"):
        require_clean(project)


def test_a_new_file_makes_the_tree_dirty_although_git_diff_is_silent(project: Path, tmp_path: Path) -> None:
    (project / "graft" / "new.py").write_text("NEW = 1\n")
    taken = take(tmp_path / "runs", project)
    code = read_json(taken / "CODE.json")
    assert (code["dirty"], code["new_files"]) == (True, ["graft/new.py"])
    assert (taken / "graft" / "new.py").exists()
    with pytest.raises(UserError, match="differs from its commit"):
        require_clean(project)


def test_a_deleted_file_is_left_out(project: Path, tmp_path: Path) -> None:
    (project / "graft" / "a.py").unlink()
    assert not (take(tmp_path / "runs", project) / "graft" / "a.py").exists()


def test_without_git_everything_but_caches_is_taken(project: Path, tmp_path: Path) -> None:
    import shutil

    shutil.rmtree(project / ".git")
    taken = take(tmp_path / "runs", project)
    assert taken.name.startswith("nocommit-")
    assert [str(f) for f in files_of(project)] == ["graft/a.py", "pyproject.toml", "sweeps/conf/é ü.yaml"]
    assert read_json(taken / "CODE.json")["commit"] is None
    with pytest.raises(UserError, match="is not a git checkout"):
        require_clean(project)


def test_many_at_once_make_one(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of several machines, whose process ids may be equal."""
    for k in range(200):
        (project / "graft" / f"m{k}.py").write_text(f"K = {k}\n")
    with ThreadPoolExecutor(8) as pool:
        taken = {f.result() for f in [pool.submit(take, tmp_path / "runs", project) for _ in range(8)]}
    assert len(taken) == 1
    assert [p.name for p in (tmp_path / "runs" / ".code").iterdir()] == [taken.pop().name]
    (made,) = (tmp_path / "runs" / ".code").iterdir()
    assert len(list((made / "graft").glob("m*.py"))) == 200
    assert snapshot.digest_of(made, files_of(project)) == read_json(made / "CODE.json")["sha256"]


def test_this_project_has_all_its_parts() -> None:
    found = {f.parts[0] for f in files_of(PROJECT)}
    assert found == set(PARTS)
