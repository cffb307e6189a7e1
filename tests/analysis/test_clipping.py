"""Table 9: shares of clipped tokens by hand, steps without peer tokens, runs that cannot be read, and the command."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from analysis.__main__ import main
from analysis.clipping import (
    ClippingTable,
    from_reported,
    from_runs,
    load_spec,
    measure,
    to_csv,
    to_page,
)
from analysis.collect import open_runs
from analysis.stats import mean_share, pooled_share, zero_share
from analysis.terminal import print_page
from analysis.writers import to_latex, to_markdown
from experiments.run_record import UserError

from .conftest import Runs, share

SPECS = Path(__file__).resolve().parents[2] / "paper_tables" / "specs"
S, Q = "tiny-smollm3", "tiny-qwen3"
# Per step and model: own, clipped own, peer, clipped peer tokens.
STEPS = [
    {S: (100, 1, 0, 0), Q: (200, 0, 0, 0)},
    {S: (300, 1, 40, 0), Q: (200, 2, 0, 0)},
    {S: (100, 0, 10, 1), Q: (100, 3, 50, 0)},
]


@pytest.fixture
def methods(tmp_path: Path) -> Path:
    folder = tmp_path / "method"
    folder.mkdir()
    for name in ("graft", "peer_first"):
        (folder / f"{name}.yaml").write_text("")
    return folder


def build(runs: Runs, methods: Path, **kwargs) -> ClippingTable:
    args = {"scale": "cpu", "seed": 0, "methods": methods} | kwargs
    return from_runs(load_spec("table9", SPECS), open_runs(runs.root), **args)


def values(table: ClippingTable, slug: str = "peer_last") -> list[tuple]:
    return [(v.pooled, v.step_mean, v.steps) for q in table.spec.quantities for v in [table.values[q, slug]]]


def test_shares_by_hand():
    part, whole = np.array([1, 1, 0, 0]), np.array([100, 300, 100, 0])
    # pooled: 2 / 500; mean of 1/100, 1/300, 0/100 = (0.01 + 0.00333..) / 3; one of three steps with tokens is without a hit
    assert pooled_share(part, whole) == 0.004
    assert mean_share(part, whole) == pytest.approx(0.0133333 / 3, abs=1e-7)
    assert zero_share(part, whole) == pytest.approx(1 / 3)


def test_shares_of_nothing_are_no_value_and_bad_counts_are_refused():
    none = np.zeros(3, dtype=int)
    assert [f(none, none) for f in (pooled_share, mean_share, zero_share)] == [None, None, None]
    for part, whole in (([2], [1]), ([-1], [1]), ([], []), ([1, 1], [1])):
        for f in (pooled_share, mean_share, zero_share):
            with pytest.raises(ValueError, match=r"shares need|a part is"):
                f(np.array(part), np.array(whole))


def test_table_by_hand(runs: Runs, methods: Path):
    runs.metrics(runs.make("graft", share(1)), STEPS)
    table = build(runs, methods)
    got = values(table)
    # own, smollm3: 2 of 500 = 0.4 %; mean of 1, 1/3, 0 % = 0.4444; own, qwen3: 5 of 500 = 1 %; mean of 0, 1, 3 % = 1.3333
    assert got[0] == (pytest.approx(0.4), pytest.approx(0.444444, abs=1e-6), 3)
    assert got[1] == (pytest.approx(1.0), pytest.approx(1.333333, abs=1e-6), 3)
    # peer, smollm3: 1 of 50 = 2 %; mean over its two steps with tokens of 0 and 10 % = 5; qwen3: 0 of 50, one step
    assert got[2] == (pytest.approx(2.0), pytest.approx(5.0), 2)
    assert got[3] == (0.0, 0.0, 1)
    # step 1 has no peer token and is left out; of steps 2 and 3 one has no hit in either model: 50 %
    assert got[4] == (None, 50.0, 2)
    assert any("left out: peer_last 1 of 3." in note for note in table.notes)
    assert any("sum of clipped tokens / sum of tokens" in note for note in table.notes)
    assert [(t.row, t.text) for t in table.missing] == [
        ("peer_first", "python -m experiments.train method=peer_first pair=1 seed=0 scale=cpu")
    ]
    assert table.unavailable == ("peer_uniform",)


def test_only_the_first_steps_enter_where_the_spec_says_so(runs: Runs, tmp_path: Path, methods: Path):
    folder = tmp_path / "tables" / "specs"
    shutil.copytree(SPECS.parent, folder.parent)
    spec = yaml.safe_load((folder / "table9.yaml").read_text())
    (folder / "table9.yaml").write_text(yaml.safe_dump(spec | {"steps": {"paper": 48, "cpu": 2, "smoke": None}}))
    record = runs.make("graft", share(1))
    runs.metrics(record, STEPS)
    table = from_runs(load_spec("table9", folder), open_runs(runs.root), scale="cpu", seed=0, methods=methods)
    # own, smollm3, steps 1 and 2: 2 of 400
    assert values(table)[0][::2] == (0.5, 2)
    assert any("of steps 1 to 2 of one" in note for note in table.notes)
    runs.metrics(record, STEPS[:1])
    with pytest.raises(UserError, match=r"metrics\.jsonl holds steps 1 to 1, the table needs 1 to 2"):
        from_runs(load_spec("table9", folder), open_runs(runs.root), scale="cpu", seed=0, methods=methods)


def test_paper_scale_reads_48_steps(runs: Runs, methods: Path):
    # 48 steps with 1 of 100 own tokens clipped, then 100 steps in which all are
    record = runs.make("graft", share(1), cell={"scale": "paper"})
    runs.metrics(record, [{m: (100, 1, 10, 0) for m in (S, Q)}] * 48 + [{m: (100, 100, 10, 10) for m in (S, Q)}] * 100)
    assert values(build(runs, methods, scale="paper")) == [(1.0, pytest.approx(1.0), 48)] * 2 + [(0, 0, 48)] * 2 + [
        (None, 100, 48)
    ]


def test_run_without_any_peer_token_prints_dashes(runs: Runs, methods: Path):
    runs.metrics(runs.make("graft", share(1)), STEPS[:1])
    table = build(runs, methods)
    assert values(table)[2:] == [(None, None, 0)] * 3
    text = to_markdown(to_page(table))
    assert "| both models | — | — | 97.6 | — | — | 13.0 | — | — | 0.0 |" in text
    line = next(x for x in csv.DictReader(io.StringIO(to_csv(table))) if x["receiver"] == "both" and x["row"] == "peer_last")
    assert (line["value"], line["steps"], line["reported_value"]) == ("", "0", "0.0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m[Q].pop("clipped_peer_tokens"), r"metrics\.jsonl:2: tiny-qwen3 has no clipped_own_tokens.*train it again"),
        (lambda m: m.pop(Q), r"metrics\.jsonl:2: no metrics of tiny-qwen3"),
        (lambda m: m[S].update(own_tokens=1.5), r"metrics\.jsonl:2: tiny-smollm3: own_tokens is 1\.5, expected a count"),
        (lambda m: m[S].update(own_tokens=True), r"own_tokens is True"),
        (lambda m: m[S].pop("peer_tokens"), r"peer_tokens is None"),
        (lambda m: m[S].update(clipped_own_tokens=301), r"metrics\.jsonl:2: tiny-smollm3 has more clipped tokens than tokens"),
    ],
)
def test_bad_metrics_are_refused_with_file_and_line(runs: Runs, methods: Path, change, message: str):
    file = runs.metrics(runs.make("graft", share(1)), STEPS)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows[1]["models"])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=message):
        build(runs, methods)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no step"),
        ('{"step": 2, "models": {}, "exchange": []}\n', r"metrics\.jsonl:1: step is 2, expected 1"),
        ('{"step": 1}\n', r"metrics\.jsonl:1: a line is an object with step, models and exchange"),
        ("[]\n", r"metrics\.jsonl:1: a line is"),
    ],
)
def test_files_without_steps_are_refused(runs: Runs, methods: Path, text: str, message: str):
    record = runs.make("graft", share(1))
    (record.path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        build(runs, methods)
    (record.path / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no metrics\.jsonl"):
        build(runs, methods)


def test_unfinished_run_and_no_run_at_all(runs: Runs, methods: Path):
    table = build(runs, methods)
    assert [t.row for t in table.missing] == ["peer_first", "peer_last"]
    assert any("No finished run" in note for note in table.notes)
    running = runs.make("graft", share(1), done=False)
    running.set_status("running", step=2, steps=9)
    (todo,) = build(runs, methods).unfinished
    assert (todo.row, todo.text) == ("peer_last", f"{running.path}: running, step 2 of 9")


def test_independent_run_has_no_grafted_tokens(runs: Runs, methods: Path):
    runs.metrics(runs.make("graft", share(1), models=("smollm3-3b",), pair=None), STEPS)
    with pytest.raises(UserError, match="is no joint run with smollm3-3b"):
        build(runs, methods)


def test_every_reported_cell_is_in_exactly_one_printed_cell():
    spec = load_spec("table9", SPECS)
    lines = (SPECS.parent / "reported" / "table9_clipping.csv").read_text().splitlines()[1:]
    assert len(lines) == len(spec.reported) == 5 * 3
    printed = [item.strong for part in to_page(from_reported(spec)).parts for line in part.lines for item in line.items]
    # The paper's digits, as printed: same values, as often.
    assert sorted(printed) == sorted(line.split(",")[6] for line in lines)
    by_key = {(x["quantity"], x["update"], x["receiver"], x["source"], x["row"]): x for x in csv_rows(from_reported(spec))}
    assert by_key.keys() == {tuple(line.split(",")[1:6]) for line in lines}
    for line in lines:
        assert float(by_key[tuple(line.split(",")[1:6])]["reported_value"]) == float(line.split(",")[6])


def csv_rows(table: ClippingTable) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def test_written_forms(runs: Runs, methods: Path):
    runs.metrics(runs.make("graft", share(1)), STEPS)
    table = build(runs, methods)
    rows = csv_rows(table)
    assert list(rows[0]) == "quantity,update,receiver,source,row,aggregate,value,steps,reported_value".split(",")
    assert len(rows) == 4 * 3 * 2 + 3
    peer = [r for r in rows if (r["update"], r["receiver"], r["row"]) == ("grafted_peer", "smollm3-3b", "peer_last")]
    assert [list(r.values())[3:] for r in peer] == [
        ["qwen3-1.7b", "peer_last", "pooled", "2.0", "2", "0.277"],
        ["qwen3-1.7b", "peer_last", "step_mean", "5.0", "2", "0.277"],
    ]
    text = to_markdown(to_page(table))
    assert "| tiny-smollm3 (for smollm3-3b) | — | — | 0.004 | — | — | 0.130 | 2.000 | 5.000 | 0.277 |" in text
    assert "| both models | — | — | 97.6 | — | — | 13.0 | 50.0 | — | 0.0 |" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {11}
    tex = to_latex(to_page(table))
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}\cmidrule(lr){8-10}" in tex
    body = [line for line in tex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {9}
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    print_page(to_page(table), console)
    assert console.width == 120
    assert "2.000      5.000  0.277" in console.file.getvalue()


def test_command_line(runs: Runs, methods: Path, tmp_path: Path, capsys):
    runs.metrics(runs.make("graft", share(1)), STEPS)
    argv = ["table9", "--root", str(runs.root.parent), "--methods", str(methods)]
    assert main([*argv, "--format", "csv", "--out", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out == to_csv(build(runs, methods))
    assert sorted(p.name for p in (tmp_path / "r" / "cpu").iterdir()) == ["table9.csv", "table9.md", "table9.tex"]
    assert main([*argv, "--over-seeds"]) == 2
    assert "table9 is a table of kind clipping" in capsys.readouterr().err
    assert main(["table9", "--source", "reported", "--format", "csv"]) == 0
    assert "steps_with_zero_peer_clipping,grafted_peer,both,both,peer_first,step_mean,,,97.6\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "colour"}, "kind 'colour' is not known; known are pass@1, .*clipping"),
        ({"receivers": ["smollm3-3b"]}, "two receivers"),
        ({"steps": {"cpu": 0, "paper": 1, "smoke": 1}}, "steps give a number"),
        ({"steps": {"cpu": 1}}, "steps give a number"),
        ({"decimals": {}}, "decimals are given for"),
        ({"rows": []}, "do not list the same cells"),
        ({"colour": 1}, "unknown keys"),
        ({"reported_file": "table2_ablations.csv"}, r"ablations\.csv:1: no column"),
    ],
)
def test_bad_specs_are_refused(tmp_path: Path, capsys, change, message: str):
    shutil.copytree(SPECS.parent, tmp_path / "tables")
    spec = yaml.safe_load((SPECS / "table9.yaml").read_text())
    (tmp_path / "tables" / "specs" / "table9.yaml").write_text(yaml.safe_dump(spec | change))
    assert main(["table9", "--specs", str(tmp_path / "tables" / "specs"), "--source", "reported"]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("9,clipped_token_fraction,self_generated,smollm3-3b,smollm3-3b,peer_first,x,percent", r":17: could not convert"),
        ("9,clipped_token_fraction,self_generated,smollm3-3b,smollm3-3b,peer_first,1,percent", r":17: a cell is given twice"),
        ("9,a,b,c,d,e,1,share", r":17: the unit is not percent"),
    ],
)
def test_bad_reported_lines_are_named(tmp_path: Path, line: str, message: str):
    shutil.copytree(SPECS.parent, tmp_path / "tables")
    file = tmp_path / "tables" / "reported" / "table9_clipping.csv"
    if "x,percent" in line:
        line = line.replace("peer_first", "elsewhere")
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(UserError, match=message):
        load_spec("table9", tmp_path / "tables" / "specs")


def test_measure_reads_each_kind_of_token_for_its_quantity():
    spec = load_spec("table9", SPECS)
    tokens = {"smollm3-3b": np.array([[10, 1, 20, 4]]), "qwen3-1.7b": np.array([[10, 2, 20, 6]])}
    assert [v.pooled for v in measure(tokens, spec).values()] == [10.0, 20.0, 20.0, 30.0, None]


def test_each_number_names_its_run(runs: Runs, methods: Path):
    record = runs.make("graft", share(1))
    runs.metrics(record, STEPS)
    lines = [line for line in to_page(build(runs, methods)).parts[0].lines if line.items]
    # Columns of peer first, uniform, last: pooled, step mean, paper each; only the last has a run. The share of steps has no step mean.
    shown = [[bool(item.runs) for item in line.items] for line in lines]
    assert shown[:4] == [[False] * 6 + [True, True, False]] * 4
    assert shown[4] == [False] * 6 + [True, False, False]
    assert {item.runs for line in lines for item in line.items} == {(), (str(record.path),)}
