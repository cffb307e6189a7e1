"""The main command at smoke scale, end to end: launcher, jobs, records, table; then again, when everything is reused."""

from __future__ import annotations

import csv
import json
import time

import pytest

from experiments.run_record import RunRecord
from tests.experiments.smoke import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("table2")
    done = run("sweeps.launch", "table2", "--scale", "smoke", "--jobs", "2", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def test_every_run_is_done_and_traceable(place):
    records = [RunRecord.open(p.parent) for p in place.glob("runs/paper/*/run.json")]
    assert sorted(r.config["cell"]["method"] for r in records) == ["base", "base", "graft", "grpo", "grpo"]
    for r in records:
        assert r.done
        assert r.config["versions"]["torch"]
        assert {"commit", "dirty", "argv", "host"} <= r.config.keys()
        counts = json.loads((r.path / "done.json").read_text())
        assert counts["evaluation_rows"] > 0


def test_table_has_every_row_of_the_paper_and_numbers_for_ours(place):
    made = run("analysis", "table2", "--scale", "smoke", "--out", "reports", cwd=place)
    assert made.returncode == 0, made.stderr
    with open(place / "reports" / "smoke" / "table2.csv") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == "row,receiver,benchmark,mean,std,n,N,delta,reported_mean,reported_std,reported_delta".split(",")
    filled = {(r["row"], r["receiver"]) for r in rows if r["mean"]}
    assert filled >= {(slug, x) for slug in ("full", "grpo_n8") for x in ("smollm3-3b", "qwen3-1.7b")}
    assert {r["row"] for r in rows} >= {"wo_compat_gate", "hacpo", "sgt"}
    assert all((place / "reports" / "smoke" / f"table2.{kind}").stat().st_size > 0 for kind in ("md", "tex"))
    assert "claims nothing" in made.stdout


def test_second_launch_reuses_everything(place):
    before = {p: p.read_bytes() for p in place.glob("runs/paper/*/done.json")}
    started = time.monotonic()
    again = run("sweeps.launch", "table2", "--scale", "smoke", cwd=place)
    assert again.returncode == 0
    assert "5 done already, 0 to run" in again.stdout
    assert {p: p.read_bytes() for p in place.glob("runs/paper/*/done.json")} == before
    assert time.monotonic() - started < 60


def test_failing_run_fails_the_launch_and_says_why(place, tmp_path):
    broken = run("sweeps.launch", "table2", "--scale", "smoke", "--overrides", "scale.training.max_prompt_tokens=3", cwd=tmp_path)
    assert broken.returncode not in (0, 2)
    assert "max_prompt_tokens" in broken.stdout
    statuses = [json.loads(p.read_text()) for p in tmp_path.glob("runs/paper/*/status.json")]
    assert statuses
    assert all(s["state"] == "failed" and "max_prompt_tokens" in s["reason"] for s in statuses)


def test_mistake_stops_the_launch_before_anything_starts(tmp_path):
    refused = run("sweeps.launch", "table2", "--scale", "unheard", cwd=tmp_path)
    assert refused.returncode == 2
    assert "unheard" in refused.stderr
    assert not (tmp_path / "runs").exists()
