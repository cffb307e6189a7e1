"""The notebooks: stripped in git, compile, and run on smoke records, on none, and (one_step_of_graft) on the packaged pair."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import nbformat
import pytest

from tests.experiments.smoke import table8

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "notebooks"
ON_RECORDS = ("ablations", "complementarity", "compute_vs_score")
NAMES = (*ON_RECORDS, "one_step_of_graft")


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_these_are_all():
    assert sorted(p.stem for p in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_run_is_in_git(name: str):
    notebook = read(name)
    nbformat.validate(notebook)
    assert len(code(notebook)) > 3
    assert not any(cell.outputs or cell.execution_count is not None or cell.metadata for cell in code(notebook))
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}  # no version of the interpreter that happened to write it


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_compiles_and_is_introduced(name: str):
    notebook = read(name)
    for k, cell in enumerate(code(notebook)):
        compile(cell.source, f"{name}, cell {k}", "exec")
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_import_the_project_and_define_no_analysis(name: str):
    trees = [ast.parse(cell.source) for cell in code(read(name))]
    assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for tree in trees for node in ast.walk(tree))
    modules = {node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert ("analysis.notebook" in modules) == (name in ON_RECORDS)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """Runs of GRPO (both models) and GRAFT at scale smoke."""
    where = tmp_path_factory.mktemp("smoke") / "runs"
    made = table8(tmp_path_factory) / "runs" / "paper"
    for run in (p for kind in ("grpo-*", "graft-1-*") for p in made.glob(kind)):
        shutil.copytree(run, where / "paper" / run.name)
    return where


@pytest.fixture
def quiet(monkeypatch) -> None:
    """No setting of the caller's reaches the kernel."""
    for name in ("GRAFT_RUNS", "GRAFT_SCALE", "GRAFT_EXPERIMENT", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def run(name: str) -> list[nbformat.NotebookNode]:
    """All outputs, in order; a cell that fails is an error here."""
    import nbclient

    notebook = read(name)
    client = nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    return [output for cell in code(notebook) for output in cell.outputs]


def shown(outputs: list[nbformat.NotebookNode], kind: str) -> list[str]:
    return [o.data[kind] for o in outputs if kind in o.get("data", {})]


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_RECORDS)
def test_notebooks_on_smoke_records(name: str, smoke: Path, quiet, monkeypatch):
    monkeypatch.setenv("GRAFT_RUNS", str(smoke))
    outputs = run(name)
    assert "3 finished runs of 3 at scale smoke" in shown(outputs, "text/markdown")[0]
    assert shown(outputs, "image/png")
    assert shown(outputs, "text/html")  # data frames
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    if name == "ablations":
        assert "### (a) Components, random controls, order" in shown(outputs, "text/markdown")[1]
    if name == "compute_vs_score":
        assert "graft-1-smoke-s0-" in shown(outputs, "text/plain")[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_RECORDS)
def test_notebooks_without_records_say_so(name: str, tmp_path: Path, quiet, monkeypatch):
    monkeypatch.setenv("GRAFT_RUNS", str(tmp_path))
    first = shown(run(name), "text/markdown")[0]
    assert f"No finished run at scale cpu under `{tmp_path / 'paper'}`" in first
    assert "GRAFT_RUNS" in first


@pytest.mark.slow
def test_one_step_of_graft(quiet):
    outputs = run("one_step_of_graft")
    printed = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")
    assert "an all-fail one: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]" in printed
    assert "'admitted'" in printed
    assert ": s = " in printed
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    frames = shown(outputs, "text/plain")
    assert any(all(word in frame for word in ("advantage", "weight", "reason")) for frame in frames)
    assert any("tokens (denominator of eq. 10)" in frame for frame in frames)
