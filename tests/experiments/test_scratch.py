"""Node-local temporary files of a job."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from experiments.job import node_scratch


def test_temporary_files_lie_below_the_nodes_scratch_and_go_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NODE", str(tmp_path))
    before = tempfile.gettempdir()
    environ = {"GRAFT_SCRATCH": "$NODE"}
    with node_scratch(environ):
        with tempfile.NamedTemporaryFile() as f:
            assert Path(f.name).parent == Path(environ["TMPDIR"])
            assert Path(f.name).parent.parent == tmp_path
        (Path(environ["TMPDIR"]) / "left").write_text("x")
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == before


def test_no_scratch_changes_nothing():
    environ: dict[str, str] = {}
    with node_scratch(environ):
        assert environ == {}


def test_a_scratch_that_a_node_lacks_is_named(tmp_path: Path):
    with pytest.raises(SystemExit, match="must exist on every node"), node_scratch({"GRAFT_SCRATCH": str(tmp_path / "none")}):
        pass
