"""Sets from files: a fault is named with its place, an item that is not the pinned one with its id."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments import tasks
from experiments.errors import UserError
from experiments.tasks import load_prompt_set, pinning
from experiments.tasks.files import ITEMS, Item, read_items
from experiments.tasks.pinning import compare, format_pins, load_pins, normalised, pin_of
from graft.types import Prompt
from tests.experiments.toy_sets import install, rows_of, write_jsonl

SET = "minerva"
FILE = "minerva.jsonl"


@pytest.fixture
def root(tmp_path, monkeypatch):
    load_prompt_set.cache_clear()
    yield install(monkeypatch, tmp_path)
    load_prompt_set.cache_clear()


def load(root, **options):
    load_prompt_set.cache_clear()
    return load_prompt_set(SET, str(root), **options)


def edited(number: int, **fields):
    rows = rows_of(SET)
    rows[number] = {k: v for k, v in {**rows[number], **fields}.items() if v is not ...}
    return rows


def test_rows_become_prompts_in_order(root):
    loaded = load(root)
    assert [p.id for p in loaded.prompts] == [f"minerva/{i}" for i in range(4)]
    assert loaded.prompts[2] == Prompt("minerva/2", rows_of(SET)[2]["problem"], "22")
    assert (loaded.differing, loaded.corrected) == (0, 0)


def test_no_root_no_directory_no_file(root, tmp_path):
    with pytest.raises(UserError, match=r"data\.root=.*minerva\.jsonl.*data\.root=hub"):
        load_prompt_set(SET)
    with pytest.raises(UserError, match=r"is not a directory.*minerva\.jsonl"):
        load(tmp_path / "nowhere")
    (root / FILE).unlink()
    with pytest.raises(UserError, match=r"minerva\.jsonl does not exist.*docs/data\.md"):
        load(root)


def test_two_files_of_one_set_are_refused(root):
    write_jsonl(root / "math_train_nosol.jsonl", rows_of("math-train"))
    with pytest.raises(UserError, match=r"math_train\.jsonl and math_train_nosol\.jsonl"):
        read_items("math-train", str(root))
    (root / "math_train.jsonl").unlink()
    assert len(read_items("math-train", str(root))) == 4


BAD_ROWS = {
    "no answer": ({"answer": ...}, "no field answer"),
    "no id": ({"id": ...}, "no field id"),
    "other columns": ({"problem": ..., "question": "What?"}, r"no field problem.*question"),
    "empty problem": ({"problem": " "}, "problem of item 'minerva/2' is empty"),
    "problem is no text": ({"problem": 5}, "problem of item"),
    "id is no name": ({"id": True}, "id True"),
    "empty id": ({"id": ""}, "id ''"),
    "several answers": ({"answer": ["1", "2"]}, "answer is of type list"),
    "answer is true": ({"answer": True}, "answer is of type bool"),
    "same id": ({"id": "minerva/0"}, r"'minerva/0' occurs twice \(first at .*minerva\.jsonl:1\)"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_by_file_and_line(name, root):
    fields, says = BAD_ROWS[name]
    write_jsonl(root / FILE, edited(2, **fields))
    with pytest.raises(UserError, match=says) as caught:
        load(root)
    assert str(caught.value).startswith(f"{root / FILE}:3: ")


@pytest.mark.parametrize("line", [b'{"id": 1, "prob', b"not json", b'{"id": "\xff"}', b"[1]", b'"text"'])
def test_a_broken_line_is_named_by_file_and_line(line, root):
    lines = (root / FILE).read_bytes().splitlines()
    for place in (0, 1, 3):
        (root / FILE).write_bytes(b"\n".join([*lines[:place], line, *lines[place + 1 :]]))
        with pytest.raises(UserError, match=re.escape(f"{root / FILE}:{place + 1}: ")):
            load(root)


def test_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(root):
    plain = load(root)
    lines = (root / FILE).read_bytes().splitlines()
    for content in (b"\n".join(lines), b"\r\n".join(lines) + b"\r\n", b"\xef\xbb\xbf" + b"\n\n".join(lines) + b"\n \n"):
        (root / FILE).write_bytes(content)
        assert load(root) == plain


def test_an_empty_file_is_refused(root):
    (root / FILE).write_text("\n")
    for rule in ("strict", "off"):
        with pytest.raises(UserError, match="has no items"):
            load(root, pins=rule)


@pytest.mark.parametrize("answer", [27, 27.0, "27", "027", "27.0", " 27 ", "27."])
def test_contest_answers_are_one_whole_number(answer, root):
    write_jsonl(root / "amc23.jsonl", [{"id": 1, "problem": "Toy?", "answer": answer}])
    assert read_items("amc23", str(root)) == (Item("1", "Toy?", "27"),)


@pytest.mark.parametrize(("answer", "gold"), [("1/2", "1/2"), ("0", "0"), ("000", "0"), (None, ""), (0.5, "0.5"), ("-3", "-3")])
def test_other_answers_stay_as_they_are(answer, gold, root):
    write_jsonl(root / "amc23.jsonl", [{"id": "x", "problem": "Toy?", "answer": answer}])
    assert read_items("amc23", str(root))[0].gold == gold
    if answer not in ("000",):
        write_jsonl(root / FILE, [{"id": "x", "problem": "Toy?", "answer": answer}])
        assert read_items(SET, str(root))[0].gold == gold


def test_parquet_is_the_same_set(root):
    plain = load(root)
    (root / FILE).unlink()
    pq.write_table(pa.Table.from_pylist([{**row, "level": 3} for row in rows_of(SET)]), root / "minerva.parquet")
    assert load(root) == plain


def test_bad_parquet_is_named(root):
    (root / FILE).unlink()
    path = root / "minerva.parquet"
    pq.write_table(pa.Table.from_pylist([{"question": "Toy?", "answer": "1"}]), path)
    with pytest.raises(UserError, match=r"minerva\.parquet, row 1: no field id, problem"):
        load(root)
    pq.write_table(pa.Table.from_pylist([{"prompt": "Toy?"}]), path)
    with pytest.raises(UserError, match=r"no field id, problem, answer"):
        load(root)
    pq.write_table(pa.Table.from_pylist([*rows_of(SET)[:2], {"id": "z", "problem": None, "answer": "1"}]), path)
    with pytest.raises(UserError, match=r"row 3: problem of item 'z'"):
        load(root)
    path.write_bytes(b"version https://git-lfs")
    with pytest.raises(UserError, match=r"minerva\.parquet: not a parquet file"):
        load(root)


def test_the_order_of_lines_changes_nothing(root):
    plain = load(root)
    write_jsonl(root / FILE, rows_of(SET)[::-1])
    assert load(root) == plain


MISMATCHES = {
    "changed gold": (lambda: edited(2, answer="23"), ["1 changed (minerva/2)"]),
    "changed problem": (lambda: edited(1, problem="Toy, changed?"), ["1 changed (minerva/1)"]),
    "other spacing": (lambda: edited(1, problem=rows_of(SET)[1]["problem"] + " "), ["1 changed (minerva/1)"]),
    "wrong count": (lambda: rows_of(SET)[:2], ["has 2 items, 4 are pinned", "2 missing (minerva/2, minerva/3)"]),
    "other id": (lambda: edited(0, id="x"), ["1 missing (minerva/0)", "1 extra (x)"]),
    "many": (lambda: [{"id": i, "problem": "Toy?", "answer": "1"} for i in range(7)], ["7 extra (0, 1, 2, 3, 4, and 2 more)"]),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_strict_pins_name_the_items_that_differ(name, root):
    rows, says = MISMATCHES[name]
    write_jsonl(root / FILE, rows())
    with pytest.raises(UserError, match=r"data\.pins=warn") as caught:
        load(root)
    assert all(s in str(caught.value) for s in says)


def test_another_edition_is_used_knowingly(root, capsys):
    strict = tasks.describe_prompt_set(SET, str(root))
    write_jsonl(root / FILE, [*edited(1, problem="Toy, changed?")[:3][::-1], {"id": "x", "problem": "Toy?", "answer": "5"}])
    warned = tasks.describe_prompt_set(SET, str(root), pins="warn")
    assert "warning: minerva" in capsys.readouterr().err
    off = tasks.describe_prompt_set(SET, str(root), pins="off")
    assert capsys.readouterr().err == ""
    assert [p.id for p in load(root, pins="warn").prompts] == ["minerva/0", "minerva/1", "minerva/2", "x"]
    assert [p.id for p in load(root, pins="off").prompts] == ["minerva/2", "minerva/1", "minerva/0", "x"]
    assert strict["pins"] == {"rule": "strict", "differing": 0}
    assert warned["pins"] == {"rule": "warn", "differing": 3}  # one changed, one missing, one extra
    assert off["pins"] == {"rule": "off", "differing": None}
    for described in (warned, off):
        load_prompt_set.cache_clear()
        assert tasks.load_pinned(described, str(root)).sha256 == described["sha256"]
    with pytest.raises(UserError, match="1 changed"):
        tasks.load_pinned({**warned, "pins": strict["pins"]}, str(root))


def test_normal_form_is_no_difference_but_anything_else_is():
    composed, decomposed = Item("a", "caf\u00e9", "1"), Item("a", "cafe\u0301", "1")
    assert pin_of(composed) == pin_of(decomposed)
    assert pin_of(composed).item != pin_of(Item("a", "cafe", "1")).item
    assert pin_of(Item("a", "b", "12")).item != pin_of(Item("a", "b1", "2")).item


def test_normalised_text_drops_case_space_and_latex_spacing():
    same = ["a + b  \\quad C", "A+B\\,c", "a\\ +~b\n\tc", "a\\;+\\!b\\:c", "a+b\\qquad c", "a+b\\> c"]
    assert {normalised(t) for t in same} == {"a+bc"}
    assert normalised("x \\\\ y") == normalised("x\\\\y") == "x\\\\y"  # a row break is no space
    assert normalised("x \\\\, y") == "x\\\\,y"
    assert normalised("\\quadrant") == "\\quadrant"
    assert normalised("1 2") != normalised("1 3")


def test_damaged_or_missing_pins_are_said(root, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(pinning, "FOLDER", tmp_path / "other")
    with pytest.raises(UserError, match=r"minerva\.txt does not exist"):
        load(root)
    (tmp_path / "other" / "minerva.txt").write_text("# a comment\nonly two\n")
    with pytest.raises(UserError, match=r"minerva\.txt:2: not an id and two hashes"):
        load(root)


@pytest.mark.parametrize("source", ITEMS)
def test_committed_pins_are_ids_and_hashes_and_nothing_else(source):
    pins = load_pins(source)
    assert len(pins) == ITEMS[source] == len({p.id for p in pins})
    assert all(re.fullmatch(r"[a-z0-9/_]+/[A-Za-z0-9-]+", p.id) for p in pins)
    assert all(re.fullmatch(r"[0-9a-f]{16}", h) for p in pins for h in (p.item, p.text))
    assert len({p.item for p in pins}) >= len(pins) - 1  # MATH train has one problem twice


def test_pins_survive_being_written_and_read(root, tmp_path):
    items = [Item("a b", "Toy?", "1"), Item("c", "Toy\n2?", "")]
    (tmp_path / "pins" / "minerva.txt").write_text(format_pins(SET, items))
    pinning._read.cache_clear()
    assert load_pins(SET) == tuple(map(pin_of, items))
    assert compare(SET, items[::-1]).count == 0
    assert str(compare(SET, items)) == "has 2 items, 2 are pinned: none differs"
    assert json.dumps([p.id for p in load_pins(SET)]) == '["a b", "c"]'
