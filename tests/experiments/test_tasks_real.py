"""The real files, where this checkout has them beside it: they are the pinned ones, and the corrections fit them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.tasks import corrections, describe_prompt_set, load_prompt_set
from experiments.tasks.corrections import overlay
from experiments.tasks.files import ITEMS, read_items
from experiments.tasks.hub import last_box
from experiments.tasks.report import examine, verdict
from graft.verifier import Verifier

ROOT = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason=f"no data files at {ROOT}; docs/data.md says how to get them")
TIMES_TEN = re.compile(r"(-?[0-9.]+) \\times 10\^\{(-?[0-9]+)\}")


def test_files_are_the_pinned_ones_and_train_is_in_no_benchmark():
    reports = {r.source: r for r in examine(str(ROOT))}
    assert not any(r.wrong for r in reports.values())
    assert {s: r.items for s, r in reports.items()} == ITEMS
    assert {s: r.overlap for s, r in reports.items()} == {s: None if s == "math-train" else () for s in ITEMS}
    assert reports["math-train"].no_gold == ("math/train/number_theory/7115", "math/train/number_theory/7117")
    assert [len(r.repeated) for r in reports.values()] == [2, 0, 0, 0, 0, 0]
    assert verdict(tuple(reports.values())) == "All sets are the pinned ones."


@pytest.mark.parametrize(("source", "paper", "changed"), [("math-train", 7498, 24), ("minerva", 272, 62), ("math500", 500, 0)])
def test_counts_under_both_golds(source, paper, changed):
    assert describe_prompt_set(source, str(ROOT))["items"] == paper
    corrected = describe_prompt_set(source, str(ROOT), "corrected")
    assert (corrected["items"], corrected["golds"]["changed"]) == (ITEMS[source], changed)


def test_every_correction_changes_its_gold_and_scientific_notation_is_the_same_number():
    before = {i.id: i.gold for source in ITEMS for i in read_items(source, str(ROOT))}
    numbers = 0
    for name, (gold, *alternatives) in overlay("corrected").golds.items():
        assert (before[name],) != (gold, *alternatives)
        match = TIMES_TEN.fullmatch(gold)
        if match:
            assert float(f"{match[1]}e{match[2]}") == float(before[name])
            numbers += 1
    assert numbers == 58


def test_every_corrected_gold_is_an_answer_to_itself():
    pairs = [(golds, gold) for golds in overlay("corrected").golds.values() for gold in golds]
    with Verifier() as verifier:
        verdicts = verifier.verify_many([(golds, f"So \\boxed{{{gold}}}.") for golds, gold in pairs])
    assert len(pairs) == 86 + 4
    assert [gold for (_, gold), v in zip(pairs, verdicts) if not v.correct] == []


def test_of_two_alternatives_the_sources_gold_is_one_and_each_is_needed():
    before = {i.id: i.gold for i in read_items("math-train", str(ROOT))}
    with Verifier() as verifier:
        for name, golds in overlay("corrected").golds.items():
            if len(golds) == 1:
                continue
            judged = [[verifier.verify(gold, f"\\boxed{{{other}}}").correct for other in golds] for gold in golds]
            assert judged == [[True, False], [False, True]], name
            assert verifier.verify(golds, f"\\boxed{{{before[name]}}}").correct, name


@pytest.mark.parametrize("source", ["math500", "minerva"])
def test_the_last_box_of_a_solution_is_its_gold(source):
    rows = [json.loads(line) for line in (ROOT / f"{source}.jsonl").read_text().splitlines()]
    assert [r["id"] for r in rows if last_box(r["solution"]) != r["answer"]] == []


def test_the_committed_overlay_holds_no_problem():
    # The pin files hold ids and hashes only, which tests/experiments/test_tasks_files.py checks line by line.
    committed = (corrections.FOLDER / "corrected.json").read_text()
    problems = [p.message for source in ITEMS for p in load_prompt_set(source, str(ROOT)).prompts]
    pieces = {problem[start : start + 40] for problem in problems for start in (0, len(problem) // 2) if len(problem) > 40}
    assert not [piece for piece in pieces if piece in committed]
