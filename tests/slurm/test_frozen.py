"""What a queued job does is settled when it is submitted; whatever is in a name or a value arrives as it was written."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from experiments.files import read_json
from tests.slurm.lab import Lab
from tests.slurm.sweeping import LONG, ONE, SHORT, Place, Undisturbed, copy_of_project, science

pytestmark = pytest.mark.slurm
QUICK = (*SHORT, "model=qwen3-1.7b", "scale.training.max_steps=1")
# Everything that a shell, Hydra's grammar, #SBATCH lines or Slurm's file names could take for something else.
ODD = """a,b=c {d} 100%j é≥√ "q" $HOME 'single' #5 [x]; `w` ~"""


def quoted(value: str) -> str:
    """A value in Hydra's grammar."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.mark.parametrize("after", ["edited", "removed"])
def test_later_changes_of_the_project_change_no_queued_job(
    slurm_lab: Lab, tmp_path: Path, undisturbed: Undisturbed, after: str
) -> None:
    code = copy_of_project(tmp_path / "project")
    place = Place(slurm_lab, tmp_path, code)
    place.launch(overrides=(*LONG, "cluster.extra=['--hold']"))
    if after == "edited":
        smoke = code / "sweeps" / "conf" / "scale" / "smoke.yaml"
        smoke.write_text(smoke.read_text().replace("max_steps: 3", "max_steps: 1\n  learning_rate: 0.5"))
        grpo = code / "sweeps" / "conf" / "method" / "grpo.yaml"
        grpo.write_text(grpo.read_text() + "n: 2\n")
        for module in ("experiments/job.py", "experiments/training.py", "graft/cotrain.py"):
            (code / module).write_text("raise RuntimeError('edited after submission')\n")
    else:
        shutil.rmtree(code)
    slurm_lab.run("scontrol", "release", place.job())
    assert science(place.done().path) == undisturbed()


def test_odd_names_and_values_survive_every_hop(slurm_lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    dump = tmp_path / "environment"
    python = folder / "py thon"
    python.write_text(f'#!/bin/bash\nenv -0 >{dump}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    place = Place(slurm_lab, folder)
    told = ("experiment=é.2-x_y", f"runs_root={quoted(str(folder / ODD))}", f"cluster.python={quoted(str(python))}")
    value = f"+cluster.environment.ODD={quoted(ODD)}"
    done = place.sweeps("launch", *ONE, "--wait", overrides=(*QUICK, *told, value))
    assert done.returncode == 0, done.stdout + done.stderr
    root = folder / ODD / "é.2-x_y"
    (run,) = (p.parent for p in root.glob("*/done.json"))
    (batch,) = root.glob(".sweeps/*/batch.json")
    assert f"{run}: writing here" in (batch.parent / "0.log").read_text()
    variables = dict(v.split("=", 1) for v in dump.read_bytes().decode().split("\0") if v)
    assert variables["ODD"] == ODD
    assert variables["PYTHONPATH"].startswith(str(root / ".code"))
    plain = Place(slurm_lab, tmp_path)
    plain.launch("--wait", overrides=QUICK)
    assert science(run) == science(plain.record().path)


def test_an_array_writes_each_log_below_an_odd_name(slurm_lab: Lab, tmp_path: Path) -> None:
    """A percent sign is one of Slurm's patterns in the names of logs; an array's need %a, too."""
    place = Place(slurm_lab, tmp_path)
    said = f"runs_root={quoted(str(tmp_path / '100%a %j'))}"
    broken = "scale.training.max_prompt_tokens=3"  # over at once: logs are all that is looked at
    place.sweeps("launch", "table8", "--rows", "grpo_n8", "--wait", overrides=(*SHORT, broken, said))
    (batch,) = tmp_path.glob("100%a %j/paper/.sweeps/*/batch.json")
    for k, element in enumerate(read_json(batch)["elements"]):
        assert f"{element['run']}: writing here" in (batch.parent / f"{k}.log").read_text()


def test_a_backslash_in_a_folder_is_refused(slurm_lab: Lab, tmp_path: Path) -> None:
    """Slurm drops it from the log's name, so that the job cannot start."""
    place = Place(slurm_lab, tmp_path)
    said = f"runs_root={quoted(str(tmp_path / 'a') + chr(92) + 'b')}"
    refused = place.sweeps("launch", *ONE, overrides=(*QUICK, said))
    assert refused.returncode == 2
    assert "backslash" in refused.stderr
    assert not list(tmp_path.glob("a*"))


def test_nothing_of_the_launching_shell_reaches_the_job(slurm_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_LAUNCHING_SHELL", "1")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    dump = tmp_path / "environment"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/bash\nenv -0 >{dump}\nexit 3\n")
    python.chmod(0o755)
    place = Place(slurm_lab, tmp_path)
    failed = place.sweeps("launch", *ONE, "--wait", overrides=(*QUICK, f"cluster.python={python}"))
    assert failed.returncode == 1
    assert b"OF_THE_LAUNCHING_SHELL" not in dump.read_bytes()
    (standing,) = place.status(QUICK)
    assert (standing["state"], standing["job"]) == ("failed", place.job())
    assert "without a complete record" in standing["reason"]


def test_relative_paths_are_those_of_the_launching_folder(slurm_lab: Lab, tmp_path: Path) -> None:
    """A model's folder named relative to where the launch happened; the job runs elsewhere."""
    from experiments.tiny import resolve_model_path

    shutil.copytree(resolve_model_path("package:tiny-qwen3"), tmp_path / "models" / "mine")
    place = Place(slurm_lab, tmp_path)
    place.launch("--wait", overrides=(*QUICK, "scale.models.qwen3.source=models/mine"))
    assert place.done().config["recipe"]["models"][0]["source"].startswith("sha256:")
