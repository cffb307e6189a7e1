from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from analysis.__main__ import main
from analysis.collect import open_runs
from analysis.layout import to_csv, to_page
from analysis.page import number
from analysis.spec import load_spec
from analysis.tables import Table, from_reported, from_runs
from analysis.terminal import print_page
from analysis.writers import tex_escape, to_latex, to_markdown, write_all, write_atomic
from experiments.run_record import RunRecord

from .conftest import Runs, share

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def records(runs: Runs) -> list[RunRecord]:
    # full 43.75 +- 8.84 for both receivers, delta_0.7 50.00 +- 0, GRPO of one receiver 25.00 +- 0, HACPO not available
    runs.make("graft", lambda m, b, run, i, sample: sample < (1 if b == "arith-large" else 2 + run))
    runs.make("graft", share(2), deviations={"method.delta": 0.7})
    runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    return open_runs(runs.root)


@pytest.fixture
def table(records: list[RunRecord], specs: Path, methods: Path) -> Table:
    return from_runs(load_spec("mini", specs), records, scale="cpu", seed=0, methods=methods)


@pytest.fixture
def wide(records: list[RunRecord], specs: Path, methods: Path) -> Table:
    return from_runs(load_spec("wide", specs), records, scale="cpu", seed=0, methods=methods)


def sound_latex(text: str) -> str:
    """The text without comments, after the checks that hold for any of our LaTeX."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[_#]", body)
    assert body.isascii()
    assert len(re.findall(r"(?<!\\)\{", body)) == len(re.findall(r"(?<!\\)\}", body))
    assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
    assert text.count(r"\begin{") == text.count(r"\end{")
    for part in re.findall(r"\\begin\{tabular\}\{l(r+)\}(.*?)\\end\{tabular\}", body, re.DOTALL):
        rows = [line for line in part[1].splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(part[0])}
    return body


def test_csv_columns_and_values(table: Table):
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    header = "row,receiver,benchmark,mean,std,n,N,delta,reported_mean,reported_std,reported_delta"
    assert to_csv(table).splitlines()[0] == header
    assert len(lines) == 4 * 2  # a row in two parts is one row
    by = {(line["row"], line["receiver"]): list(line.values())[2:] for line in lines}
    assert by["full", "qwen3-1.7b"] == ["average", "43.75", "8.838835", "2", "2", "", "30.0", "0.5", ""]
    assert by["grpo_n8", "qwen3-1.7b"] == ["average", "25.0", "0.0", "2", "2", "-18.75", "30.0", "0.5", "-1.5"]
    assert by["grpo_n8", "smollm3-3b"] == ["average", "", "", "0", "2", "", "30.0", "0.5", "-1.5"]


def test_markdown_marks_best_dashes_and_lists(table: Table):
    text = to_markdown(to_page(table))
    assert "| Full | 43.75 ± 8.84 | 2/2 | — | 30.00 ± 0.50 | — |" in text
    assert "| **50.00** ± 0.00 | 2/2 | +6.25 |" in text
    assert "tiny-qwen3 (for qwen3-1.7b): pass@1" in text
    assert "`python -m experiments.train method=grpo pair=1 seed=0 scale=cpu`" in text
    assert "**Not available in this version**\n\n- hacpo" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {12}


def test_latex_escapes_and_balances(table: Table):
    text = to_latex(to_page(table))
    assert r"GRPO\_8 50\% & -- & 0/2 & -- & 30.00 $\pm$ 0.50 & $-$1.50 & 25.00 $\pm$ 0.00 & 2/2 & $-$18.75" in text
    assert r"\textbf{50.00} $\pm$ 0.00" in text
    assert r"A caption with 100 \% \& more." in text
    body = sound_latex(text)
    cells = {
        len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    }
    assert cells == {10}


def test_wide_table_has_one_part_per_receiver_and_the_paper_under_ours(wide: Table):
    page = to_page(wide)
    assert [part.title for part in page.parts] == [
        "Every benchmark: tiny-smollm3 (for smollm3-3b)",
        "Every benchmark: tiny-qwen3 (for qwen3-1.7b)",
    ]
    text = to_markdown(page)
    assert "| row | MATH500 | AMC23 | average | n/N | Δ |" in text
    # grpo: 25 everywhere, minus 43.75 on the average
    assert "| GRPO_8 50% | 25.00 ± 0.00 | **25.00** ± 0.00 | 25.00 ± 0.00 | 2/2 | -18.75 |" not in text
    assert "| GRPO_8 50% | 25.00 ± 0.00 | 25.00 ± 0.00 | 25.00 ± 0.00 | 2/2 | -18.75 |" in text
    assert "| &emsp;paper | 40.00 ± 0.25 | 20.00 ± 0.75 | 30.00 ± 0.50 |  | -1.50 |" in text
    assert "| HACPO | — | — | — | n/a | — |" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {7}


def test_wide_table_as_latex_csv_and_terminal(wide: Table):
    text = to_latex(to_page(wide))
    body = sound_latex(text)
    assert r"\multicolumn{6}{l}{Every benchmark: tiny-qwen3 (for qwen3-1.7b)} \\" in body
    assert r"\quad paper & 40.00 $\pm$ 0.25 & 20.00 $\pm$ 0.75 & 30.00 $\pm$ 0.50 &  & $-$1.50 \\" in body
    lines = list(csv.DictReader(io.StringIO(to_csv(wide))))
    assert len(lines) == 4 * 2 * 3
    assert list(lines[0].values())[:3] == ["full", "smollm3-3b", "math500"]
    by = {(line["row"], line["receiver"], line["benchmark"]): list(line.values())[3:] for line in lines}
    # full on math500: 50 and 75 %
    assert by["full", "qwen3-1.7b", "math500"] == ["62.5", "17.67767", "2", "2", "", "40.0", "0.25", ""]
    assert by["grpo_n8", "qwen3-1.7b", "average"] == ["25.0", "0.0", "2", "2", "-18.75", "30.0", "0.5", "-1.5"]
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    print_page(to_page(wide), console)
    assert "62.50 ± 17.68" in console.file.getvalue()
    assert "…" not in console.file.getvalue()


def test_unprinted_table_has_no_line_of_the_paper(records: list[RunRecord], specs: Path, methods: Path):
    table = from_runs(load_spec("unprinted", specs), records, scale="cpu", seed=0, methods=methods)
    assert not any(line.second for part in to_page(table).parts for line in part.lines)
    assert "full,qwen3-1.7b,average,43.75,8.838835,2,2,,,,\n" in to_csv(table)


@pytest.mark.parametrize("name", ["table2", "table7", "table8"])
def test_committed_tables_fit_120_columns(name: str):
    page = to_page(from_reported(load_spec(name, PROJECT / "paper_tables" / "specs")))
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    print_page(page, console)
    assert console.width == 120
    assert max(len(line.rstrip()) for line in console.file.getvalue().splitlines()) <= 120
    sound_latex(to_latex(page))


def test_tex_escape_escapes_once():
    assert tex_escape("a_b % & # $ {x} \\ ~ ^") == (
        r"a\_b \% \& \# \$ \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{}"
    )


def test_terminal_never_cuts_a_number(table: Table):
    for width, tables in ((300, 2), (70, 4), (40, 4)):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        print_page(to_page(table), console)
        text = console.file.getvalue()
        assert "43.75 ± 8.84" in text
        assert "…" not in text
        assert text.count("(a) First") + text.count("(b) Second") == tables
        assert "python -m experiments.train method=grpo pair=1 seed=0 scale=cpu" in text


def test_a_difference_that_rounds_to_zero_has_no_sign():
    assert [number(x, 2, sign=True) for x in (-0.001, 0.001, 0.0, -0.006, None)] == ["0.00", "0.00", "0.00", "-0.01", "—"]


def test_reported_table_has_no_columns_for_runs(specs: Path, tmp_path: Path):
    table = from_reported(load_spec("mini", specs))
    text = to_markdown(to_page(table))
    assert "pass@1" not in text.split("###")[1]
    assert "n/N" not in text
    assert "full,qwen3-1.7b,average,,,,,,30.0,0.5,\n" in to_csv(table)
    assert write_all(to_page(table), to_csv(table), tmp_path)[0] == tmp_path / "reported" / "mini.md"


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "deep" / "t.md"
    write_atomic(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["t.md"]


def test_command_line_writes_three_files_twice_the_same(
    table: Table, runs: Runs, specs: Path, methods: Path, tmp_path: Path, capsys
):
    argv = [
        "mini",
        "--root",
        str(runs.root.parent),
        "--specs",
        str(specs),
        "--methods",
        str(methods),
        "--out",
        str(tmp_path / "r"),
    ]
    assert main([*argv, "--format", "csv"]) == 0
    assert capsys.readouterr().out == to_csv(table)
    files = {p.name: p.read_bytes() for p in (tmp_path / "r" / "cpu").iterdir()}
    assert sorted(files) == ["mini.csv", "mini.md", "mini.tex"]
    assert main([*argv, "--format", "md"]) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "r" / "cpu").iterdir()} == files


def test_user_errors_exit_2_without_traceback(specs: Path, capsys):
    assert main(["nothing", "--specs", str(specs)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no table 'nothing'")


@pytest.mark.parametrize(
    ("name", "style", "value"),
    [
        ("table2", "term", "37.06"),
        pytest.param("table2", "md", "28.70", marks=pytest.mark.slow),
        pytest.param("table7", "tex", "37.06", marks=pytest.mark.slow),
        pytest.param("table8", "csv", "28.97", marks=pytest.mark.slow),
        pytest.param("table9", "term", "97.6", marks=pytest.mark.slow),
    ],
)
def test_module_prints_the_papers_table_in_a_plain_locale(name: str, style: str, value: str):
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "analysis", name, "--source", "reported", "--format", style]
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode("utf-8")
    assert value in text
