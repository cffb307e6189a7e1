"""What the notebooks call: which records they find, and what they say when there are none."""

from __future__ import annotations

import pytest

from analysis import notebook
from experiments.run_record import UserError

from .conftest import Runs, share


def environ(runs: Runs, **more: str) -> dict[str, str]:
    return {"GRAFT_RUNS": str(runs.root.parent), "GRAFT_EXPERIMENT": runs.root.name, **more}


def test_the_largest_scale_with_a_finished_run(runs: Runs):
    runs.make("graft", share(1), cell={"scale": "smoke"})
    runs.make("graft", share(1))
    runs.make("graft", share(1), cell={"scale": "paper"}, done=False)
    found = notebook.here(environ(runs))
    assert found.scale == "cpu"
    assert [r.config["cell"]["scale"] for r in found.records] == ["cpu"]
    assert "1 finished runs of 1 at scale cpu" in found._repr_markdown_()
    assert notebook.here(environ(runs, GRAFT_SCALE="smoke")).scale == "smoke"


def test_no_records(runs: Runs):
    found = notebook.here(environ(runs))
    assert found.done == ()
    text = found._repr_markdown_()
    assert f"No finished run at scale cpu under `{runs.root}`" in text
    assert "GRAFT_RUNS" in text
    assert notebook.costs(found).empty


def test_a_scale_that_is_not_known(runs: Runs):
    with pytest.raises(UserError, match="known are smoke, cpu, paper"):
        notebook.here(environ(runs, GRAFT_SCALE="huge"))


def test_figure_gives_its_points_and_picture(runs: Runs):
    runs.make("graft", share(3))
    runs.make("peer_first", share(2))
    shown = notebook.figure("figure_ablation", notebook.here(environ(runs)))
    assert shown._repr_png_().startswith(b"\x89PNG")
    mine = shown.points[(shown.points["source"] == "runs") & (shown.points["series"] == "peer_first")]
    # 2 of 4 against 3 of 4, for both receivers
    assert mine["y"].tolist() == [-25.0, -25.0]
    assert "## Table 2." in notebook.table("table2", notebook.here(environ(runs)))._repr_markdown_()
