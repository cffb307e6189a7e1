"""What stands beside pass@1, by hand, and the rows that do not say it."""

from __future__ import annotations

import csv
import io

import pytest

from analysis.__main__ import main
from analysis.quality import load, to_csv
from experiments.run_record import UserError

from .conftest import BENCHMARKS, Runs, share

QWEN = ("qwen3-1.7b",)


def table(path) -> dict[tuple[str, str], tuple[str, str, str, str]]:
    _, found = load(path)
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert list(rows[0]) == ["model", "benchmark", "metric", "mean", "std", "n", "N"]
    return {(r["benchmark"], r["metric"]): (r["mean"], r["std"], r["n"], r["N"]) for r in rows}


def rewrite(runs: Runs, record, benchmark: str, run: int, change) -> None:
    rows = runs.read(record, "tiny-qwen3", benchmark, run)
    for row in rows:
        change(row)
    runs.write(record, "tiny-qwen3", benchmark, run, rows)


def test_numbers_by_hand(runs: Runs):
    # arith-heldout: 2 items x 4 samples, arith-large: 1 item x 4 samples; the first 1 (run 0) or 2 (run 1) samples are right
    record = runs.make("grpo", lambda m, b, run, i, s: s < 1 + run, models=QWEN, pair=None)

    def change(row):
        # samples 0 and 1 say 2, sample 2 says 3, sample 3 has no box and is cut off; in run 1 it times out instead
        row["extracted"] = {2: "3", 3: None}.get(row["sample"], "2")
        row["how"] = {3: "boxed missing" if row["run"] == 0 else "timeout"}.get(row["sample"], "equal")
        row["finish_reason"] = "length" if row["sample"] == 3 and row["run"] == 0 else "eos"
        row["tokens"] = 10 if row["run"] == 0 else 20

    for benchmark, _, _ in BENCHMARKS:
        for run in range(2):
            rewrite(runs, record, benchmark, run, change)
    got = table(record.path)
    # pass@1: 25 and 50 % -> 37.5, std sqrt(2 x 12.5^2) = 17.677670
    assert got["arith-heldout", "pass@1"] == ("37.5", "17.67767", "2", "2")
    # pass@2: c = 1: 1 - C(3,2)/C(4,2) = 50 %; c = 2: 1 - 1/6 = 83.3333 % -> mean 66.666667
    assert got["arith-heldout", "pass@2"][0] == "66.666667"
    assert got["arith-heldout", "pass@4"][0] == "100.0"
    # majority "2" with two of three votes: run 0 one of its two verdicts is right (as if lost to a timeout) 50 %, run 1 100 %
    assert got["arith-heldout", "maj@4"][0] == "75.0"
    assert got["arith-heldout", "cut off"][0] == got["arith-heldout", "boxed missing"][0] == "12.5"
    assert got["arith-heldout", "timeout"][0] == "12.5"
    assert got["arith-heldout", "parse error"] == ("0.0", "0.0", "2", "2")
    assert got["arith-heldout", "tokens"][0] == "15.0"
    assert got["average", "pass@1"] == got["arith-heldout", "pass@1"]
    assert ("arith-heldout", "pass@8") not in got


def test_short_runs_are_left_out_and_counted(runs: Runs):
    record = runs.make("grpo", share(2), models=QWEN, pair=None)
    runs.write(record, "tiny-qwen3", "arith-large", 1, runs.read(record, "tiny-qwen3", "arith-large", 1)[:-1])
    got = table(record.path)
    assert got["arith-large", "pass@1"] == ("50.0", "", "1", "2")
    assert got["arith-heldout", "pass@1"] == ("50.0", "0.0", "2", "2")
    assert got["average", "pass@1"][2:] == ("1", "2")


def test_rows_that_do_not_say_it_have_no_value(runs: Runs):
    record = runs.make("grpo", share(2), models=QWEN, pair=None)
    rewrite(runs, record, "arith-large", 0, lambda row: row.update(finish_reason="unknown", tokens=-1, how=None))
    got = table(record.path)
    for metric in ("cut off", "tokens", "timeout"):
        assert got["arith-large", metric][0] == got["average", metric][0] == ""
        assert got["arith-heldout", metric][0] != ""


def test_doubled_rows_are_refused(runs: Runs):
    record = runs.make("grpo", share(2), models=QWEN, pair=None)
    rows = runs.read(record, "tiny-qwen3", "arith-large", 0)
    runs.write(record, "tiny-qwen3", "arith-large", 0, [*rows, rows[0]])
    with pytest.raises(UserError, match="doubled"):
        load(record.path)


def test_formats(runs: Runs, capsys):
    record = runs.make("graft", share(1))
    assert main(["quality", "--run", str(record.path), "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert "### tiny-qwen3" in text
    assert "| row | pass@1 | pass@2 | pass@4 | maj@4 | cut off | tokens |" in text
    assert "| average | 25.00 ± 0.00 |" in text
    assert main(["quality", "--run", str(record.path)]) == 0
    assert "unbiased estimate" in capsys.readouterr().out
    assert main(["quality", "--run", str(record.path.parent)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_run_without_rows_says_what_to_do(runs: Runs, capsys):
    record = runs.make("graft", share(1))
    for file in record.path.glob("eval/*/*/*.jsonl"):
        file.unlink()
    assert main(["quality", "--run", str(record.path)]) == 2
    assert "experiments.evaluate run=" in capsys.readouterr().err
