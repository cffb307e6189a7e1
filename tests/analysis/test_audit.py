"""The audit of the printed numbers: verdicts by hand, the divisor test against enumeration, one changed digit, the command."""

from __future__ import annotations

import csv
import io
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.audit import audit
from analysis.audit_check import Check, Comparison, against, at_most, unknown, verdict_of
from analysis.audit_scores import possible_std
from analysis.cells import Value
from analysis.paper import half_unit

TABLES = Path(__file__).resolve().parents[2] / "paper_tables"


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    return {f"{c.group}: {c.name}": c for c in audit(TABLES)}


@pytest.mark.parametrize(
    ("computed", "printed", "slack", "verdict"),
    [
        (1.18, "1.18", 0.0, "exact"),
        (2.1083, "2.1", 0.0, "after rounding"),
        (2.485, "2.48", 0.0, "after rounding"),  # a half rounds either way
        (2.485, "2.49", 0.0, "after rounding"),
        (0.4446, "0.45", 0.0, "does not hold"),  # it rounds to 0.44
        (37.066, "37.06", 0.005, "after rounding"),  # 0.006 off: half a printed digit and 0.001 of the inputs' 0.005
        (37.071, "37.06", 0.005, "does not hold"),
        (84.4269, "84", 0.0, "after rounding"),
    ],
)
def test_verdicts_by_hand(computed: float, printed: str, slack: float, verdict: str):
    assert verdict_of(computed, printed, slack) == verdict


def test_half_unit_is_half_of_the_last_printed_digit():
    assert [half_unit(x) for x in ("2.10", "84", "0.0", "1e-6")] == pytest.approx([0.005, 0.5, 0.05, 5e-7])
    with pytest.raises(ValueError, match="could not convert"):
        half_unit("AdamW")


def test_a_check_is_as_good_as_its_worst_comparison_and_names_it():
    good, off = against("a", 1.0, "1.0"), against("b", 1.2, "1.0")
    check = Check("g", "n", (good, off, unknown("c", "not printed")))
    assert check.verdict == "does not hold"
    assert check.numbers == "3 compared: 1 exact, 1 cannot be checked, 1 does not hold; b: 1.2 against 1.0"
    assert Check("g", "n", (good, unknown("c", "why"))).verdict == "cannot be checked"
    assert at_most("d", 0.3, 0.28, 0.01) == Comparison("d", "0.300 of at most 0.280", "does not hold", pytest.approx(0.02))


def test_possible_stds_are_those_that_enumeration_finds():
    # Five runs of up to 3 correct of 24 responses, step 100 / 24: every mean and std that can be printed, by both divisors.
    step = 100 / 24
    printed = {4: set(), 5: set()}
    for counts in product(range(4), repeat=5):
        values = step * np.array(counts)
        for divisor in printed:
            std = float(np.sqrt(((values - values.mean()) ** 2).sum() / divisor))
            printed[divisor].add((round(float(values.mean()), 2), round(std, 2)))
    for divisor, other in ((4, 5), (5, 4)):
        # Never refused where it can occur ...
        assert all(possible_std(_value(m, s), step, divisor) for m, s in printed[divisor])
        # ... and most stds of the other divisor are.
        foreign = printed[other] - printed[divisor]
        refused = sum(not possible_std(_value(m, s), step, divisor) for m, s in foreign)
        assert refused > 0.8 * len(foreign) > 10


def _value(mean: float, std: float) -> Value:
    return Value(mean, std, 5, half_unit=0.005)


def test_what_the_papers_numbers_say(checks: dict[str, Check]):
    verdicts = {name: c.verdict for name, c in checks.items()}
    assert {name for name, v in verdicts.items() if v == "does not hold"} == {
        "text: C18 GRAFT pair mean above that of GRPO n=32 at this share of it…",
        "text: C01 beside it: mean of three training runs",
        "text: C22 beside it: without SmolLM3-3B in pair 3",
        "text: C22 the share of the text in each block, %",
        "training runs: gain over GRPO on three runs is that of table 1",
        "clipping: table 9: shares of steps with zero clipping are k/96",
    }
    assert all(v == "exact" for name, v in verdicts.items() if name.startswith(("differences", "repeats")))
    # 40.9 / 92.0 = 0.44457; the largest it can be is 40.95 / 91.95 = 0.44535.
    compute = checks["text: C18 GRAFT pair mean above that of GRPO n=32 at this share of it…"].comparisons[1]
    assert compute.numbers == "0.4446 against 0.45 (unrounded inputs allow 0.4438 to 0.4454)"
    # Gains of stored logs without pair 3 smollm3-3b: 2.68 + 1.81 + 1.90 + 1.43 + 0.80 = 8.62; online 4.46 + 2.24 + 2.29 + 1.58 + 1.42
    # = 11.99; 8.62 / 11.99 = 0.71893.
    assert checks["text: C22 beside it: without SmolLM3-3B in pair 3"].numbers == "71.8932 against 84"
    std = checks["std: AIME and AMC stds that five runs can give with n - 1 as divisor"]
    assert (std.numbers, std.remark[:35]) == ("181 against 181", "with n as divisor only 78 of the 18")
    # Every printed average is compared: 27 + 12 + 18 + 26 + 16 rows.
    assert sum(len(c.comparisons) for name, c in checks.items() if name.startswith("averages")) == 99
    assert checks["possible means: table4: means that 120 responses an item can give"].remark.startswith(
        "2.05, 7.91, 9.66 fit only"
    )


def test_one_changed_digit_is_found_where_it_enters(tmp_path: Path, checks: dict[str, Check]):
    shutil.copytree(TABLES, tmp_path / "tables")
    folder = tmp_path / "tables" / "reported"
    file = folder / "table7_ablation_full.csv"
    line = "7,1,smollm3-3b,reference,full,0.8,aime2024,14.42,1.49,"
    assert line in file.read_text()
    file.write_text(file.read_text().replace(line, line.replace("14.42", "14.92")))
    changed = {f"{c.group}: {c.name}": c for c in audit(tmp_path / "tables")}
    assert {name for name in checks if checks[name].verdict != changed[name].verdict} == {
        "averages: table7: mean of the five benchmarks",
        "repeats: table7 repeats table1",
        "std: AIME and AMC stds that five runs can give with n - 1 as divisor",
    }
    # 14.92 is 179 / 12 and so possible, yet 179 correct in five runs cannot have this std; the average is off by 0.5 / 5 = 0.1.
    assert "37.166 against 37.06" in changed["averages: table7: mean of the five benchmarks"].numbers


def test_the_command_prints_all_formats_and_ends_with_0(capsys):
    assert main(["audit-paper", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["verdict"] for row in rows} == {"exact", "after rounding", "does not hold", "cannot be checked"}
    assert main(["audit-paper", "--format", "md"]) == 0
    assert (
        "C18 compute: 0.4446 against 0.45 (unrounded inputs allow 0.4438 to 0.4454) | does not hold |" in capsys.readouterr().out
    )
    assert main(["audit-paper"]) == 0
    assert "does not hold" in capsys.readouterr().out
    assert main(["audit-paper", "--all", "--format", "csv"]) == 0
    every = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(every) > 900
    assert (
        sum(row["verdict"] == "does not hold" for row in every) == 3 + 6 + 5 + 2
    )  # in pair 3 octothinker-3b gains 1.42 either way


@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        ("table5_compute.csv", None, "cannot be read"),
        ("table4_stability.csv", ("training_runs,benchmark,mean", "training_runs,benchmark,average"), "no column 'mean'"),
        ("table6_stored.csv", ("6,1,smollm3-3b,qwen3-1.7b,grpo_n8,8,math500,72.08,", "6,1,smollm3-3b,qwen3-1.7b,grpo_n8,8,math500,7x,"), "7x"),
        ("table2_ablations.csv", ("b,reference,full,smollm3-3b,37.06", "b,reference,full,smollm3-3b,37.07"), "earlier line"),
        ("table9_clipping.csv", (",0.046,percent", ",0.046,percent,9"), "more or fewer fields"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_ends_with_2(tmp_path: Path, capsys, file: str, edit: tuple[str, str] | None, message: str):
    shutil.copytree(TABLES, tmp_path / "tables")
    folder = tmp_path / "tables" / "reported"
    if edit is None:
        (folder / file).unlink()
    else:
        assert edit[0] in (folder / file).read_text()
        (folder / file).write_text((folder / file).read_text().replace(edit[0], edit[1], 1))
    assert main(["audit-paper", "--tables", str(tmp_path / "tables")]) == 2
    err = capsys.readouterr().err
    assert file in err
    assert message in err
    assert err.count("\n") == 1
