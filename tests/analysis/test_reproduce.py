"""Every table that the records allow: which are written, which are called complete, and what stops none of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.reproduce import names_of

from .conftest import SPEC, WIDE, Runs, share, write_spec

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def paper(specs: Path) -> Path:
    """table2 (needs full, delta 0.7 and GRPO), table10 (full alone), a table of a kind that is not known, and one that is no table."""
    alone = {"rows": [row for row in WIDE["rows"] if row["slug"] == "full"], "reported_file": None}
    write_spec(specs, "table10", WIDE | alone)
    write_spec(specs, "table2", SPEC)
    write_spec(specs, "figure1", {"kind": "holograms", "rows": []})
    return specs


def run(runs: Runs, specs: Path, methods: Path, out: Path) -> int:
    argv = ["reproduce", "--root", str(runs.root.parent), "--specs", str(specs), "--methods", str(methods), "--out", str(out)]
    return main(argv)


def test_tables_are_written_and_what_they_lack_is_said(runs: Runs, paper: Path, methods: Path, tmp_path: Path, capsys):
    runs.make("graft", share(1))
    assert run(runs, paper, methods, tmp_path / "out") == 0
    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        # delta_0.7 and grpo_n8 for both receivers are one entry each; hacpo has no YAML among the methods
        ["table2", "incomplete", "Missing runs: 2; Not available in this version: 1"],
        ["table10", "complete", ""],
        ["figure1", "not in this version", "kind holograms"],
    ]
    assert "<name>.{md,csv} list the commands that fill table2." in text
    written = {p.name for p in (tmp_path / "out" / "cpu").iterdir()}
    assert written == {f"{name}.{suffix}" for name in ("table2", "table10") for suffix in ("md", "tex", "csv")}


def test_short_runs_make_a_table_incomplete(runs: Runs, paper: Path, methods: Path, tmp_path: Path, capsys):
    record = runs.make("graft", share(1))
    runs.write(record, "tiny-qwen3", "arith-large", 1, runs.read(record, "tiny-qwen3", "arith-large", 1)[:-1])
    assert run(runs, paper, methods, tmp_path / "out") == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "table10" in x)
    assert "incomplete" in line
    assert "Short evaluation runs: 1" in line


def test_a_table_that_cannot_be_made_stops_no_other(runs: Runs, paper: Path, methods: Path, tmp_path: Path, capsys):
    runs.make("graft", share(1))
    runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    runs.make("grpo", share(2), models=("qwen3-1.7b",), pair=None, learning_rate=2)
    assert run(runs, paper, methods, tmp_path / "out") == 2
    text = capsys.readouterr().out
    assert "two finished runs fit the cell grpo, qwen3-1.7b" in " ".join(text.replace("│", " ").split())
    assert (tmp_path / "out" / "cpu" / "table10.md").exists()
    assert not (tmp_path / "out" / "cpu" / "table2.md").exists()


def test_tables_of_the_paper_in_their_order():
    names = names_of(PROJECT / "paper_tables" / "specs")
    assert names[:4] == ["table1", "table2", "table4", "table5"]
    assert [n for n in names if n.startswith("figure")] == names[-names[::-1].index("table9") :]
    assert "extra_baselines" not in names
