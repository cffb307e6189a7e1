from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from analysis.collect import open_runs
from analysis.spec import load_spec
from analysis.tables import Cell, Table, from_reported, from_runs, mark_best
from analysis.todo import train_command
from experiments.run_record import UserError

from .conftest import BENCHMARKS, SPEC, WIDE, Runs, share, write_spec

SPECS = Path(__file__).resolve().parents[2] / "paper_tables" / "specs"


def build(runs: Runs, specs: Path, methods: Path, name: str = "mini", **kwargs) -> Table:
    args = {"scale": "cpu", "seed": 0, "methods": methods} | kwargs
    return from_runs(load_spec(name, specs), open_runs(runs.root), **args)


def cell(table: Table, slug: str, receiver: str = "qwen3-1.7b", column: str = "average") -> Cell:
    return next(row for row in table.rows if row.spec.slug == slug).cells[receiver, column]


def test_numbers_by_hand(runs: Runs, specs: Path, methods: Path):
    # run 0: arith-heldout (2 items x 4 samples) 2 of 4 each -> 50 %, arith-large (1 item) 1 of 4 -> 25 %: average 37.5
    # run 1: 3 of 4 -> 75 %, 1 of 4 -> 25 %: average 50.0
    # mean 43.75; deviations -6.25 and 6.25; sum of squares 78.125; / (2 - 1); sqrt = 8.838835 (divisor n would give 6.25)
    runs.make("graft", lambda m, b, run, i, sample: sample < (1 if b == "arith-large" else 2 + run))
    # GRPO, this receiver: 1 of 4 everywhere -> 25.0 in both runs; delta = 25 - 43.75 = -18.75
    runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    table = build(runs, specs, methods)
    full, grpo = cell(table, "full"), cell(table, "grpo_n8")
    assert (full.state, full.mean, full.n, full.N, full.delta) == ("whole", 43.75, 2, 2, None)
    assert full.std == pytest.approx(8.838835, abs=1e-6)
    assert (grpo.mean, grpo.std, grpo.delta) == (25.0, 0.0, -18.75)
    assert (grpo.reported_mean, grpo.reported_std, grpo.reported_delta) == (30.0, 0.5, -1.5)
    assert (full.best, grpo.best) == (True, False)
    assert any("std is exactly 0: grpo_n8, qwen3-1.7b" in note for note in table.notes)


def test_one_evaluation_run_has_no_std(tmp_path: Path, specs: Path, methods: Path):
    runs = Runs(tmp_path / "one", runs=1)
    runs.make("graft", share(2))
    full = cell(build(runs, specs, methods), "full")
    assert (full.mean, full.std, full.n, full.N) == (50.0, None, 1, 1)


def test_columns_by_hand(runs: Runs, specs: Path, methods: Path):
    # As above for full: math500 (arith-heldout) 50 and 75 %: mean 62.5, deviations 12.5: std sqrt(312.5) = 17.677670;
    # amc23 (arith-large) 25 and 25 %: std 0; average 43.75. The second model, everywhere 3 of 4: 75.
    def verdict(model: str, benchmark: str, run: int, item: int, sample: int) -> bool:
        return sample < (3 if model == "tiny-smollm3" else 1 if benchmark == "arith-large" else 2 + run)

    runs.make("graft", verdict)
    # GRPO on this receiver: arith-heldout 1 of 4 -> 25, arith-large 2 of 4 -> 50, average 37.5
    runs.make("grpo", lambda m, b, run, i, sample: sample < (2 if b == "arith-large" else 1), models=("qwen3-1.7b",), pair=None)
    table = build(runs, specs, methods, "wide")
    full = {c: cell(table, "full", column=c) for c in ("math500", "amc23", "average")}
    grpo = {c: cell(table, "grpo_n8", column=c) for c in ("math500", "amc23", "average")}
    assert {c: x.mean for c, x in full.items()} == {"math500": 62.5, "amc23": 25.0, "average": 43.75}
    assert full["math500"].std == pytest.approx(17.677670, abs=1e-6)
    assert full["amc23"].std == 0.0
    # 25 - 62.5, 50 - 25, 37.5 - 43.75
    assert {c: x.delta for c, x in grpo.items()} == {"math500": -37.5, "amc23": 25.0, "average": -6.25}
    assert [c for c, x in full.items() if x.best] == ["math500", "average"]
    assert [c for c, x in grpo.items() if x.best] == ["amc23"]
    assert (grpo["amc23"].reported_mean, grpo["amc23"].reported_delta, grpo["average"].reported_delta) == (20.0, None, -1.5)
    assert cell(table, "full", "smollm3-3b", "amc23").mean == 75.0
    # One note per row and receiver names the columns in which all evaluation runs agree.
    assert any("std is exactly 0: full, qwen3-1.7b, AMC23: all" in note for note in table.notes)


def test_run_short_on_one_benchmark_is_whole_on_the_other(runs: Runs, specs: Path, methods: Path):
    record = runs.make("graft", lambda m, b, run, i, sample: sample < 2 + run)
    runs.write(record, "tiny-qwen3", "arith-large", 1, runs.read(record, "tiny-qwen3", "arith-large", 1)[:-1])
    table = build(runs, specs, methods, "wide")
    math500, amc23, average = (cell(table, "full", column=c) for c in ("math500", "amc23", "average"))
    # math500 keeps both runs (50 and 75 %); amc23 and the average keep run 0 alone (50 %)
    assert (math500.state, math500.mean, math500.n) == ("whole", 62.5, 2)
    assert (amc23.state, amc23.mean, amc23.n, amc23.std) == ("short", 50.0, 1, None)
    assert (average.state, average.mean, average.n) == ("short", 50.0, 1)
    assert sum(note.startswith("§ incomplete") for note in table.notes) == 1


def test_column_without_a_benchmark_is_refused(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    write_spec(specs, "odd", WIDE | {"columns": {"minerva": "Minerva", "average": "average"}, "reported_file": None})
    with pytest.raises(UserError, match=r"0 benchmarks stand for the column minerva.*arith-heldout for math500"):
        build(runs, specs, methods, "odd")


def test_spec_without_reported_file_shows_nothing_of_the_paper(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    table = build(runs, specs, methods, "unprinted")
    assert all(c.reported_mean is None for row in table.rows for c in row.cells.values())
    assert not any("'paper'" in note for note in table.notes)
    with pytest.raises(UserError, match="not a table of the paper"):
        from_reported(load_spec("unprinted", specs))


def test_short_run_is_left_out_marked_and_neither_ranked_nor_subtracted(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    record = runs.make("graft", lambda m, b, run, i, sample: sample < 2 + run, deviations={"method.delta": 0.7})
    model = "tiny-qwen3"
    runs.write(record, model, "arith-large", 1, runs.read(record, model, "arith-large", 1)[:-1])
    table = build(runs, specs, methods)
    short = cell(table, "delta_0.7")
    # run 1 is short on one benchmark, so only run 0 counts: 2 of 4. With a smaller divisor run 1 would have entered.
    assert (short.state, short.mean, short.std, short.n, short.N) == ("short", 50.0, None, 1, 2)
    assert (short.delta, short.best) == (None, False)
    assert cell(table, "delta_0.7", "smollm3-3b").state == "whole"
    note = next(note for note in table.notes if note.startswith("§ incomplete"))
    assert "3 of 4 rows" in note
    assert "arith-large/run1.jsonl" in note
    assert any(f"experiments.evaluate run={record.path}" in n for n in table.notes)


def test_no_whole_run_gives_no_number(runs: Runs, specs: Path, methods: Path):
    record = runs.make("graft", share(1))
    for run in (0, 1):
        runs.file(record, "tiny-qwen3", "arith-large", run).unlink()
    full = cell(build(runs, specs, methods), "full")
    assert (full.state, full.mean, full.n, full.N) == ("short", None, 0, 2)


def test_missing_unfinished_and_unavailable_rows_are_listed(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    running = runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None, done=False)
    running.set_status("failed", step=2, steps=9, reason="loss was\nnot finite")
    table = build(runs, specs, methods)
    missing = {t.row: (t.receivers, t.text) for t in table.missing}
    command = "python -m experiments.train method=graft pair=1 seed=0 scale=cpu method.delta=0.7"
    assert missing["delta_0.7"] == (("smollm3-3b", "qwen3-1.7b"), command)
    assert missing["grpo_n8"][0] == ("smollm3-3b",)
    (unfinished,) = table.unfinished
    assert (unfinished.row, unfinished.receivers) == ("grpo_n8", ("qwen3-1.7b",))
    assert unfinished.text == f"{running.path}: failed, step 2 of 9, loss was not finite"
    assert table.unavailable == ("hacpo",)
    # A cell without a number still says how many evaluation runs it would have, and what the paper printed.
    assert (cell(table, "hacpo").n, cell(table, "hacpo").N, cell(table, "hacpo").reported_mean) == (0, 2, 30.0)


def test_base_row_is_shown_only_with_runs_and_never_ranked(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    assert "base" not in [row.spec.slug for row in build(runs, specs, methods).rows]
    runs.make("base", share(4), models=("qwen3-1.7b",), pair=None, training={})
    runs.make("graft", share(2), deviations={"method.delta": 0.7})
    table = build(runs, specs, methods)
    base = cell(table, "base")
    assert (base.mean, base.delta, base.best, base.reported_mean) == (100.0, 75.0, False, None)
    assert cell(table, "delta_0.7").best
    assert any("selection: best" in note for note in table.notes)
    # An untouched model has no training seed: its run serves the table of every seed.
    runs.make("graft", share(1), cell={"seed": 4})
    assert cell(build(runs, specs, methods, seed=4), "base").delta == 75.0


def test_ties_are_all_bold_by_printed_value():
    # 61.25 and 61.2499 both print 61.25; 61.24 does not; the highest of all is unranked; the short one is not whole
    means = {"a": 61.25, "b": 61.2499, "c": 61.24, "base": 99.0}
    cells = {(slug, "x", "k"): Cell("whole", mean) for slug, mean in means.items()} | {("d", "x", "k"): Cell("short", 80.0)}
    marked = mark_best(cells, {"a", "b", "c", "d"}, 2)
    assert [key[0] for key, c in marked.items() if c.best] == ["a", "b"]
    assert not any(c.best for c in mark_best({("a", "x", "k"): Cell("whole", 1.0)}, {"a"}, 2).values())
    # Every column has its own best.
    two = {("a", "x", "k"): Cell("whole", 1.0), ("b", "x", "k"): Cell("whole", 2.0), ("a", "x", "l"): Cell("whole", 4.0)}
    marked = mark_best(two | {("b", "x", "l"): Cell("whole", 3.0)}, {"a", "b"}, 2)
    assert [key for key, c in marked.items() if c.best] == [("b", "x", "k"), ("a", "x", "l")]


def test_notes_name_scale_stand_ins_rule_and_noise(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    notes = "\n".join(build(runs, specs, methods).notes)
    for text in (
        "not comparable in level",
        "tiny-smollm3 stands for smollm3-3b",
        "arith-large stands for amc23",
        "sample std (n-1) over 2 evaluation runs of ONE checkpoint",
        "Checkpoint selection: best. Training seed 0. Commits: ",
    ):
        assert text in notes
    runs.make("graft", share(1), cell={"scale": "smoke"})
    assert "claims nothing" in build(runs, specs, methods, scale="smoke").notes[0]


def test_selection_rules_that_differ_are_shouted(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1))
    runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None, training={"selection": "last"})
    assert any("DIFFERS BETWEEN ROWS: best: graft; last: grpo" in note for note in build(runs, specs, methods).notes)


def test_what_was_not_trained_here_has_no_selection(runs: Runs, specs: Path, methods: Path):
    runs.make("base", share(1), models=("qwen3-1.7b",), pair=None, training={})
    (line,) = (n for n in build(runs, specs, methods).notes if "selection" in n)
    assert line.startswith("Checkpoint selection: none (no row was trained here). ")
    theirs = {"slug": "theirs", "group": "base", "label": "Theirs", "method": "imported", "parts": ["a"], "compare": False}
    write_spec(specs, "mini", SPEC | {"rows": [*SPEC["rows"], theirs | {"optional": True}]})
    runs.make("imported", share(1), models=("qwen3-1.7b",), pair=None, training={"selection": "not ours"})
    runs.make("graft", share(1))
    table = build(runs, specs, methods)
    assert cell(table, "theirs").mean == cell(table, "base").mean == 25.0
    (line,) = (n for n in table.notes if "selection" in n)
    assert line.startswith("Checkpoint selection: best. ")
    runs.make("grpo", share(1), pair=None, models=("qwen3-1.7b",), training={"selection": "last"})
    (line,) = (n for n in build(runs, specs, methods).notes if "selection" in n)
    assert line.startswith("Checkpoint selection: DIFFERS BETWEEN ROWS: best: graft; last: grpo. ")


PAPER, CORRECTED = {"name": "paper"}, {"name": "corrected", "version": 2, "sha256": "0" * 64, "changed": 24}


def golds_lines(runs: Runs, specs: Path, methods: Path) -> list[str]:
    return [n for n in build(runs, specs, methods).notes if n.startswith("Golds")]


def trained_on(golds: dict | None) -> dict:
    train = {"source": "math-train"} | ({"golds": golds} if golds else {})
    return {"data": {"train": train, "validation": None, "prompt_suffix": ""}}


@pytest.mark.parametrize(("golds", "lines"), [(None, []), (PAPER, ["Golds: paper."]), (CORRECTED, ["Golds: corrected v2."])])
def test_the_edition_of_the_golds_is_named(golds, lines, runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1), **trained_on(golds))
    # an untouched model has no training data; its benchmarks here are generated
    runs.make("base", share(1), models=("qwen3-1.7b",), pair=None, training={}, data={"prompt_suffix": ""})
    assert golds_lines(runs, specs, methods) == lines


def test_golds_of_benchmarks_count_too(runs: Runs, specs: Path, methods: Path):
    runs.evaluation["benchmarks"] = [
        {"name": n, "stands_for": s, "items": i, "sha256": "0" * 64, "golds": CORRECTED} for n, s, i in BENCHMARKS
    ]
    runs.make("base", share(1), models=("qwen3-1.7b",), pair=None, training={})
    assert golds_lines(runs, specs, methods) == ["Golds: corrected v2."]
    runs.make("graft", share(1), **trained_on(PAPER))
    differ = "Golds: DIFFERS BETWEEN ROWS: corrected v2: base; paper and corrected v2: graft."
    assert golds_lines(runs, specs, methods) == [differ]


def test_golds_that_differ_are_shouted(runs: Runs, specs: Path, methods: Path):
    runs.make("graft", share(1), **trained_on(PAPER))
    runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None, **trained_on(CORRECTED))
    assert golds_lines(runs, specs, methods) == ["Golds: DIFFERS BETWEEN ROWS: paper: graft; corrected v2: grpo."]


def test_no_runs_at_all_still_lists_commands(runs: Runs, specs: Path, methods: Path):
    table = build(runs, specs, methods)
    assert [t.row for t in table.missing] == ["full", "delta_0.7", "grpo_n8"]
    assert any("No finished run" in note for note in table.notes)
    with pytest.raises(UserError, match="--methods"):
        build(runs, specs, methods / "nowhere")


def test_reported_source_holds_only_the_papers_values(specs: Path):
    table = from_reported(load_spec("mini", specs))
    assert [row.spec.slug for row in table.rows] == ["full", "delta_0.7", "grpo_n8", "hacpo"]
    assert cell(table, "grpo_n8") == Cell("reported", reported_mean=30.0, reported_std=0.5, reported_delta=-1.5)


def test_overrides_are_quoted_for_the_shell(specs: Path):
    row = load_spec("mini", specs).rows[2]
    quoted = replace(row, deviations={"method.x": [1, 2], "method.on": True, "a": None})
    assert train_command(quoted, pair="1", seed=3, scale="smoke").endswith(
        "seed=3 scale=smoke 'method.x=[1, 2]' method.on=true a=null"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(colour="red"), "unknown keys"),
        (lambda s: s.pop("caption"), "not given"),
        (lambda s: s.update(reference="nobody"), "reference"),
        (lambda s: s["rows"][1].update(bold=True), "unknown keys"),
        (lambda s: s["rows"][1].update(group="nobody"), "group or part"),
        (lambda s: s["rows"][1].update(parts=["z"]), "group or part"),
        (lambda s: s.update(columns={"math500": "MATH500"}), "'average' among them"),
        (lambda s: s.update(columns=["average"]), "columns map slugs to heads"),
        (lambda s: s.update(columns={"amc23": "AMC23", "average": "average"}), "do not list the same cells"),
        (lambda s: s.update(kind="clipping"), "of kind clipping"),
        (lambda s: s["rows"].append(dict(s["rows"][1])), "given twice"),
        (lambda s: s["rows"].pop(), "do not list the same cells"),
        (lambda s: s.update(reported_file="none.csv"), "does not exist"),
    ],
)
def test_bad_specs_are_refused(specs: Path, change, message: str):
    spec = json.loads(json.dumps(SPEC))
    change(spec)
    (specs / "mini.yaml").write_text(yaml.safe_dump(spec))
    with pytest.raises(UserError, match=message):
        load_spec("mini", specs)


def test_unknown_table_lists_the_known(specs: Path):
    with pytest.raises(UserError, match="there are: mini"):
        load_spec("table99", specs)


def test_committed_table2_has_every_row_of_the_reported_file():
    spec = load_spec("table2", SPECS)
    assert len(spec.reported) == 2 * 18
    assert spec.reported["success_only_wo_floor", "smollm3-3b", "average"].delta == -4.92
    methods = {row.slug: row.method for row in spec.rows}
    assert {slug for slug, method in methods.items() if slug != method} == {"full", "grpo_n8"}
    assert (methods["full"], methods["grpo_n8"]) == ("graft", "grpo")
    # part and group as printed
    lines = (SPECS.parent / "reported" / "table2_ablations.csv").read_text().splitlines()[1:]
    printed = {tuple(line.split(",")[:3]) for line in lines}
    assert printed == {(part, row.group, row.slug) for row in spec.rows if not row.optional for part in row.parts}
