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
from analysis.spec import load_spec
from analysis.tables import Table, from_reported, from_runs
from analysis.terminal import print_table
from analysis.writers import _number, tex_escape, to_csv, to_latex, to_markdown, write_all, write_atomic

from .conftest import Runs, share

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def table(runs: Runs, specs: Path, methods: Path) -> Table:
    # full 43.75 +- 8.84 for both receivers, delta_0.7 50.00 +- 0, GRPO of one receiver 25.00 +- 0, HACPO not available
    runs.make("graft", lambda m, b, run, i, sample: sample < (1 if b == "arith-large" else 2 + run))
    runs.make("graft", share(2), deviations={"method.delta": 0.7})
    runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    return from_runs(load_spec("mini", specs), open_runs(runs.root), scale="cpu", seed=0, methods=methods)


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
    text = to_markdown(table)
    assert "| Full | 43.75 ± 8.84 | 2/2 | — | 30.00 ± 0.50 | — |" in text
    assert "| **50.00** ± 0.00 | 2/2 | +6.25 |" in text
    assert "tiny-qwen3 (for qwen3-1.7b): pass@1" in text
    assert "`python -m experiments.train method=grpo pair=1 seed=0 scale=cpu`" in text
    assert "**Not available in this version**\n\n- hacpo" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {12}


def test_latex_escapes_and_balances(table: Table):
    text = to_latex(table)
    assert r"GRPO\_8 50\% & -- & 0/2 & -- & 30.00 $\pm$ 0.50 & $-$1.50 & 25.00 $\pm$ 0.00 & 2/2 & $-$18.75" in text
    assert r"\textbf{50.00} $\pm$ 0.00" in text
    assert r"A caption with 100 \% \& more." in text
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[_#]", body)
    assert body.isascii()
    assert len(re.findall(r"(?<!\\)\{", body)) == len(re.findall(r"(?<!\\)\}", body))
    assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
    cells = {
        len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    }
    assert cells == {10}
    assert text.count(r"\begin{") == text.count(r"\end{")


def test_tex_escape_escapes_once():
    assert tex_escape("a_b % & # $ {x} \\ ~ ^") == (
        r"a\_b \% \& \# \$ \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{}"
    )


def test_terminal_never_cuts_a_number(table: Table):
    for width, tables in ((300, 2), (70, 4), (40, 4)):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        print_table(table, console)
        text = console.file.getvalue()
        assert "43.75 ± 8.84" in text
        assert "…" not in text
        assert text.count("(a) First") + text.count("(b) Second") == tables
        assert "python -m experiments.train method=grpo pair=1 seed=0 scale=cpu" in text


def test_a_difference_that_rounds_to_zero_has_no_sign():
    assert [_number(x, 2, sign=True) for x in (-0.001, 0.001, 0.0, -0.006, None)] == ["0.00", "0.00", "0.00", "-0.01", "—"]


def test_reported_table_has_no_columns_for_runs(specs: Path, tmp_path: Path):
    table = from_reported(load_spec("mini", specs))
    text = to_markdown(table)
    assert "pass@1" not in text.split("###")[1]
    assert "n/N" not in text
    assert "full,qwen3-1.7b,average,,,,,,30.0,0.5,\n" in to_csv(table)
    assert write_all(table, tmp_path)[0] == tmp_path / "reported" / "mini.md"


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


@pytest.mark.parametrize("style", ["term", "md", "tex", "csv"])
def test_module_prints_the_papers_table_in_a_plain_locale(style: str):
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "analysis", "table2", "--source", "reported", "--format", style]
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode("utf-8")
    assert "37.06" in text
    assert "28.7" in text
