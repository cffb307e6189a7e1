"""Gold corrections: exactly the named golds change, the recipe says which version did it, generated sets have none."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from experiments import tasks
from experiments.config import resolve
from experiments.errors import UserError
from experiments.evaluation import Sample, item_row
from experiments.run_record import fingerprint
from experiments.tasks import PromptSet, corrections, load_prompt_set
from experiments.tasks.corrections import correct, overlay
from experiments.tasks.files import ITEMS, Item
from experiments.tasks.pinning import load_pins
from graft.types import Prompt, Verdict
from tests.experiments.toy_sets import OVERLAY, install, rows_of, write_jsonl

KINDS = {"notation": 61, "incomplete": 12, "punctuation": 6, "alternatives": 4, "missing": 2, "gold error": 1}


@pytest.fixture
def root(tmp_path, monkeypatch):
    load_prompt_set.cache_clear()
    corrections._read.cache_clear()
    yield str(install(monkeypatch, tmp_path))
    load_prompt_set.cache_clear()
    corrections._read.cache_clear()


def golds(source, root, name):
    return {p.id: p.golds for p in load_prompt_set(source, root, name).prompts}


def accepted(entry):
    return tuple(entry["any_of"]) if "any_of" in entry else (entry["answer"],)


def test_exactly_the_named_golds_change(root):
    for source in ITEMS:
        before, after = golds(source, root, "paper"), golds(source, root, "corrected")
        changed = {name: answers for name, answers in after.items() if before.get(name) != answers}
        assert changed == {k: accepted(e) for k, e in OVERLAY["items"].items() if k.startswith(source)}
        assert before.keys() <= after.keys()


def test_an_item_without_gold_is_left_out_until_a_correction_gives_one(root):
    assert list(golds("math-train", root, "paper")) == ["math-train/0", "math-train/1", "math-train/2"]
    assert golds("math-train", root, "corrected")["math-train/3"] == ("13",)
    assert tasks.describe_prompt_set("math-train", root)["items"] == 3


def test_two_right_answers_are_a_gold_and_its_alternative(root):
    (prompt,) = (p for p in load_prompt_set("math-train", root, "corrected").prompts if p.id == "math-train/2")
    assert (prompt.gold, prompt.alternatives) == ("7", ("8",))
    assert golds("math-train", root, "paper")["math-train/2"] == ("22",)


def test_the_hash_of_a_set_covers_alternatives_and_is_the_old_one_without_any():
    def digest(*alternatives):
        return PromptSet.of("toys", (Prompt("a", "m", "1", alternatives=alternatives),)).sha256

    # what every run under the source's golds was frozen with
    assert digest() == hashlib.sha256(b'["a","m","1"]').hexdigest()
    assert digest("2") == hashlib.sha256(b'["a","m","1","2"]').hexdigest()
    assert len({digest(), digest("2"), digest("3"), digest("2", "3"), digest("3", "2")}) == 5


def test_evaluation_rows_name_alternatives_only_where_there_are_any():
    def row(*alternatives):
        prompt = Prompt("a", "m", "1", alternatives=alternatives)
        return item_row(("toys", 0, 0), prompt, Sample("2", None), Verdict(False, "2", "different"))

    assert row("2") == row() | {"alternatives": ["2"]}
    assert "alternatives" not in row()


def test_a_recipe_says_which_golds(root):
    paper, corrected = (tasks.describe_prompt_set("minerva", root, name) for name in ("paper", "corrected"))
    assert paper["golds"] == {"name": "paper"}
    assert corrected["golds"] == {**overlay("corrected").describe(), "changed": 1}
    assert corrected["golds"]["version"] == 3
    assert len(corrected["golds"]["sha256"]) == 64
    assert paper["sha256"] != corrected["sha256"]
    assert tasks.load_pinned(corrected, root).prompts[1].gold == "2 \\times 10^{3}"
    assert tasks.load_pinned(paper, root).prompts[1].gold == "2e3"


@pytest.mark.parametrize("change", [{"version": 4}, {"sha256": "0" * 64}])
def test_a_run_is_not_continued_under_another_overlay(change, root):
    described = tasks.describe_prompt_set("minerva", root, "corrected")
    with pytest.raises(UserError, match="golds are corrected version"):
        tasks.load_pinned({**described, "golds": {**described["golds"], **change}}, root)


def test_the_hash_covers_every_entry(tmp_path, monkeypatch, root):
    first = overlay("corrected").sha256
    other = json.loads(json.dumps(OVERLAY))
    other["items"]["minerva/1"]["answer"] = "2000"
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "corrected.json").write_text(json.dumps(other))
    monkeypatch.setattr(corrections, "FOLDER", tmp_path / "again")
    assert overlay("corrected").sha256 != first


def test_a_correction_belongs_to_a_problem_not_to_an_id(root):
    other = Item("minerva/1", "Another toy?", "5")
    spaced = Item("minerva/1", rows_of("minerva")[1]["problem"].replace(" ", "\\, "), "5")
    assert correct("minerva", [other], "corrected") == ((other,), 0)
    assert correct("minerva", [spaced], "corrected")[0][0].gold == "2 \\times 10^{3}"
    right = Item("minerva/1", rows_of("minerva")[1]["problem"], "2 \\times 10^{3}")
    assert correct("minerva", [right], "corrected") == ((right,), 0)
    both = Item("math-train/2", rows_of("math-train")[2]["problem"], "7", ("8",))
    assert correct("math-train", [replace(both, alternatives=())], "corrected") == ((both,), 1)
    assert correct("math-train", [both], "corrected") == ((both,), 0)
    with pytest.raises(UserError, match="known: paper, corrected"):
        overlay("unheard")


def plan(root, *overrides):
    plans, options = resolve(["scale=paper", "pair=1", "method=graft", *([f"data.root={root}"] if root else []), *overrides])
    assert options.data_root == root
    return plans[0]


def test_golds_and_pins_reach_the_fingerprint(root):
    variants = [plan(root), plan(root, "data.golds=corrected"), plan(root, "data.pins=warn"), plan(root, "data.pins=off")]
    assert len({fingerprint(p.recipe) for p in variants}) == 4
    corrected = variants[1].recipe
    described = [corrected["data"]["train"], *corrected["evaluation"]["benchmarks"]]
    assert [d["golds"]["name"] for d in described] == ["corrected"] * 6
    assert {d["source"]: d["golds"]["changed"] for d in described} == dict.fromkeys(ITEMS, 0) | {"math-train": 2, "minerva": 1}
    assert plan(root).recipe["data"]["train"]["items"] == 3


def test_without_a_root_the_recipe_still_names_the_golds(root):
    described = plan(None, "data.golds=corrected").recipe["data"]["train"]
    assert described == {
        "source": "math-train",
        "items": 7500,
        "sha256": None,
        "golds": overlay("corrected").describe(),
        "pins": {"rule": "strict", "differing": None},
    }


def test_another_order_of_lines_is_the_same_run(root, tmp_path):
    first = plan(root).name
    write_jsonl(tmp_path / "data" / "amc23.jsonl", rows_of("amc23")[::-1])
    load_prompt_set.cache_clear()
    assert plan(root).name == first


@pytest.mark.parametrize("override", ["data.golds=corrected", "data.pins=warn", "data.pins=off"])
def test_generated_sets_have_nothing_to_correct(override):
    with pytest.raises(UserError, match=f"{override.split('=')[0]}.*would change nothing"):
        resolve(["scale=cpu", override])


@pytest.mark.parametrize("override", ["data.golds=unheard", "data.pins=maybe"])
def test_unknown_choices_are_refused(override):
    with pytest.raises(UserError, match=override.split("=")[0]):
        resolve(["scale=paper", override])


def test_recipes_of_generated_sets_gain_no_keys():
    recipe = resolve(["scale=cpu", "scale.training.selection=held_out"])[0][0].recipe
    assert recipe["data"].keys() == {"prompt_suffix", "train", "validation"}
    assert recipe["data"]["train"].keys() == {"source", "items", "sha256"}
    assert recipe["evaluation"]["benchmarks"][0].keys() == {"name", "stands_for", "source", "items", "sha256"}


def test_the_committed_overlay_is_whole():
    content = json.loads((corrections.FOLDER / "corrected.json").read_text())
    assert (content["name"], content["version"]) == ("corrected", 2)
    counts = dict.fromkeys(KINDS, 0)
    pinned = {p.id for source in ITEMS for p in load_pins(source)}
    for name, entry in content["items"].items():
        assert name in pinned
        assert entry.keys() in ({"answer", "kind", "reason"}, {"any_of", "kind", "reason"})
        assert ("any_of" in entry) == (entry["kind"] == "alternatives")
        assert all(answer.strip() for answer in accepted(entry))
        assert len(set(accepted(entry))) == (2 if "any_of" in entry else 1)
        counts[entry["kind"]] += 1
    assert counts == KINDS
    assert dict(overlay("corrected").golds) == {name: accepted(entry) for name, entry in content["items"].items()}
    assert len(overlay("corrected").golds) == sum(KINDS.values()) == 86
