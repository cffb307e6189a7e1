from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from analysis.collect import correct_array, counts, evaluation_frame, match, open_runs, repeated_sample_share, require_comparable
from analysis.footer import _repeats
from analysis.schema import COLUMNS, validate_frame
from experiments.run_record import UserError

from .conftest import Runs, share

MODEL, BENCHMARK, ITEMS = "tiny-qwen3", "arith-heldout", 2
WANTED = {"method": "graft", "deviations": {}, "scale": "cpu", "seed": 0}


def bench(record):
    return record.config["recipe"]["evaluation"]["benchmarks"][0]


def test_frame_has_declared_columns_and_every_row(runs: Runs):
    record = runs.make("graft", share(1))
    frame = evaluation_frame([record])
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == COLUMNS
    assert len(frame) == 2 * 2 * (2 + 1) * 4  # models x runs x items of both benchmarks x samples
    assert set(frame["stands_for"]) == {"smollm3-3b", "qwen3-1.7b"}
    assert set(frame["benchmark_stands_for"]) == {"math500", "amc23"}


def test_array_follows_items_and_samples_whatever_the_order_of_rows(runs: Runs):
    record = runs.make("graft", lambda model, benchmark, run, item, sample: (run, item, sample) == (1, 0, 2))
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    runs.write(record, MODEL, BENCHMARK, 1, rows[::-1])
    array = correct_array(record, evaluation_frame([record]), MODEL, bench(record), [0, 1])
    assert array.shape == (2, 2, 4)
    assert np.argwhere(array).tolist() == [[1, 0, 2]]


def test_short_item_is_counted(runs: Runs):
    record = runs.make("graft", share(1))
    runs.write(record, MODEL, BENCHMARK, 1, runs.read(record, MODEL, BENCHMARK, 1)[:-1])
    found = counts(record, evaluation_frame([record]), MODEL, bench(record))
    assert [(c.run, c.rows, c.expected) for c in found] == [(0, 8, 8), (1, 7, 8)]


def test_missing_file_and_torn_last_line_are_counted(runs: Runs):
    record = runs.make("graft", share(1))
    runs.file(record, MODEL, BENCHMARK, 0).unlink()
    file = runs.file(record, MODEL, BENCHMARK, 1)
    file.write_bytes(file.read_bytes()[:-5])
    assert [c.rows for c in counts(record, evaluation_frame([record]), MODEL, bench(record))] == [0, 7]


def test_bad_line_in_the_middle_names_file_and_number(runs: Runs):
    record = runs.make("graft", share(1))
    file = runs.file(record, MODEL, BENCHMARK, 0)
    lines = file.read_text().splitlines()
    lines[2] = lines[2][:-4]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"run0\.jsonl:3"):
        evaluation_frame([record])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": 1}, "correct is 1, expected bool"),
        ({"sample": True}, "sample is True, expected int"),
        ({"sample": 4}, "samples 0 to 3"),
        ({"run": 0}, "run is 0 in the file of 1"),
        ({"benchmark": "other"}, "benchmark is 'other'"),
        ({"response": None}, "response is None"),
        ({"response": 5}, "response is 5, expected str"),
        ({"response": {"response": "x"}}, "response is {'response': 'x'}"),
        ({"response": 5, "extracted": {"response": "x"}}, "response is 5, expected str"),
        ({"item": 1.5}, "item is 1.5, expected str or int"),
        ({"item": True}, "item is True"),
        ({"item": [1]}, "item is [1]"),
        ({"finish_reason": 3}, "finish_reason is 3"),
        ({"finish_reason": False}, "finish_reason is False"),
        ({"tokens": float("nan")}, "tokens is nan"),
        ({"tokens": 7.0}, "tokens is 7.0"),
    ],
)
def test_malformed_row_names_file_and_row(runs: Runs, change: dict, message: str):
    record = runs.make("graft", share(1))
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    rows[5] |= change
    file = runs.write(record, MODEL, BENCHMARK, 1, rows)
    with pytest.raises(UserError) as error:
        evaluation_frame([record])
    assert f"{file}:6" in str(error.value)
    assert message in str(error.value)


def test_absent_field_and_non_object(runs: Runs):
    record = runs.make("graft", share(1))
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    del rows[0]["correct"]
    runs.write(record, MODEL, BENCHMARK, 1, rows)
    with pytest.raises(UserError, match=r"run1\.jsonl:1: no field 'correct'"):
        evaluation_frame([record])
    runs.write(record, MODEL, BENCHMARK, 1, [[1, 2]])
    with pytest.raises(UserError, match="is a list"):
        evaluation_frame([record])


def test_items_given_as_numbers_are_names(runs: Runs):
    record = runs.make("graft", share(1))
    texts = evaluation_frame([record])
    for model in ("tiny-smollm3", MODEL):
        for benchmark in ("arith-heldout", "arith-large"):
            for run in (0, 1):
                rows = [row | {"item": int(row["item"][-1])} for row in runs.read(record, model, benchmark, run)]
                runs.write(record, model, benchmark, run, rows)
    numbers = evaluation_frame([record])
    assert set(numbers["item"]) == {"0", "1"}
    assert ("item-" + numbers["item"].astype("str")).tolist() == texts["item"].tolist()


def test_a_blank_line_is_no_row(runs: Runs):
    record = runs.make("graft", share(1))
    file = runs.file(record, MODEL, BENCHMARK, 1)
    file.write_text("\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(UserError, match=r"run1\.jsonl:1: not a JSON row"):
        evaluation_frame([record])


@pytest.mark.parametrize("place", ["tiny-gpt/arith-heldout", "tiny-qwen3/arith-other"])
def test_rows_that_the_recipe_does_not_name_are_refused(runs: Runs, place: str):
    record = runs.make("graft", share(1))
    folder = record.path / "eval" / place
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("not rows: ignored")
    assert len(evaluation_frame([record])) == 48
    (folder / "run0.jsonl").write_text("")
    with pytest.raises(UserError, match=rf"{place}/run0\.jsonl: the recipe asks for 2 evaluation runs .* move this file away"):
        evaluation_frame([record])


def test_doubled_row_names_both_lines(runs: Runs):
    record = runs.make("graft", share(1))
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    runs.write(record, MODEL, BENCHMARK, 1, [*rows, rows[3]])
    with pytest.raises(UserError, match=r"run1\.jsonl:9: item item-0, sample 3 is already in row 4"):
        evaluation_frame([record])


def test_identical_replicates_are_refused(runs: Runs):
    record = runs.make("graft", share(1))
    for benchmark in ("arith-heldout", "arith-large"):
        rows = [row | {"run": 1, "seed": 101} for row in runs.read(record, MODEL, benchmark, 0)]
        runs.write(record, MODEL, benchmark, 1, rows)
    with pytest.raises(ValueError, match="evaluation runs 0 and 1 of tiny-qwen3 hold the same response in all 12 rows"):
        evaluation_frame([record])


def test_one_different_response_makes_a_replicate(runs: Runs):
    record = runs.make("graft", share(1))
    for benchmark in ("arith-heldout", "arith-large"):
        rows = [row | {"run": 1} for row in runs.read(record, MODEL, benchmark, 0)]
        rows[0]["response"] += "!"
        runs.write(record, MODEL, benchmark, 1, rows)
    frame = evaluation_frame([record])
    assert set(frame["run"]) == {0, 1}


def test_runs_and_items_beyond_the_recipe_are_refused(runs: Runs):
    record = runs.make("graft", share(1))
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    runs.write(record, MODEL, BENCHMARK, 1, [*rows, rows[0] | {"item": "item-9"}])
    with pytest.raises(UserError, match="3 different items, the recipe pins 2"):
        evaluation_frame([record])
    runs.write(record, MODEL, BENCHMARK, 1, rows)
    runs.write(record, MODEL, BENCHMARK, 2, [row | {"run": 2} for row in rows])
    with pytest.raises(UserError, match=r"run2\.jsonl: the recipe asks for 2 evaluation runs"):
        evaluation_frame([record])


def test_runs_over_different_items_are_refused(runs: Runs):
    record = runs.make("graft", share(1))
    rows = [row | {"item": row["item"].replace("0", "7")} for row in runs.read(record, MODEL, BENCHMARK, 1)]
    runs.write(record, MODEL, BENCHMARK, 1, rows)
    with pytest.raises(UserError, match="do not hold the same items"):
        correct_array(record, evaluation_frame([record]), MODEL, bench(record), [0, 1])


def test_odd_text_is_read(runs: Runs):
    record = runs.make("graft", share(1))
    rows = runs.read(record, MODEL, BENCHMARK, 0)
    rows[0]["response"] = "line\u2028sep \x00 nul"
    file = runs.write(record, MODEL, BENCHMARK, 0, rows)
    text = file.read_text(encoding="utf-8").replace("≥", "\\ud800", 1)  # the JSON escape of a lone surrogate
    file.write_text(text, encoding="utf-8")
    assert len(evaluation_frame([record])) == 48


def test_match_needs_method_scale_seed_deviations_and_pair(runs: Runs):
    right = runs.make("graft", share(1))
    runs.make("graft", share(1), deviations={"method.delta": 0.7})
    runs.make("graft", share(1), pair="2")
    runs.make("graft", share(1), cell={"seed": 1})
    runs.make("graft", share(1), cell={"scale": "smoke"})
    records = open_runs(runs.root)
    assert len(records) == 5
    for receiver in ("smollm3-3b", "qwen3-1.7b"):
        assert match(records, WANTED, pair="1", receiver=receiver).done.path == right.path
    assert match(records, WANTED, pair="1", receiver="octothinker-3b").done is None
    changed = WANTED | {"deviations": {"method.delta": 0.7}}
    assert match(records, changed, pair="1", receiver="qwen3-1.7b").done.config["deviations"] == {"method.delta": 0.7}


def test_independent_runs_serve_their_own_receiver_in_any_pair(runs: Runs):
    mine = runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    records = open_runs(runs.root)
    wanted = WANTED | {"method": "grpo"}
    assert match(records, wanted, pair="3", receiver="qwen3-1.7b").done.path == mine.path
    assert match(records, wanted, pair="3", receiver="smollm3-3b").done is None


def test_two_finished_runs_of_one_cell_are_refused_and_unfinished_ones_are_not_used(runs: Runs):
    first = runs.make("graft", share(1))
    second = runs.make("graft", share(1), done=False, learning_rate=2)
    found = match(open_runs(runs.root), WANTED, pair="1", receiver="qwen3-1.7b")
    assert (found.done.path, [r.path for r in found.unfinished]) == (first.path, [second.path])
    (second.path / "done.json").write_text(json.dumps({"fingerprint": second.config["fingerprint"]}))
    with pytest.raises(UserError) as error:
        match(open_runs(runs.root), WANTED, pair="1", receiver="qwen3-1.7b")
    assert str(first.path) in str(error.value)
    assert str(second.path) in str(error.value)


def test_runs_that_were_evaluated_differently_cannot_share_a_table(runs: Runs):
    first = runs.make("graft", share(1))
    second = Runs(runs.root, evaluation={"temperature": 1.0}).make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    with pytest.raises(UserError, match=r"differ in evaluation\.temperature"):
        require_comparable([first, second])
    more = Runs(runs.root, runs=3).make("wo_floor", share(1))
    with pytest.raises(UserError, match="number of evaluation runs"):
        require_comparable([first, more])
    doubled = Runs(runs.root, evaluation={"seeds": [5, 5]}).make("sgt", share(1))
    with pytest.raises(UserError, match="repeat one"):
        require_comparable([doubled])


def test_a_run_of_another_format_is_refused(runs: Runs):
    record = runs.make("graft", share(1))
    (record.path / "run.json").write_text(json.dumps({**record.config, "format": 2}))
    with pytest.raises(UserError, match="format 2 is not known here"):
        open_runs(runs.root)


def test_damaged_run_json_is_named(runs: Runs):
    record = runs.make("graft", share(1))
    (record.path / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json"):
        open_runs(runs.root)


def test_repeated_samples_are_measured(runs: Runs):
    record = runs.make("graft", share(1))
    rows = [row | {"response": row["item"]} for row in runs.read(record, MODEL, BENCHMARK, 0)]
    runs.write(record, MODEL, BENCHMARK, 0, rows)
    frame = evaluation_frame([record])
    # tiny-qwen3: items per run 2 + 1, two runs = 6 groups of samples, of which the 2 rewritten ones repeat
    assert repeated_sample_share(frame).loc[(str(record.path), MODEL)] == pytest.approx(2 / 6)
    assert _repeats(frame) == ()  # a third of the items is not worth a note
    for benchmark, run in ((BENCHMARK, 1), ("arith-large", 0), ("arith-large", 1)):
        rows = [row | {"response": row["item"]} for row in runs.read(record, MODEL, benchmark, run)]
        runs.write(record, MODEL, benchmark, run, [r | {"response": f"{r['item']} {run}"} for r in rows])
    (note,) = _repeats(evaluation_frame([record]))  # now all 6 of 6; the other model of the run has none
    assert "in 1 of 2 evaluated checkpoints; most often, 100 %, for tiny-qwen3" in note


def test_validate_frame_refuses_doubled_keys_and_wrong_columns(runs: Runs):
    frame = evaluation_frame([runs.make("graft", share(1))])
    with pytest.raises(ValueError, match="1 rows twice"):
        validate_frame(pd.concat([frame, frame.iloc[[3]]], ignore_index=True))
    with pytest.raises(ValueError, match="columns"):
        validate_frame(frame.drop(columns="tokens"))
    with pytest.raises(ValueError, match="dtypes"):
        validate_frame(frame.astype({"correct": "int64"}))
