"""dry_run=true: recipes as JSON, and for a Slurm cluster the batch scripts that a launch of the same runs would submit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from experiments.config import load_config, resolve
from experiments.train import SCRIPTS_FOLLOW, task
from experiments.works import add_runs, preview

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PAPER = ("method=graft", "pair=1", "scale=paper", "dry_run=true")


def shown(capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[list[dict], str, str]:
    """(JSON documents, text after the heading line, stderr)."""
    task(list(overrides))
    out, err = capsys.readouterr()
    recipes, _, rest = out.partition(SCRIPTS_FOLLOW)
    documents, decoder = [], json.JSONDecoder()
    while recipes := recipes.lstrip():
        document, end = decoder.raw_decode(recipes)
        documents.append(document)
        recipes = recipes[end:]
    return documents, rest.partition("\n")[2], err


@pytest.mark.parametrize("cluster", ["slurm", "h200x4"])
def test_a_slurm_cluster_gets_the_script_of_a_launch(cluster, capsys, tmp_path):
    given = (*PAPER, f"cluster={cluster}", f"runs_root={tmp_path / 'runs'}")
    (document,), script, err = shown(capsys, *given)
    assert document["recipe"]["training"]["learning_rate"] == 1e-6
    runs: dict = {}
    add_runs(runs, *resolve(given))
    assert script == preview(runs, load_config(given).cluster)
    assert f"#SBATCH --job-name=graft-{Path(document['directory']).name}" in script
    assert f"#SBATCH --gpus-per-node={'h200:' if cluster == 'h200x4' else ''}4\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert err.startswith("note: without data.root= ")
    assert "Submitting needs data.root=<folder of the files>" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data files at {DATA}; docs/data.md says how to get them")
def test_with_the_problem_files_there_is_nothing_to_note(capsys, tmp_path):
    given = (*PAPER, "cluster=h200x4", f"data.root={DATA}", f"runs_root={tmp_path / 'runs'}")
    (document,), script, err = shown(capsys, *given)
    assert document["recipe"]["data"]["train"]["sha256"]
    assert f"#SBATCH --job-name=graft-{Path(document['directory']).name}" in script
    assert not err


def test_a_local_cluster_gets_recipes_only(capsys, tmp_path):
    task([*PAPER, f"runs_root={tmp_path / 'runs'}"])
    out, err = capsys.readouterr()
    assert json.loads(out)["cell"]["method"] == "graft"
    assert not err


def test_generated_sets_need_no_data_root(capsys):
    documents, script, err = shown(capsys, "method=grpo", "scale=cpu", "cluster=slurm", "dry_run=true")
    assert len(documents) == 2
    assert "#SBATCH --array=0-1" in script
    assert not err


def test_a_donor_that_must_run_first_has_its_script_too(capsys):
    (document,), script, _ = shown(
        capsys, "method=graft_stored", "model=tiny-qwen3", "scale=cpu", "cluster=slurm", "dry_run=true"
    )
    (donor,) = document["needs"]
    first, second = script.split("#!/bin/bash\n")[1:]
    assert f"--job-name=graft-{donor}" in first
    assert f'--dependency="afterok:<{donor}>"' in second
