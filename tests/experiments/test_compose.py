"""Composing the parts once and putting them together gives what Hydra composes as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import compose
from experiments.compose import CONF, composed, override
from experiments.config import load_config
from experiments.errors import UserError


def options(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


def whole(overrides: list[str]) -> dict:
    return dict(compose._whole(tuple(overrides)))


@pytest.mark.parametrize("method", options("method"))
def test_every_method_put_together_equals_the_whole_composition(method: str):
    overrides = [f"method={method}", "scale=smoke", "seed=3"]
    assert composed(overrides) == whole(overrides)
    assert composed(overrides)["seed"] == 3


@pytest.mark.parametrize(
    "overrides",
    [
        *(["pair='" + p + "'", "scale=cpu"] for p in options("pair")),
        *(["cluster=" + c, "scale=cpu"] for c in options("cluster")),
        ["method=graft", "method.delta=0.7", "pair='2'", "scale=paper", "seed=11", "data.root=/x"],
        ["+method.new=1", "++pair.name=q", "model=tiny-qwen3", "experiment=e"],
        ["seed=1", "seed=2"],
        ["method=grpo", "method.n=16", "method.advantage_eps=1e-5"],
        ["cluster=slurm", "cluster.joint.gpus=8", "cluster.joint={gpus: 2, cpus: 3}", "++cluster.environment={A: b}"],
        ["cluster=slurm", "cluster.setup=['a b', \"c'd\"]", "cluster.partition='x,y=z'", "cluster.partition=null"],
        ["method='graft'", "method.name=grpo"],
        ["method.delta=0.3"],
        ["method=grpo", "method=graft", "method.delta=0.3", "method.delta=0.4"],
        ["cluster=slurm", "cluster.setup=[a]", override("runs_root", "a b, {c}=d"), "cluster.threads=4"],
    ],
)
def test_parts_equal_the_whole(overrides: list[str]):
    assert composed(overrides) == whole(overrides)


def test_a_file_that_reaches_beyond_its_section_is_composed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import shutil

    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / "method" / "reaching.yaml").write_text(
        "# @package _global_\nmethod: {name: graft, n: 4}\ndata: {prompt_suffix: elsewhere}\n"
    )
    monkeypatch.setattr(compose, "CONF", conf)
    compose._whole.cache_clear()
    compose._alone.cache_clear()
    try:
        made = composed(["method=reaching", "seed=5", "pair='2'"])
        assert (made["data"]["prompt_suffix"], made["seed"], made["pair"]["name"]) == ("elsewhere", 5, "2")
        assert made == whole(["method=reaching", "seed=5", "pair='2'"])
    finally:
        compose._whole.cache_clear()
        compose._alone.cache_clear()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster=slurm", "cluster.joint.time=soon"], "Slurm's notation"),
        (["cluster=slurm", "cluster.joint.mem=lots"], "Slurm's notation"),
        (["cluster=slurm", "cluster.joint=null"], "independent, joint and evaluation"),
        (["cluster=slurm", "cluster.extra=['--requeue']"], "set by the launcher"),
        (["cluster=slurm", "cluster.extra=['-n 4']"], "long sbatch option"),
        (["+cluster.stages=apart"], "local run trains and evaluates"),
        (["cluster=slurm", "++cluster.environment={a-b: 1}"], "environment variable"),
        (["cluster=slurm", "+cluster.gpus=3"], "cluster.gpus"),
    ],
)
def test_a_wrong_cluster_is_refused_by_its_key(overrides: list[str], message: str):
    with pytest.raises(UserError, match=message):
        load_config(overrides)
