"""The main commands at smoke scale, end to end: launcher, jobs, records, tables; then again, when everything is reused.

Table 8 is launched: it has runs of every kind (untouched, independent, joint), and tables 2, 7 and 9 share some of them.
"""

from __future__ import annotations

import csv
import json
import time

import pytest

from experiments.run_record import RunRecord
from sweeps.cells import cells, load_spec, unique_runs
from tests.experiments.smoke import run, run_cold, table8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return table8(tmp_path_factory)


def test_every_run_is_done_and_traceable(place):
    records = [RunRecord.open(p.parent) for p in place.glob("runs/paper/*/run.json")]
    wanted, lacking = unique_runs(list(cells(load_spec("table8"), scale="smoke", seed=0)), [])
    assert sorted(r.path.name for r in records) == sorted(wanted)
    assert not lacking
    for r in records:
        assert r.done
        assert r.config["versions"]["torch"]
        assert {"commit", "dirty", "argv", "host"} <= r.config.keys()
        counts = json.loads((r.path / "done.json").read_text())
        assert counts["evaluation_rows"] > 0


def analysed(place, table: str) -> list[dict[str, str]]:
    """The CSV of a table, written together with its other two forms."""
    made = run_cold("analysis", table, "--scale", "smoke", "--out", "reports", cwd=place)
    assert made.returncode == 0, made.stderr
    assert "claims nothing" in made.stdout
    assert all((place / "reports" / "smoke" / f"{table}.{kind}").stat().st_size > 0 for kind in ("md", "tex"))
    with open(place / "reports" / "smoke" / f"{table}.csv") as f:
        return list(csv.DictReader(f))


@pytest.fixture(scope="module")
def eight(place):
    return analysed(place, "table8")


def test_table8_has_a_number_in_every_cell(eight):
    rows = eight
    assert list(rows[0]) == "row,receiver,benchmark,mean,std,n,N,delta,reported_mean,reported_std,reported_delta".split(",")
    assert len(rows) == 9 * 2 * 6
    assert all(r["mean"] and r["n"] == r["N"] == "2" for r in rows)
    assert all((r["reported_mean"] == "") == (r["row"] == "base") for r in rows)
    assert all((r["delta"] == "") == (r["row"] == "full") for r in rows)


@pytest.mark.parametrize("table", ["table2", "table7"])
def test_tables_that_share_runs_show_their_numbers_and_list_the_rest(place, eight, table):
    known = {(r["row"], r["receiver"]): r["mean"] for r in eight if r["benchmark"] == "average"}
    rows = [r for r in analysed(place, table) if r["benchmark"] == "average"]
    filled = {(r["row"], r["receiver"]): r["mean"] for r in rows if r["mean"]}
    assert filled.items() <= known.items()
    assert {slug for slug, _ in filled} >= {"base", "full", "wo_balancing", "grpo_n8"}
    text = (place / "reports" / "smoke" / f"{table}.md").read_text()
    assert "`python -m experiments.train method=wo_floor pair=1 seed=0 scale=smoke`" in text


def test_table9_and_exchange_read_the_metrics_of_graft(place):
    rows = analysed(place, "table9")
    full = [r for r in rows if r["row"] == "peer_last" and r["update"] == "self_generated"]
    assert len(full) == 2 * 2
    assert all(0 <= float(r["value"]) <= 100 and r["steps"] == "3" for r in full)
    assert not any(r["value"] for r in rows if r["row"] != "peer_last")
    (path,) = place.glob("runs/paper/graft-1-smoke-s0-*")
    made = run_cold("analysis", "exchange", "--run", str(path), "--format", "csv", cwd=place)
    assert made.returncode == 0, made.stderr
    directions = [r for r in csv.DictReader(made.stdout.splitlines()) if not r["reason"]]
    assert [(r["source"], r["steps"]) for r in directions] == [("tiny-qwen3", "3"), ("tiny-smollm3", "3")]


def test_second_launch_reuses_everything(place):
    before = {p: p.read_bytes() for p in place.glob("runs/paper/*/done.json")}
    started = time.monotonic()
    again = run("sweeps", "launch", "table8", "--scale", "smoke", cwd=place)
    assert again.returncode == 0
    assert f"{len(before)} done already, 0 to run" in again.stdout
    assert {p: p.read_bytes() for p in place.glob("runs/paper/*/done.json")} == before
    assert time.monotonic() - started < 60


def test_failing_run_fails_the_launch_and_says_why(place, tmp_path):
    broken = run(
        "sweeps",
        "launch",
        "table9",
        "--scale",
        "smoke",
        "--jobs",
        "1",
        "--overrides",
        "scale.training.max_prompt_tokens=3",
        cwd=tmp_path,
    )
    assert broken.returncode not in (0, 2)
    assert "max_prompt_tokens" in broken.stdout
    statuses = [json.loads(p.read_text()) for p in tmp_path.glob("runs/paper/*/status.json")]
    assert statuses
    assert all(s["state"] == "failed" and "max_prompt_tokens" in s["reason"] for s in statuses)


def test_mistake_stops_the_launch_before_anything_starts(tmp_path):
    refused = run("sweeps", "launch", "table2", "--scale", "unheard", cwd=tmp_path)
    assert refused.returncode == 2
    assert "unheard" in refused.stderr
    assert not (tmp_path / "runs").exists()
