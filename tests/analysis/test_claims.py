"""Claims: what each kind of check finds, by hand; errors in the file; the paper's own numbers; small run records; the command."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.cells import Key, Value
from analysis.claim_checks import judge, judge_claim
from analysis.claim_spec import KINDS, Check, Claim, _Reader, load_claims
from analysis.collect import open_runs
from analysis.paper import load_reported
from analysis.records_cells import Records
from experiments.run_record import UserError

from .conftest import Runs, share

TABLES = Path(__file__).resolve().parents[2] / "paper_tables"
CLAIMS = TABLES / "claims.yaml"


@dataclass
class Given:
    """A source of given cells; a key is its row's name."""

    rows: Mapping[str, Value]
    comparison: str = "level"
    complete: bool = False
    name: str = "given"
    asked: list[Key] = field(default_factory=list)

    def cell(self, key: Key) -> Value | None:
        self.asked.append(key)
        return self.rows.get(key.row)


def cell(row: str) -> dict[str, str]:
    return {"table": "t", "row": row, "column": "average"}


def diff(x: str, y: str) -> dict[str, Any]:
    return {"difference": [cell(x), cell(y)]}


def check(given: dict[str, Any], sets: dict[str, Any] | None = None) -> Check:
    return _Reader(sets or {}, {}, "test").check(given)


def score(mean: float, std: float | None = 0.2, n: int = 5) -> Value:
    return Value(mean, std, n, f"{n} runs", half_unit=0.005, runs=(f"run of {mean}",))


# With std 0.2 and n = 5, a difference has se sqrt(2 * 0.04 / 5) = 0.12649 and half width 2.776 * 0.12649 = 0.35115.
SOURCE = Given({"high": score(12.0), "mid": score(11.0), "near": score(11.3), "alone": score(14.0, None, 1)})


@pytest.mark.parametrize(
    ("given", "verdict", "numbers"),
    [
        ({"positive": diff("high", "mid")}, "holds", "margin +1"),
        ({"positive": diff("near", "mid")}, "holds within noise", "margin +0.3"),  # 0.3 < 0.35
        ({"positive": diff("mid", "near")}, "fails", "margin -0.3; 1 of 1 not above 0, within noise"),
        ({"positive": diff("mid", "high")}, "fails", "margin -1; 1 of 1 not above 0"),
        ({"positive": diff("mid", "mid")}, "fails", "margin +0; 1 of 1 not above 0, within noise"),
        ({"positive": diff("alone", "mid")}, "holds within noise", "margin +3"),  # the noise of one run is not known
        ({"positive": [diff("high", "mid"), diff("near", "mid")]}, "holds within noise", "smallest margin +0.3; 1 of 2 within noise"),
        ({"positive": diff("high", "absent")}, "not enough data", "no cell: t absent average"),
        ({"negative": diff("mid", "high")}, "holds", "loss +1"),
        ({"negative": [diff("mid", "high"), diff("high", "mid")]}, "fails", "smallest loss -1; 1 of 2 not above 0"),
        ({"descending": [cell("high"), cell("near"), cell("mid")]}, "holds within noise", "12, 11.3, 11; smallest margin +0.3; 1 of 2 within noise"),
        ({"descending": [cell("mid"), cell("high")]}, "fails", "11, 12; margin -1; 1 of 1 not above 0"),
        ({"count_positive": [diff("high", "mid"), diff("mid", "high")], "printed": "1"}, "holds", "1 of 2 against 1; nearest to 0 +1"),
        ({"count_positive": [diff("high", "mid"), diff("mid", "near")], "printed": "1"}, "holds within noise",
         "1 of 2 against 1; nearest to 0 -0.3; 1 within noise"),
        ({"count_negative": [diff("high", "mid"), diff("mid", "near")], "printed": "2"}, "fails", "1 of 2 against 2"),
        ({"level": [diff("near", "mid")]}, "holds within noise", "+0.3"),
        ({"level": [diff("near", "mid"), diff("high", "mid")]}, "fails", "+0.3, +1"),
        ({"level": [diff("alone", "mid")]}, "not enough data", "+3; the noise is not known"),
        ({"equals": diff("high", "mid"), "printed": "1.0"}, "holds", "1.0 against 1.0"),
        ({"equals": diff("high", "mid"), "printed": "1.20"}, "holds within noise", "1.00 against 1.20"),
        ({"equals": diff("high", "mid"), "printed": "1.40"}, "fails", "1.00 against 1.40"),
        ({"equals": diff("high", "mid"), "printed": "1", "what": "gain"}, "holds", "gain: 1 against 1"),
        ({"near": {"ratio": [cell("high"), cell("mid")]}, "to": 1, "within": 0.1}, "holds", "1.091, within 0.1 of 1"),
        ({"near": {"ratio": [cell("high"), cell("mid")]}, "to": 1, "within": 0.05}, "fails", "1.091, within 0.05 of 1"),
        ({"zero": [diff("mid", "mid")]}, "holds", "1 of 1 equal"),
        ({"zero": [diff("mid", "mid"), diff("high", "mid")]}, "fails", "1 of 2 equal; off by 1"),
        ({"given": [cell("high"), cell("mid")]}, "holds", "all 2 cells are there"),
        ({"given": [cell("high"), cell("absent"), cell("gone")]}, "not enough data", "no cell: t absent average and 1 more"),
        # (5 - 1) / sqrt(5) * 0.2 = 0.35777, and rounding 0.005 * (2 + 1.78885) = 0.01894: 0.3 is reachable, 1 is 0.6233 too far.
        ({"reachable": diff("high", "mid")}, "fails", "0 of 1 possible; too far by 0.623"),
        ({"reachable": diff("near", "mid")}, "holds", "1 of 1 possible"),
        ({"reachable": diff("mid", "alone")}, "not enough data", "one run has no spread"),
        ({"unchecked": "why"}, "not enough data", "why"),
        ({"equals": {"ratio": [cell("high"), 0]}, "printed": "1"}, "not enough data", "a ratio to 0"),
    ],
)  # fmt: skip
def test_findings_by_hand(given: dict[str, Any], verdict: str, numbers: str):
    found = judge(check(given), SOURCE)
    assert found.verdict == verdict
    assert found.numbers == numbers


def test_extremes_name_a_row_and_measure_it_against_the_others():
    sets = {"rows": [{"row": "high"}, {"row": "near"}, {"row": "mid"}]}
    each = {"each": "rows", "of": {"table": "t", "column": "average"}}
    assert judge(check({"highest": each, "is": "high"}, sets), SOURCE).verdict == "holds"
    low = judge(check({"lowest": each, "is": "mid"}, sets), SOURCE)
    assert (low.verdict, low.numbers) == ("holds within noise", "mid 11; smallest margin +0.3 (near); 1 of 2 within noise")
    assert judge(check({"lowest": each, "is": "near"}, sets), SOURCE).verdict == "fails"
    with pytest.raises(UserError, match="'is' names one of"):
        check({"lowest": each, "is": "base"}, sets)


def test_interval_noise_and_runs_are_those_of_the_cells():
    found = judge(check({"positive": diff("high", "mid")}), SOURCE)
    assert (found.interval, found.noise, found.runs) == ("[0.65, 1.35]", ("5 runs",), ("run of 12.0", "run of 11.0"))
    assert judge(check({"positive": diff("high", "absent")}), SOURCE).runs == ()


def test_numbers_of_the_paper_are_not_compared_at_another_scale_and_not_forgiven_on_paper():
    number = check({"equals": diff("high", "mid"), "printed": "1.20"})
    sign = check({"positive": diff("high", "mid")})
    other = Given(SOURCE.rows, "direction")
    assert judge(number, other).verdict == "not compared"
    assert other.asked == []
    assert judge(number, Given(SOURCE.rows, "printed")).verdict == "fails"
    # A claim is as good as its worst check that could be compared; with none there is no verdict.
    assert judge_claim(Claim("X", "", "", ("t",), (number, sign)), other).verdict == "holds"
    assert judge_claim(Claim("X", "", "", ("t",), (number,)), other).verdict == "not enough data"
    wrong = check({"positive": diff("mid", "high")})
    lacking = check({"positive": diff("mid", "absent")})
    assert judge_claim(Claim("X", "", "", ("t",), (sign, lacking)), SOURCE).verdict == "not enough data"
    assert judge_claim(Claim("X", "", "", ("t",), (sign, lacking, wrong)), SOURCE).verdict == "fails"
    assert judge_claim(Claim("X", "", "", ("t",), (sign,), beside=(wrong,)), SOURCE).verdict == "holds"


def test_cells_that_a_complete_source_lacks_were_not_printed():
    found = judge(check({"given": [cell("high"), cell("absent")]}), Given(SOURCE.rows, complete=True))
    assert (found.verdict, found.numbers) == ("fails", "not printed: t absent average")
    # Only "given" is about presence: any other check on a missing cell has no verdict.
    assert judge(check({"positive": diff("high", "absent")}), Given(SOURCE.rows, complete=True)).verdict == "not enough data"


def test_sets_terms_and_bindings_fill_cells():
    reader = _Reader(
        {"pairs": [{"pair": 1}, {"pair": 2}], "rows": [{"row": "x"}, {"row": "y"}]},
        {"score": {"table": "t", "column": "c"}},
        "test",
    )
    items = reader.items([{"each": "pairs", "of": {"each": "rows", "of": {"use": "score"}}}], {})
    assert [label for label, _ in items] == ["pair 1 x", "pair 1 y", "pair 2 x", "pair 2 y"]
    assert [e.key for _, e in items] == [Key("t", row, "c", "", pair) for pair in "12" for row in "xy"]
    inner = reader.expression({"with": {"row": "z", "receiver": "m"}, "of": {"use": "score"}}, {"pair": "3"})
    assert inner.key == Key("t", "z", "c", "m", "3")
    # What a cell says itself is not overridden.
    assert reader.expression({"table": "t", "row": "own", "column": "c"}, {"row": "z"}).key.row == "own"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"equals": {"__import__": ["os"]}, "printed": "1"}, "no operation '__import__'"),
        ({"equals": "1 + 1", "printed": "2"}, "an expression is a number, a cell or one operation, got '1 \\+ 1'"),
        ({"equals": 1, "printed": 2.1}, "'printed' is a text in quotes"),
        ({"equals": 1, "printed": "2.1x"}, "'printed' is no number"),
        ({"equals": [1, 2], "printed": "1"}, "'equals' got 2 expressions"),
        ({"equals": {"difference": [1, 2, 3]}, "printed": "1"}, "difference is of 2 expressions, got 3"),
        ({"equals": {"mean": []}, "printed": "1"}, "mean is of one or more expressions, got 0"),
        ({"positive": {"use": "gain"}}, "no term 'gain'"),
        ({"positive": {"each": "blocks", "of": 1}}, "'each' names one of the sets"),
        ({"positive": {"with": {"colour": "red"}, "of": 1}}, "a binding gives some of"),
        ({"positive": {"table": "t", "row": "x"}}, "has no column"),
        ({"positive": {"table": "t", "row": "x", "column": "c", "std": 1}}, "got \\['std'\\]"),
        ({"positive": True}, "an expression is"),
        ({"above": [1]}, "a check has one of"),
        ({"positive": [1], "printed": "1"}, "has the keys positive and may have"),
        ({"positive": []}, "got 0 expressions"),
        ({"given": [1]}, "'given' lists cells"),
        ({"reachable": [1]}, "'reachable' lists differences"),
    ],
)  # fmt: skip
def test_a_check_without_meaning_is_refused(given: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        check(given)


SMALL = """
sets: {}
terms: {gain: {difference: [{table: table1, row: a, column: c}, {table: table1, row: b, column: c}]}}
claims:
  - {id: C01, text: A gain, source: Sec 1, needs: [table1], checks: [{positive: {use: gain}}]}
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("needs: [table1]", "needs: [table2]"), r"C01: needs \['table2'\], while the checks are on \['table1'\]"),
        (
            ("claims:\n", "claims:\n  - {id: C01, text: x, source: x, needs: [], checks: [{unchecked: x}]}\n"),
            "an id is given twice",
        ),
        (("text: A gain", "verdict: holds"), "a claim has checks, id, needs, source, text"),
        (("checks: [{positive: {use: gain}}]", "checks: []"), "C01: needs"),
        (("sets: {}", "steps: {}"), "keys sets, terms, claims"),
        (("sets: {}", "sets: {"), "cannot be read"),
    ],
)
def test_the_file_is_refused_for_a_wrong_table_key_or_id(tmp_path: Path, change: tuple[str, str], message: str):
    file = tmp_path / "claims.yaml"
    file.write_text(SMALL)
    assert [c.id for c in load_claims(file)] == ["C01"]
    assert change[0] in SMALL
    file.write_text(SMALL.replace(*change))
    with pytest.raises(UserError, match=message):
        load_claims(file)


def test_every_kind_of_check_is_used():
    assert {check.kind for claim in load_claims(CLAIMS) for check in claim.checks} == set(KINDS)


def test_every_line_of_claims_csv_is_a_claim_in_its_words():
    with open(TABLES / "reported" / "claims.csv", encoding="utf-8", newline="") as f:
        lines = [(line["id"], line["text"], line["where"]) for line in csv.DictReader(f)]
    assert [(c.id, c.text, c.source) for c in load_claims(CLAIMS)] == lines


# All others hold.
EXPECTED = {
    "fails": ["C18", "C45"],
    "not enough data": ["C04", "C05", "C15", "C23", "C46", "C47"],
    "holds within noise": ["C03", "C06", "C09", "C11", "C13", "C16", "C29", "C31", "C32", "C33", "A03", "A04"],
}


def test_claims_on_the_papers_own_numbers():
    source = load_reported(TABLES / "reported")
    judged = {c.id: judge_claim(c, source) for c in load_claims(CLAIMS)}
    for verdict, ids in EXPECTED.items():
        assert [i for i, j in judged.items() if j.verdict == verdict] == ids
    assert sum(j.verdict == "holds" for j in judged.values()) == 65 - 20
    # C01: gains 4.46, 2.24, 2.29, 1.58, 0.66, 1.42: sum 12.65, mean 2.1083.
    assert judged["C01"].findings[0].numbers == "mean: 2.1083 against 2.1 (after rounding)"
    # On three training runs: 3.97 + 1.86 + 2.05 + 0.99 + 0.91 + 1.42 = 11.20, mean 1.8667.
    assert (judged["C01"].beside[0].verdict, judged["C01"].beside[0].numbers) == (
        "fails",
        "mean of three training runs: 1.8667 against 2.1",
    )
    assert [f.verdict for f in judged["C18"].findings] == ["holds", "holds", "fails"]
    # C11: 23.47 - 23.39 and 32.78 - 32.43.
    assert judged["C11"].findings[0].numbers == "+0.08, +0.35"
    assert judged["C45"].findings[0].numbers.startswith("table 7: not printed: table7 success_only")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The claims and reported files with table 2 as the only spec: the small runs have two of the five benchmarks."""
    folder = tmp_path / "paper_tables"
    (folder / "specs").mkdir(parents=True)
    shutil.copy(TABLES / "specs" / "table2.yaml", folder / "specs")
    shutil.copy(CLAIMS, folder)
    shutil.copytree(TABLES / "reported", folder / "reported")
    return folder


@pytest.fixture
def records(runs: Runs) -> Runs:
    """Per model 4 samples: GRAFT 3 right, GRPO 2 on smollm3-3b and 3 on qwen3-1.7b, without floor 2 in run 0 and 3 in run 1."""
    runs.make("graft", share(3))
    runs.make("grpo", share(2), models=("smollm3-3b",), pair=None)
    runs.make("grpo", share(3), models=("qwen3-1.7b",), pair=None)
    runs.make("wo_floor", lambda model, benchmark, run, item, sample: sample < 2 + run)
    return runs


def test_claims_on_run_records(records: Runs, tables: Path, methods: Path):
    source = Records(open_runs(records.root), "cpu", [0], tables / "specs", methods)
    full = source.cell(Key("table2", "full", "average", "smollm3-3b"))
    assert (full.mean, full.std, full.n, full.noise) == (75.0, 0.0, 2, "2 evaluation runs of one checkpoint")
    assert [Path(run).name[:5] for run in full.runs] == ["graft"]
    judged = {c.id: judge_claim(c, source) for c in load_claims(CLAIMS)}
    # A09: GRPO loses 25 points on one receiver and none on the other.
    assert judged["A09"].verdict == "fails"
    assert [f.verdict for f in judged["A09"].findings] == ["not compared", "not compared", "fails"]
    # A02: 62.5 with runs 50 and 75: std 17.68, n = 2; 12.5 is less than 12.706 * 17.68 / sqrt(2) = 158.8.
    assert judged["A02"].verdict == "holds within noise"
    assert judged["A02"].findings[2].interval == "[-146.32, 171.32]"
    assert {i for i, j in judged.items() if j.verdict != "not enough data"} == {"A02", "A09"}
    # Other scales and pairs have no cell, nor have rows without a run or tables without a spec.
    assert (
        Records(open_runs(records.root), "smoke", [0], tables / "specs", methods).cell(
            Key("table2", "full", "average", "qwen3-1.7b")
        )
        is None
    )
    for key in (
        ("table2", "sgt", "average", "smollm3-3b"),
        ("table2", "full", "average", "smollm3-3b", "2"),
        ("figure1", "grpo_n8", "x"),
    ):
        assert source.cell(Key(*key)) is None


def test_a_short_run_is_no_cell(records: Runs, tables: Path, methods: Path):
    graft = next(r for r in open_runs(records.root) if r.config["cell"]["method"] == "graft")
    rows = records.read(graft, "tiny-qwen3", "arith-large", 1)
    records.write(graft, "tiny-qwen3", "arith-large", 1, rows[:-1])
    source = Records(open_runs(records.root), "cpu", [0], tables / "specs", methods)
    assert source.cell(Key("table2", "full", "average", "qwen3-1.7b")) is None
    assert source.cell(Key("table2", "full", "average", "smollm3-3b")) is not None
    a09 = next(c for c in load_claims(CLAIMS) if c.id == "A09")
    assert judge_claim(a09, source).verdict == "not enough data"


def test_several_training_seeds_show_the_noise_of_training(records: Runs, tables: Path, methods: Path):
    records.make("graft", share(1), cell={"seed": 1})
    source = Records(open_runs(records.root), "cpu", [0, 1], tables / "specs", methods)
    # Means 75 and 25 of two training runs: mean 50, sample std sqrt(2 * 25^2) = 35.36.
    full = source.cell(Key("table2", "full", "average", "smollm3-3b"))
    assert (full.mean, full.std, full.n) == (50.0, pytest.approx(35.3553, abs=1e-4), 2)
    assert (full.noise, len(full.runs)) == ("2 training runs, each the mean of its evaluation runs", 2)
    # Without the second seed there is no cell, however whole the first is.
    assert source.cell(Key("table2", "wo_floor", "average", "smollm3-3b")) is None


def test_the_command(records: Runs, tables: Path, methods: Path, capsys):
    root = ["--root", str(records.root.parent), "--methods", str(methods), "--tables", str(tables)]
    assert main(["claims", *root, "--format", "csv"]) == 0
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert len(rows) == 65
    assert rows["A02"]["numbers"].endswith("2 numbers of the paper's scale not compared")
    assert rows["A02"]["noise"] == "2 evaluation runs of one checkpoint"
    assert rows["A02"]["runs"].count("/wo_floor-1-cpu-s0-") == 1
    assert main(["claims", "--reported", "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert "65 claims: 45 holds, 12 holds within noise, 6 not enough data, 2 fails." in text
    assert "Signs and orders" not in text
    assert main(["claims", "--reported", "--ids", "C18"]) == 0
    assert "0.4446 against 0.45" in capsys.readouterr().out
    assert main(["claims", *root, "--experiment", "empty", "--ids", "A02"]) == 0
    assert "No run directory under" in capsys.readouterr().err
    for wrong, message in (
        (["--ids", "Z1"], "no claim Z1"),
        (["--seeds", "0", "0"], "names one twice"),
        (["--tables", "/nowhere"], "cannot be read"),
    ):
        assert main(["claims", *root, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_clipped_shares_of_runs_are_pooled_counts(records: Runs, tables: Path, methods: Path):
    shutil.copy(TABLES / "specs" / "table9.yaml", tables / "specs")
    tokens = {"tiny-smollm3": (100, 1, 40, 1), "tiny-qwen3": (100, 0, 50, 2)}
    less = {"tiny-smollm3": (100, 1, 60, 0), "tiny-qwen3": (100, 0, 150, 1)}
    graft = next(r for r in open_runs(records.root) if r.config["cell"]["method"] == "graft")
    records.metrics(graft, [tokens, less])
    records.metrics(records.make("peer_first", share(1)), [less])
    records.metrics(records.make("peer_uniform", share(1)), [less])
    source = Records(open_runs(records.root), "cpu", [0], tables / "specs", methods)
    # 1 of 40 + 60 tokens, not the mean of 2.5 % and 0 %; 3 of 200.
    last = [source.cell(Key("table9", "peer_last", "grafted_peer", x)) for x in ("smollm3-3b", "qwen3-1.7b")]
    assert [(v.mean, v.counted, v.std) for v in last] == [(1.0, True, None), (1.5, True, None)]
    assert [Path(run).name[:5] for run in last[0].runs] == ["graft"]
    assert source.cell(Key("table9", "peer_last", "steps_with_zero_peer_clipping", "both")).mean == 0.0
    # C35: 1 % over 0 %, 1.5 % over 0.667 %: counts, so no noise stands against them.
    judged = {c.id: judge_claim(c, source) for c in load_claims(CLAIMS) if c.id in ("C34", "C35", "C36")}
    assert {i: j.verdict for i, j in judged.items()} == {"C34": "not enough data", "C35": "holds", "C36": "not enough data"}
    assert (
        Records(open_runs(records.root), "cpu", [0, 1], tables / "specs", methods).cell(
            Key("table9", "peer_last", "grafted_peer", "qwen3-1.7b")
        )
        is None
    )
