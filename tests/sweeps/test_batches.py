"""What is submitted: groups, order, the batch script and how values survive it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.batch_script import Batch, Script, comment, job_name, quoted, script_text
from experiments.cluster import ClusterSection, Resources
from experiments.errors import UserError
from experiments.files import write_json
from experiments.job import read_element
from experiments.works import grouped, levels, resources_of, works_of
from sweeps import slurm
from sweeps.batches import new_batch, read_batches
from sweeps.launch import complete, require_plain_name, submit
from tests.sweeps.made import made_record, options, work_of

BIG = Resources(gpus=4, gpu_type="h200", cpus=32, mem="400G", time="1-00:00:00")
SMALL = Resources(gpus=0, cpus=1, mem="1G", time="30")


def cluster(**changes: Any) -> ClusterSection:
    asked = {"independent": BIG, "joint": BIG, "evaluation": SMALL}
    return ClusterSection(**{"name": "c", "scheduler": "slurm", "threads": 8, **asked, **changes})


def batch_of(number: int, folder: Path = Path("/r/paper/.sweeps/0a1b2c3d")) -> Batch:
    elements = tuple(
        {"run": f"/r/paper/grpo-m-cpu-s{k}-{k:08x}", "fingerprint": f"{k:08x}" * 8, "stage": "all"} for k in range(number)
    )
    return Batch(folder, elements, BIG.model_dump())


GOLDEN = r"""#!/bin/bash
#SBATCH --job-name=graft-0a1b2c3d
#SBATCH --comment="graft 0a1b2c3d 00000000 00000001"
#SBATCH --output=/r/paper/.sweeps/0a1b2c3d/%a.log
#SBATCH --open-mode=append
#SBATCH --export=NONE
#SBATCH --requeue
#SBATCH --signal=B:USR2@600
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=400G
#SBATCH --time=1-00:00:00
#SBATCH --gpus-per-node=h200:4
#SBATCH --partition=gpu
#SBATCH --account=abc
#SBATCH --array=0-1%8
#SBATCH --dependency=afterok:17_3:18
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --exclude=n1
set -e
trap '' USR2
module load cuda
export PYTHONPATH='/r/the code'
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=8
export TOKENIZERS_PARALLELISM=false
export GRAFT_SIGNAL_LEAD=600
export GRAFT_MAX_TIMEOUTS=3
export GRAFT_SCRATCH=/local
export HF_HOME=/hf
export HF_HUB_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
export A='it'"'"'s $HOME'
cd '/r/the code'
exec /venv/bin/python -m experiments.job --batch /r/paper/.sweeps/0a1b2c3d/batch.json --element "${SLURM_ARRAY_TASK_ID:-0}"
"""


def test_the_whole_script() -> None:
    section = cluster(
        partition="gpu",
        account="abc",
        max_running=8,
        lead=600,
        extra=("--exclude=n1",),
        setup=("module load cuda",),
        environment={"A": "it's $HOME"},
        scratch="/local",
        hub_cache="/hf",
        hub_offline=True,
    )
    script = Script(section, BIG, Path("/r/the code"), "/venv/bin/python", ("17_3", "18"))
    assert script_text(batch_of(2), script) == GOLDEN


def test_a_single_job_is_named_after_its_run() -> None:
    text = script_text(batch_of(1), Script(cluster(), SMALL, Path("/c"), "python"))
    lines = text.splitlines()
    assert "#SBATCH --job-name=graft-grpo-m-cpu-s0-00000000" in lines
    assert "#SBATCH --output=/r/paper/.sweeps/0a1b2c3d/0.log" in lines
    assert not [x for x in lines if "--array" in x or "--gpus" in x or "--dependency" in x]


def test_percent_signs_of_a_folder_are_no_patterns() -> None:
    folder = Path("/100%a %j/.sweeps/x")
    single = script_text(batch_of(1, folder), Script(cluster(), SMALL, Path("/c"), "python"))
    array = script_text(batch_of(2, folder), Script(cluster(), SMALL, Path("/c"), "python"))
    assert '#SBATCH --output="/100%%a %%j/.sweeps/x/0.log"\n' in single
    assert '#SBATCH --output="/100%%a %%j/.sweeps/x/%a.log"\n' in array


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("--hold", "--hold"),
        ("--mem=1G", "--mem=1G"),
        ("--comment=a b", '--comment="a b"'),
        ('--comment=a "b" \\c', '--comment="a \\"b\\" \\\\c"'),
        ("--output=/é/x", "--output=/é/x"),
        ("--comment=a#b", '--comment="a#b"'),
        ("--comment=a=b", '--comment="a=b"'),
    ],
)
def test_quoting_of_options(given: str, written: str) -> None:
    assert quoted(given) == written


VALUES = [
    "a,b",
    "x=y",
    "{a: [b]}",
    "two  spaces ",
    "é≥√",
    'it\'s "so"',
    "$HOME `date` $(date)",
    "a\\b",
    "*",
    "~",
    "#",
    "!x;&|<>",
    "",
]


@pytest.mark.parametrize("value", VALUES)
def test_bash_reads_back_what_was_meant(value: str, tmp_path: Path) -> None:
    """Variables, the code's folder and the batch's, all with the value in them; bash runs the real script with another python."""
    said = tmp_path / "said"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nprintf "%s\\0" "$V" "$PWD" "$@" > "{said}"\n')
    python.chmod(0o755)
    code = tmp_path / f"code{value}"
    code.mkdir()
    batch = batch_of(1, tmp_path / f"batch{value}")
    text = script_text(batch, Script(cluster(environment={"V": value}), SMALL, code, str(python)))
    (tmp_path / "script.sh").write_text(text)
    assert subprocess.run(["bash", "-n", tmp_path / "script.sh"], capture_output=True).returncode == 0
    subprocess.run(["bash", tmp_path / "script.sh"], check=True)
    words = said.read_text().split("\0")[:-1]
    expected = ["-m", "experiments.job", "--batch", str(batch.folder / "batch.json"), "--element", "0"]
    assert words == [value, str(code), *expected]


def test_a_comment_stays_within_what_slurm_takes() -> None:
    long = comment(batch_of(1000))
    assert len(long) <= 1024  # measured on Slurm 22.05: 1025 characters are refused
    assert long.startswith("graft 0a1b2c3d 00000000 00000001 ")
    assert job_name(batch_of(1000)) == "graft-0a1b2c3d"


def test_a_batch_is_found_again_as_it_was_written(tmp_path: Path) -> None:
    works = [work_of(made_record(tmp_path, seed=k), "train") for k in range(2)]
    made = new_batch(tmp_path, works, SMALL)
    assert read_batches(tmp_path) == [made]
    made.submitted("77")
    assert read_batches(tmp_path) == [replace(made, job_id="77")]
    assert [read_batches(tmp_path)[0].task(k) for k in range(2)] == ["77_0", "77_1"]
    element = read_element(made.folder / "batch.json", 1)
    assert (element.run, element.options, element.stage) == (works[1].record.path, works[1].options, "train")


def test_stages_of_a_run(tmp_path: Path) -> None:
    record = made_record(tmp_path)
    asked = options(tmp_path)
    assert [w.stage for w in works_of(record, asked, cluster())] == ["all"]
    training, evaluation = works_of(record, asked, cluster(stages="apart"))
    assert (training.stage, evaluation.stage, evaluation.after) == ("train", "evaluate", (training.key,))
    assert [w.stage for w in works_of(record, replace(asked, evaluate=False), cluster(stages="apart"))] == ["all"]
    untrained = made_record(tmp_path, method="base")
    assert [w.stage for w in works_of(untrained, asked, cluster(stages="apart"))] == ["all"]
    assert not complete(training)
    write_json(record.path / "selected.json", {})
    assert complete(training)
    assert not complete(evaluation)


def test_resources_by_kind(tmp_path: Path) -> None:
    joint = Resources(gpus=2, cpus=2, mem="1G", time="30")
    section = cluster(joint=joint)
    one, two = made_record(tmp_path), made_record(tmp_path, "graft", ("a", "b"))
    assert resources_of(work_of(one), section) == BIG
    assert resources_of(work_of(two), section) == joint
    assert resources_of(work_of(two, "evaluate"), section) == SMALL
    assert resources_of(work_of(made_record(tmp_path, "base")), section) == SMALL


def test_levels_follow_needs(tmp_path: Path) -> None:
    a, b, c = (work_of(made_record(tmp_path, seed=k)) for k in range(3))
    b, c = replace(b, after=(a.key,)), replace(c, after=(b.key,))
    assert levels([c, b, a]) == [[a], [b], [c]]
    assert levels([c]) == [[c]]  # what it needs is none of these
    with pytest.raises(UserError, match="wait for each other"):
        levels([replace(a, after=(c.key,)), b, c])


def test_groups_have_equal_resources_and_equal_needs(tmp_path: Path) -> None:
    works = [work_of(made_record(tmp_path, seed=k)) for k in range(3)]
    base = work_of(made_record(tmp_path, "base"))
    behind = replace(work_of(made_record(tmp_path, seed=9)), after=(works[0].key, "met already"))
    groups = grouped([*works, base, behind], cluster(), {works[0].key: "5_0"})
    assert groups == {(BIG, ()): works, (SMALL, ()): [base], (BIG, ("5_0",)): [behind]}


@pytest.mark.parametrize(("error", "kept"), [(UserError, False), (slurm.NoAnswer, True)])
def test_what_a_failed_submission_leaves(
    error: type[UserError], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused batch is gone. One without an answer may be in the queue, and is found there by the next launch."""

    def refuse(*_: object) -> str:
        raise error("no")

    monkeypatch.setattr(slurm, "submit", refuse)
    with pytest.raises(error):
        submit(tmp_path, [work_of(made_record(tmp_path))], Script(cluster(), SMALL, tmp_path, "python"))
    assert [b.job_id for b in read_batches(tmp_path)] == [None] * kept
    assert len(list((tmp_path / ".sweeps").iterdir())) == kept


def test_names_that_slurm_changes_are_refused(tmp_path: Path) -> None:
    require_plain_name(tmp_path / "a b,c=é%")
    for name in ("a\\b", "a\nb"):
        with pytest.raises(UserError, match="backslash or a line break"):
            require_plain_name(tmp_path / name)
