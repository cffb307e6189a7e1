"""The command: what it prints for the paper's pairs, as tables and as JSON, and what it says to a mistake."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from experiments.estimate.__main__ import main
from experiments.estimate.setting import gpus

ROOT = Path(__file__).parents[2]
PAIR = ("pair=1", "cluster=h200x4")


def estimated(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict]:
    assert main([*argv, "format=json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_documented_output_is_what_is_printed(capsys):
    assert main(PAIR) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    shown = (ROOT / "docs" / "estimate.md").read_text(encoding="utf-8")
    assert printed in shown, "docs/estimate.md shows the output of pair=1 cluster=h200x4; put the new one there"


def test_pair_1(capsys):
    (r,) = estimated(capsys, *PAIR)
    assert [m["parameters"] for m in r["models"]] == [3_075_098_624, 1_720_574_976]
    assert "unverified on GPUs" in r["note"]
    assert r["fits"] is True
    assert r["peak"]["bytes"] < r["gpu"]["memory"] == 141e9
    assert r["run_time"]["steps"] == 174
    # 4 bytes of each of 3,075,098,624 parameters over 4 GPUs
    assert r["models"][0]["bytes"]["weights"] == 3_075_098_624
    # 2 x 36 layers x 4 heads / 2 GPUs x 128 x 2 bytes
    assert r["models"][0]["sampler"]["kv_bytes_per_token"] == 36_864
    # 10 bytes x 32,768 tokens x 128,256 entries
    assert r["models"][0]["bytes"]["logits"] == 10 * 32_768 * 128_256


def test_the_papers_hours_are_read_from_its_table(capsys):
    with open(ROOT / "paper_tables" / "reported" / "table5_compute.csv", encoding="utf-8", newline="") as f:
        rows = {(row["method"], row["model"]): row for row in csv.DictReader(f)}
    (r,) = estimated(capsys, *PAIR)
    assert r["paper"]["hours"] == float(rows["graft", "smollm3-3b"]["both_full_run_gpu_h"])
    assert r["ratio_to_paper"] == pytest.approx(r["run_time"]["gpu_hours"] / r["paper"]["hours"])
    alone = estimated(capsys, *PAIR, "method=grpo", "method.n=16")
    hours = [float(rows["grpo_n16", m]["full_run_gpu_h"]) for m in ("smollm3-3b", "qwen3-1.7b")]
    assert [r["paper"]["hours"] for r in alone] == hours


def test_layouts(capsys):
    (together,) = estimated(capsys, *PAIR)
    (apart,) = estimated(capsys, *PAIR, "policy.layout=side_by_side")
    assert (together["placement"]["share"], apart["placement"]["share"]) == (4, 2)
    # Half as many GPUs of its own: twice the shard.
    assert apart["models"][0]["bytes"]["weights"] == 2 * together["models"][0]["bytes"]["weights"]


def test_what_does_not_fit_says_what_to_change(capsys):
    assert main([*PAIR, "policy.tokens_per_gpu=131072"]) == 0
    out = capsys.readouterr().out
    assert "DOES NOT FIT: update of qwen3-1.7b needs " in out
    assert "policy.tokens_per_gpu=32768 makes it fit" in out or "policy.tokens_per_gpu=65536 makes it fit" in out


@pytest.mark.parametrize("name", ["prompt_tokens", "response_tokens", "longest_response"])
def test_lengths_are_assumptions(name, capsys):
    (plain,), (other,) = estimated(capsys, *PAIR), estimated(capsys, *PAIR, f"assume.{name}=3000")
    assert plain["run_time"] != other["run_time"]


def test_a_length_is_never_over_the_limit(capsys):
    (r,) = estimated(capsys, *PAIR, "assume.response_tokens=9999")
    assert r["load"]["response_tokens"] == r["load"]["longest_response"] == 4096


def test_packaged_models_on_the_cpu_have_bytes_and_no_seconds(capsys):
    (r,) = estimated(capsys, "scale=cpu")
    assert r["models"][0]["parameters"] == 654_720
    assert (r["gpu"], r["fits"], r["run_time"], r["paper"]) == (None, None, None, None)
    assert main(["scale=cpu"]) == 0
    assert "no GPU is named" in capsys.readouterr().out


def test_every_gpu_says_where_its_facts_are_from():
    assert all(g.source and g.memory > 1e10 and g.bf16 > 1e14 and g.bandwidth > 1e12 for g in gpus().values())


MISTAKES = {
    "no gpu type": (("cluster=slurm",), "names no gpu_type"),
    "unknown gpu": ((*PAIR, "gpu=b1000"), "b1000 is not known; known: h200"),
    "unknown pair": (("pair=9", "cluster=h200x4"), "pair"),
    "unknown key": ((*PAIR, "policy.nonsense=1"), "nonsense"),
    "unknown assumption": ((*PAIR, "assume.speed=1"), "assume.speed is not known"),
    "no number": ((*PAIR, "assume.train_share=fast"), "is not a number"),
    "not finite": ((*PAIR, "assume.response_tokens=nan"), "give a number above 0"),
    "share over 1": ((*PAIR, "assume.train_share=1.1"), "above 0 to 1"),
    "not positive": ((*PAIR, "assume.response_tokens=0"), "give a number above 0"),
    "unknown format": ((*PAIR, "format=xml"), "format=xml"),
    "no override": ((*PAIR, "please"), "key=value"),
    "gpus that cannot be shared": ((*PAIR, "policy.layout=side_by_side", "policy.gpus=3"), "cannot be shared evenly"),
    "a micro-batch without a sequence": ((*PAIR, "policy.tokens_per_gpu=100"), "holds no sequence"),
    "more gpus than the job has": ((*PAIR, "policy.gpus=8"), "policy.gpus takes 8"),
    "nothing trains": ((*PAIR, "method=base"), "trains nothing"),
    "unknown model": ((*PAIR, "scale.models.qwen3.source=some/model"), "shape of some/model is not known"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_exit_with_2(name, capsys):
    argv, says = MISTAKES[name]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert says in err
    assert not out
