"""Validation curves: the points, the band over seeds by hand, and what is refused."""

from __future__ import annotations

import csv
import json

import pytest

from analysis.__main__ import main
from analysis.figures.curves import Curve, band

from .conftest import Runs, share


def validate(record, model: str, averages: dict[int, float]) -> None:
    rows = [
        {"step": s, "model": m, "benchmark": b, "pass@1": v if m == model else 0.0}
        for s, v in averages.items()
        for m in (model, "another")
        for b in ("arith-heldout", "average")
    ]
    with open(record.path / "validation.jsonl", "a", encoding="utf-8") as f:
        f.write("".join(json.dumps(r) + "\n" for r in rows))


def test_band_is_mean_and_extremes_at_common_steps():
    a = Curve("1", "x", "full", 0, (5, 10, 15), (0.1, 0.2, 0.3), "r0")
    b = Curve("1", "x", "full", 1, (5, 10), (0.3, 0.6), "r1")
    steps, mean, low, high = band([a, b])
    # step 5: (.1 + .3)/2 = .2; step 10: (.2 + .6)/2 = .4; step 15 is missing in one seed and is left out
    assert steps.tolist() == [5, 10]
    assert mean.tolist() == pytest.approx([0.2, 0.4])
    assert (low.tolist(), high.tolist()) == ([0.1, 0.2], [0.3, 0.6])


def test_points_and_picture(runs: Runs, tmp_path, capsys):
    record = runs.make("graft", share(1))
    validate(record, "tiny-smollm3", {5: 0.25, 10: 0.5})
    validate(record, "tiny-qwen3", {5: 0.75, 10: 0.125})
    out = tmp_path / "pictures" / "curves.png"
    root = ["--root", str(runs.root.parent), "--experiment", runs.root.name]
    assert main(["curves", *root, "--rows", "full", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(open(out.with_suffix(".csv"), encoding="utf-8")))
    got = {(r["receiver"], r["step"]): r["pass@1"] for r in rows}
    assert got == {
        ("smollm3-3b", "5"): "0.25",
        ("smollm3-3b", "10"): "0.5",
        ("qwen3-1.7b", "5"): "0.75",
        ("qwen3-1.7b", "10"): "0.125",
    }
    assert {r["run"] for r in rows} == {record.path.name}


def test_refusals(runs: Runs, tmp_path, capsys):
    root = ["--root", str(runs.root.parent), "--experiment", runs.root.name]
    out = tmp_path / "c.png"
    assert main(["curves", *root, "--out", str(out)]) == 2
    assert "no finished run of grpo_n8, full" in capsys.readouterr().err
    record = runs.make("graft", share(1))
    assert main(["curves", *root, "--rows", "full", "--out", str(out)]) == 2
    assert "0 validation averages of tiny-smollm3" in capsys.readouterr().err
    validate(record, "tiny-smollm3", {5: 0.25})
    validate(record, "tiny-smollm3", {5: 0.5})
    assert main(["curves", *root, "--rows", "full", "--out", str(out)]) == 2
    assert "validation.jsonl" in capsys.readouterr().err
    assert main(["curves", *root, "--rows", "unheard", "--out", str(out)]) == 2
    assert "table2 has no row unheard" in capsys.readouterr().err
    assert main(["curves", *root, "--out", str(tmp_path / "c.doc")]) == 2
    assert "ends in .png" in capsys.readouterr().err
    assert not out.exists()
