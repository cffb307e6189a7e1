"""Run directories: one recipe is one directory; edits, foreign recipes and second processes are refused; files survive kills."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from experiments.errors import UserError
from experiments.files import JsonlWriter, canonical_json, iter_jsonl, write_json
from experiments.run_record import RunRecord, differing_keys, find_runs, fingerprint

CELL = {"method": "graft", "pair": "1", "models": ["a", "b"], "scale": "cpu", "seed": 0}
RECIPE = {"method": {"name": "graft", "delta": 0.8}, "seed": 0}


def make(root, recipe=RECIPE):
    return RunRecord.create(root, cell=CELL, recipe=recipe, deviations={})


def test_same_recipe_opens_the_same_directory_and_another_gets_its_own(tmp_path):
    first, again = make(tmp_path), make(tmp_path)
    other = make(tmp_path, {**RECIPE, "seed": 1})
    assert first.path == again.path != other.path
    assert [r.path for r in find_runs([tmp_path])] == sorted([first.path, other.path])
    assert first.path.name == f"graft-1-cpu-s0-{fingerprint(RECIPE)[:8]}"


def test_edited_recipe_is_refused(tmp_path):
    record = make(tmp_path)
    config = json.loads((record.path / "run.json").read_text())
    config["recipe"]["method"]["delta"] = 0.7
    write_json(record.path / "run.json", config)
    with pytest.raises(UserError, match="edited"):
        RunRecord.open(record.path)


def test_foreign_recipe_names_the_keys(tmp_path):
    with pytest.raises(UserError, match=r"method\.delta"):
        make(tmp_path).require_recipe({**RECIPE, "method": {"name": "graft", "delta": 0.7}})


def test_differing_keys_are_dotted():
    assert differing_keys({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["a.c", "d"]


def test_fingerprint_ignores_key_order_and_refuses_nan():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_done_needs_the_record_of_this_fingerprint(tmp_path):
    record = make(tmp_path)
    assert not record.done
    write_json(record.path / "done.json", {"fingerprint": "another"})
    assert not record.done
    write_json(record.path / "done.json", {"fingerprint": record.config["fingerprint"]})
    assert record.done


def _create(root):
    return str(make(root).path)


def test_sixteen_claims_at_once_make_one_directory(tmp_path):
    with multiprocessing.get_context("fork").Pool(16) as pool:
        paths = set(pool.map(_create, [tmp_path] * 16))
    assert len(paths) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_second_process_is_refused(tmp_path):
    record = make(tmp_path)
    with record.lock(), pytest.raises(UserError, match="another process"), record.lock():
        pass


def test_attempts_are_numbered(tmp_path):
    record = make(tmp_path)
    assert [record.new_attempt().name, record.new_attempt().name] == ["1", "2"]


def test_torn_tail_is_dropped_and_repaired_but_a_bad_line_is_named(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a":1}\n{"a":"\xe2\x89')  # torn inside a UTF-8 character
    assert list(iter_jsonl(file)) == [{"a": 1}]
    writer = JsonlWriter(file)
    writer.append({"a": 2})
    writer.close()
    assert list(iter_jsonl(file)) == [{"a": 1}, {"a": 2}]
    file.write_bytes(b'{"a":1}\n{"a":\n{"a":3}\n')
    with pytest.raises(ValueError, match=":2:"):
        list(iter_jsonl(file))


def test_writer_truncates_to_the_checkpoints_offset_and_refuses_a_shorter_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    writer = JsonlWriter(file)
    writer.append({"a": 1})
    offset = writer.sync()
    writer.append({"a": 2})
    writer.close()
    JsonlWriter(file, offset).close()
    assert list(iter_jsonl(file)) == [{"a": 1}]
    with pytest.raises(ValueError, match="removed"):
        JsonlWriter(file, offset + 5)


def test_texts_of_any_kind_survive_a_row(tmp_path):
    texts = ["≥ √", "\u2028", "\x00", "line\nbreak", "\ud800"]
    writer = JsonlWriter(tmp_path / "rows.jsonl")
    for t in texts:
        writer.append({"t": t})
    writer.close()
    assert [row["t"] for row in iter_jsonl(tmp_path / "rows.jsonl")] == texts
