"""``python -m experiments.tasks``: what is wrong is in the table and in the exit code. The hub, with a stand-in for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from experiments.errors import UserError
from experiments.tasks import hub, load_prompt_set, pinning
from experiments.tasks.__main__ import main
from experiments.tasks.files import ITEMS, Item
from experiments.tasks.hub import SETS, fetch_items, last_box
from experiments.tasks.report import examine
from tests.experiments.toy_sets import install, rows_of, write_jsonl


@pytest.fixture
def root(tmp_path, monkeypatch):
    load_prompt_set.cache_clear()
    yield install(monkeypatch, tmp_path)
    load_prompt_set.cache_clear()


def check(root, capsys, *sets):
    """(exit code, table rows by set, all printed lines)."""
    code = main(["check", "--root", str(root), *sets])
    lines = capsys.readouterr().out.splitlines()
    return code, {cells[0]: cells[1:] for cells in map(str.split, lines[1 : lines.index("")])}, lines


def test_pinned_files_pass(root, capsys):
    code, rows, lines = check(root, capsys)
    assert code == 0
    assert list(rows) == list(ITEMS)
    assert rows["math-train"] == ["math_train.jsonl", "4/7500", "yes", "1", "0", "—"]
    assert rows["minerva"] == ["minerva.jsonl", "4/272", "yes", "0", "0", "0"]
    assert "math-train: no gold, left out unless corrected: math-train/3" in lines
    assert lines[-1] == "All sets are the pinned ones."


def test_every_kind_of_trouble_is_said(root, capsys):
    (root / "aime2024.jsonl").unlink()
    write_jsonl(root / "aime2025.jsonl", rows_of("aime2025")[1:])
    (root / "amc23.jsonl").write_text("nonsense\n")
    code, rows, lines = check(root, capsys)
    assert code == 2
    assert rows["aime2024"][:2] == ["NOT", "READ"]
    assert rows["aime2025"][1:4] == ["3/30", "1", "DIFFER"]
    assert lines[-1].startswith("WRONG: aime2024, aime2025, amc23 ")
    assert any("aime2024.jsonl does not exist" in line for line in lines)
    assert "aime2025: has 3 items, 4 are pinned: 1 missing (aime2025/0)" in lines
    assert any(line.startswith(f"amc23: {root / 'amc23.jsonl'}:1: not a JSON object") for line in lines)
    assert check(root, capsys, "minerva", "math500")[0] == 0


def repin(root, source, rows):
    write_jsonl(root / f"{source.replace('-', '_')}.jsonl", rows)
    assert main(["pin", source, "--root", str(root), "--write"]) == 0
    pinning._read.cache_clear()


def test_overlap_with_train_and_repeats_are_found_by_normalised_text(root, capsys):
    leaked = rows_of("math-train")[2]["problem"].upper().replace(" ", " \\quad\n")
    repin(root, "math500", [*rows_of("math500"), {"id": "leak", "problem": leaked, "answer": "0"}])
    repeat = rows_of("minerva")[0]["problem"].replace(" ", "")
    repin(root, "minerva", [*rows_of("minerva"), {"id": "twin", "problem": repeat, "answer": "0"}])
    code, rows, lines = check(root, capsys)
    assert code == 2
    assert rows["math500"][2:] == ["yes", "0", "0", "1"]
    assert rows["minerva"][2:] == ["yes", "0", "1", "0"]
    assert "math500: leak is also in math-train (math-train/2)" in lines
    assert "minerva: same text: minerva/0 = twin" in lines
    assert lines[-1].startswith("WRONG: math500 ")
    assert [r.overlap for r in examine(str(root), ("math500",))] == [None]  # nothing to compare with


def test_pin_prints_ids_and_hashes(root, capsys):
    assert main(["pin", "minerva", "--root", str(root)]) == 0
    assert capsys.readouterr().out == (pinning.FOLDER / "minerva.txt").read_text()


def test_mistakes_exit_with_2(root, capsys):
    assert main(["check", "--root", str(root), "unheard"]) == 2
    assert "unknown set unheard; known: math-train" in capsys.readouterr().err
    assert main(["pin", "minerva", "--root", "/nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: data.root=/nowhere")
    with pytest.raises(SystemExit) as caught:
        main(["check"])
    assert caught.value.code == 2


class Table(list):
    """Rows with named columns, as ``datasets.load_dataset`` returns them."""

    @property
    def column_names(self):
        return list(self[0])

    def __iter__(self):
        return (row for row in list.__iter__(self) if None not in row.values())


@pytest.fixture
def stand_in(root, monkeypatch):
    """A ``datasets`` whose tables are the toys under the hub's column names, in another order and without our ids."""
    tables, asked = {}, []
    for source, where in SETS.items():
        column = where.answer or where.solution
        tables[where.path] = Table()
        for row in reversed(rows_of(source)):
            answer = f"So $\\boxed{{{row['answer']}}}$." if where.answer is None else row["answer"]
            answer = float(answer) if source == "amc23" else answer
            tables[where.path].append({where.problem: row["problem"], column: answer})

    def load_dataset(path, config, *, split, revision):
        asked.append((path, config, split, revision))
        table = tables[path]
        return table if config in (None, "algebra") else Table([dict.fromkeys(table.column_names)])  # other subjects: no rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return SimpleNamespace(tables=tables, asked=asked)


@pytest.mark.parametrize("source", ITEMS)
def test_the_hub_gives_the_set_of_the_files(source, root, stand_in):
    assert load_prompt_set(source, "hub") == load_prompt_set(source, str(root))
    assert len(stand_in.asked) == (7 if source == "math-train" else 1)
    assert stand_in.asked[0][0] == SETS[source].path


def test_rows_of_another_edition_are_told_apart(root, stand_in):
    table = stand_in.tables["math-ai/minervamath"]
    table[0] = {**table[0], "question": "Another toy?"}  # row 0 is item 3
    table[1] = {**table[1], "question": table[1]["question"].replace(" ", "  ")}
    assert [i.id for i in fetch_items("minerva")] == ["minerva/hub/0", "minerva/2", "minerva/1", "minerva/0"]
    with pytest.raises(UserError, match=r"1 changed \(minerva/2\), 1 missing \(minerva/3\), 1 extra \(minerva/hub/0\)"):
        load_prompt_set("minerva", "hub")
    assert load_prompt_set("minerva", "hub", pins="warn").differing == 3


def test_exact_matches_get_their_ids_before_similar_ones(root, tmp_path):
    twins = [Item("a", "Toy twice?", "1"), Item("b", "Toy  twice?", "1"), Item("c", "Toy twice?", "1")]
    (tmp_path / "pins" / "minerva.txt").write_text(pinning.format_pins("minerva", twins))
    pinning._read.cache_clear()
    rows = [
        Item("0", "toy twice?", "1"),
        Item("1", "Toy  twice?", "1"),
        Item("2", "Toy twice?", "1"),
        Item("3", "Toy  TWICE?", "1"),
    ]
    assert [i.id for i in pinning.name_by_text("minerva", rows)] == ["c", "b", "a", "3"]


def test_escapes_that_a_copy_lost_are_repaired(root, stand_in):
    stand_in.tables["math-ai/aime25"][:] = [{"problem": "Toy \frac{1}{2} of \triangle?", "answer": "025"}]
    assert fetch_items("aime2025")[0] == Item("aime2025/hub/0", "Toy \\frac{1}{2} of \\triangle?", "25")


def test_no_package_no_network_other_columns(root, stand_in, monkeypatch):
    stand_in.tables["math-ai/amc23"][:] = [{"text": "Toy?", "answer": "1"}]
    with pytest.raises(UserError, match=r"has the columns text, answer; answer, question are needed"):
        fetch_items("amc23")

    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=offline))
    with pytest.raises(UserError, match=r"ConnectionError: no route.*data\.root=<directory>"):
        fetch_items("amc23")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        fetch_items("amc23")


def test_fetch_writes_files_that_check_accepts(root, stand_in, tmp_path, capsys):
    target = tmp_path / "fetched"
    assert main(["fetch", "--root", str(target)]) == 0
    assert sorted(p.name for p in target.iterdir()) == sorted(p.name for p in root.iterdir())
    assert load_prompt_set("math-train", str(target)) == load_prompt_set("math-train", str(root))
    assert main(["fetch", "--root", str(target), "amc23"]) == 2
    assert "exists; move it away" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("$\\boxed{1}$ then $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("\\boxed{a} or \\fbox{b}", "b"),
        ("so $\\boxed 7$ it is", "7"),
        ("so \\boxed{\\left\\{1,2\\right\\}}", "\\left\\{1,2\\right\\}"),
        ("a row \\boxed{\\begin{pmatrix} 1 \\\\ {2} \\end{pmatrix}}", "\\begin{pmatrix} 1 \\\\ {2} \\end{pmatrix}"),
        ("\\boxed{}", ""),
        ("\\boxed{1", ""),
        ("none", ""),
        ("\\boxed", ""),
    ],
)
def test_last_box(solution, gold):
    assert last_box(solution) == gold


def test_hub_table_covers_every_set():
    assert SETS.keys() == ITEMS.keys()
    assert hub.SUBJECTS == tuple(sorted(hub.SUBJECTS))
