"""Evaluation as a user types it: which runs, benchmarks, samples and seeds; whole files only; nothing doubled, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.config import load_config
from experiments.errors import UserError
from experiments.evaluate import into_slot, is_source, split_words, task, words_to_overrides
from experiments.run_record import read_jsonl
from tests.experiments.smoke import only_run, run

SMALL = ("scale=smoke", "model=tiny-qwen3")


def chosen(*overrides: str) -> list[str]:
    words, rest = split_words(overrides)
    return words_to_overrides(words, load_config(["method=base", *rest]))


def test_words_become_overrides_that_the_configuration_accepts():
    benchmarks, seeds, samples = chosen("+benchmarks=[arith-teens, arith-aside]", "+runs=3", "+samples=4")
    config = load_config(["method=base", benchmarks, seeds, samples])
    assert [(b.name, b.source, b.stands_for) for b in config.data.benchmarks] == [
        ("arith-teens", "arith-teens", "aime2024"),
        ("arith-aside", "arith-aside", "minerva"),
    ]
    assert config.scale.evaluation.seeds == (1001, 1002, 1003)
    assert config.scale.evaluation.samples == 4


def test_fewer_items_are_evenly_spaced():
    from experiments.evaluation import benchmark_prompts
    from experiments.tasks import describe_prompt_set, load_prompt_set

    whole = load_prompt_set("arith-teens").prompts
    described = describe_prompt_set("arith-teens", None)
    assert benchmark_prompts(described, None) == whole
    (limit,) = chosen("+limit=3")
    assert load_config(["method=base", limit]).scale.evaluation.max_items == 3
    assert benchmark_prompts(described | {"items": 3}, None) == (whole[0], whole[12], whole[24])


def test_more_runs_than_seeds_go_on_counting():
    (seeds,) = chosen("+runs=7")
    assert load_config(["method=base", seeds]).scale.evaluation.seeds == (1001, 1002, 1003, 1004, 1005, 1006, 1007)


def test_the_five_runs_of_the_scale_are_no_other_recipe():
    from experiments.config import resolve

    plain = resolve(["method=base", "model=tiny-qwen3"])[0]
    asked = resolve(["method=base", "model=tiny-qwen3", *chosen("+runs=5", "+samples=8")])[0]
    assert asked == plain


WRONG = {
    "unknown benchmark": (("+benchmarks=[math500]",), "data=math"),
    "benchmark twice": (("+benchmarks=[arith-teens,arith-teens]",), "given twice"),
    "no runs": (("+runs=0",), "runs=0"),
    "runs that are no number": (("+runs=five",), "runs=five"),
    "negative samples": (("+samples=-1",), "samples=-1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words_say_what_instead(name: str):
    overrides, says = WRONG[name]
    with pytest.raises(UserError, match=says):
        chosen(*overrides)


@pytest.mark.parametrize(
    "extra", ["+benchmarks=[arith-teens]", "+runs=2", "+samples=4", "+engine=torch", "+limit=1", "data.root=x"]
)
def test_a_frozen_run_takes_no_choice(extra: str, tmp_path: Path):
    with pytest.raises(UserError, match="is frozen") as e:
        task([f"+run={tmp_path}", extra])
    assert extra.removeprefix("+") in str(e.value)


def test_unknown_engine(tmp_path: Path):
    with pytest.raises(UserError, match="torch, lm-eval-hf, lm-eval-vllm"):
        task(["model=tiny-qwen3", "+engine=llama.cpp", f"runs_root={tmp_path}"])
    assert not list(tmp_path.iterdir())


def test_what_counts_as_a_source(tmp_path: Path):
    assert is_source(str(tmp_path))
    assert is_source("owner/name")
    assert not is_source("tiny-qwen3")
    assert not is_source("qwen3-1.7b")


NAMES = {"a=b": "a-b", "a,b": "a-b", "with space": "with-space", "{x}": "-x-", "50%": "50-", "é": "é", "it's": "it-s", "#1": "-1"}


@pytest.mark.parametrize("name", NAMES)
def test_any_directory_reaches_the_configuration_unchanged(name: str, tmp_path: Path):
    directory = tmp_path / name
    directory.mkdir()
    slot, overrides = into_slot(str(directory), load_config(["method=base"]))
    assert slot == "smollm3-3b"
    model = load_config(["method=base", *overrides]).scale.slots[slot]
    assert (model.source, model.name) == (str(directory), NAMES[name])


def test_a_model_named_like_one_of_the_pair_takes_its_place(tmp_path: Path):
    (tmp_path / "tiny-qwen3").mkdir()
    assert into_slot(str(tmp_path / "tiny-qwen3"), load_config(["method=base"]))[0] == "qwen3-1.7b"


def evaluate(root: Path, *args: str) -> Path:
    done = run("experiments.evaluate", *SMALL, *args, f"runs_root={root}")
    assert done.returncode == 0, done.stderr
    return only_run(root)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five evaluation runs of two benchmarks, two samples an item, on three items each."""
    words = ("benchmarks=[arith-teens,arith-aside]", "runs=5", "samples=2", "limit=3")
    return evaluate(tmp_path_factory.mktemp("five"), *words)


@pytest.mark.slow
def test_seeds_are_distinct_stored_and_reach_the_sampler(five: Path):
    recipe = json.loads((five / "run.json").read_text())["recipe"]
    assert recipe["evaluation"]["seeds"] == [1001, 1002, 1003, 1004, 1005]
    for benchmark in ("arith-teens", "arith-aside"):
        files = [read_jsonl(five / "eval" / "tiny-qwen3" / benchmark / f"run{r}.jsonl") for r in range(5)]
        assert [len(rows) for rows in files] == [6] * 5
        seeds = [row["seed"] for rows in files for row in rows]
        assert len(set(seeds)) == len(seeds)
        texts = [tuple(row["response"] for row in rows) for rows in files]
        assert len(set(texts)) == 5
        keys = [(row["benchmark"], row["run"], row["item"], row["sample"]) for rows in files for row in rows]
        assert len(set(keys)) == 30


@pytest.mark.slow
def test_a_limited_run_says_so_and_counts_its_own_items(five: Path):
    config = json.loads((five / "run.json").read_text())
    assert "evaluation.benchmarks" in config["deviations"]
    assert [b["items"] for b in config["recipe"]["evaluation"]["benchmarks"]] == [3, 3]
    assert json.loads((five / "done.json").read_text())["evaluation_rows"] == 2 * 5 * 3 * 2


@pytest.mark.slow
def test_one_lost_file_is_made_again_alone(five: Path):
    files = {f: f.stat().st_mtime_ns for f in five.glob("eval/*/*/*.jsonl")}
    contents = {f: f.read_bytes() for f in files}
    lost = five / "eval" / "tiny-qwen3" / "arith-teens" / "run3.jsonl"
    lost.unlink()
    again = run("experiments.evaluate", f"run={five}")
    assert again.returncode == 0, again.stderr
    assert {f: f.read_bytes() for f in files} == contents
    assert [f for f, time in files.items() if f.stat().st_mtime_ns != time] == [lost]


@pytest.mark.slow
def test_an_overlong_prompt_is_the_users_to_correct(tmp_path: Path):
    done = run("experiments.evaluate", *SMALL, "scale.training.max_prompt_tokens=4", f"runs_root={tmp_path}")
    assert done.returncode == 2
    assert "max_prompt_tokens" in done.stderr
    assert "Traceback" not in done.stderr
