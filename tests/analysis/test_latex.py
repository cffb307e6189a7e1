"""Every table compiles in a plain booktabs document, and nothing of it stands outside its page. Skipped without pdflatex."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis.__main__ import arguments, build
from analysis.kinds import KINDS, kind_of
from analysis.writers import to_latex

from .conftest import WIDE, Runs, share, write_spec

PROJECT = Path(__file__).resolve().parents[2]
SPECS = PROJECT / "paper_tables" / "specs"
NAMES = sorted(p.stem for p in SPECS.glob("table*.yaml") if kind_of(p.stem, SPECS) in KINDS)
pytestmark = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="no pdflatex: apt-get install texlive-latex-base texlive-latex-recommended"
)
# Text as wide as on a page of a two-column paper: 6.5 inches.
DOCUMENT = r"""\documentclass{article}
\usepackage[margin=1in]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def compiled(folder: Path, tables: Mapping[str, str]) -> tuple[int, str]:
    """(exit status, log) of a document of the tables."""
    for name, text in tables.items():
        (folder / f"{name}.tex").write_text(text, encoding="utf-8")
    (folder / "all.tex").write_text(DOCUMENT % "\n".join(rf"\input{{{name}}}\clearpage" for name in tables))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    return done.returncode, (folder / "all.log").read_text(encoding="latin-1")


def outside(log: str) -> list[str]:
    """What is wider or taller than its page."""
    return re.findall(r"Overfull \\[hv]box \([1-9][0-9.]*pt too \w+\).*|Float too large.*", log)


@pytest.mark.slow
def test_every_table_of_the_paper_compiles_and_fits(tmp_path: Path):
    assert {"table1", "table2", "table4", "table7", "table8", "table9"} <= set(NAMES)
    tables = {name: to_latex(build(arguments([name, "--source", "reported"]))[0]) for name in NAMES}
    code, log = compiled(tmp_path, tables)
    assert code == 0, log[-2000:]
    assert outside(log) == []
    # Table 1 is two floats under one number.
    assert tables["table1"].count(r"\begin{table*}") == 2
    assert int(re.search(r"Output written on all\.pdf \((\d+) pages?", log).group(1)) >= len(NAMES)


@pytest.mark.slow
def test_measured_tables_with_odd_texts_compile_and_fit(runs: Runs, specs: Path, methods: Path, tmp_path: Path):
    runs.make("graft", lambda m, b, run, i, sample: sample < (1 if b == "arith-large" else 2 + run))
    short = runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    runs.write(short, "tiny-qwen3", "arith-large", 1, runs.read(short, "tiny-qwen3", "arith-large", 1)[:-1])
    odd = r"50 % of $x_1$ & #2 {a} \b ~ ^ < > ± Δ — † ‡ §"
    rows = [row | {"label": odd} if row["slug"] == "grpo_n8" else row for row in WIDE["rows"]]
    write_spec(specs, "odd", WIDE | {"rows": rows, "title": odd, "caption": odd, "parts": {"a": "P_1 & more"}})
    argv = ["--root", str(runs.root.parent), "--specs", str(specs), "--methods", str(methods)]
    tables = {name: to_latex(build(arguments([name, *argv]))[0]) for name in ("mini", "wide", "odd")}
    code, log = compiled(tmp_path, tables)
    assert code == 0, log[-2000:]
    assert [line for line in outside(log) if "hbox" not in line] == []


@pytest.mark.slow
def test_a_broken_table_would_be_noticed(tmp_path: Path):
    code, _ = compiled(tmp_path, {"broken": r"\begin{tabular}{l}a & b_c \\ \end{tabular}"})
    assert code != 0
    code, log = compiled(tmp_path, {"wide": r"\begin{table*}\rule{30cm}{1pt}\end{table*}"})
    assert (code, len(outside(log))) == (0, 1)
