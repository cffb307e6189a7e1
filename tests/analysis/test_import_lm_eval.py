"""lm-eval's sample logs as rows of ours: whole or refused, once however often they are imported, and shown by a table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.__main__ import main as analysis
from analysis.quality import load
from experiments.errors import UserError
from experiments.lm_eval_tasks.importing import arguments, main, plan_import
from experiments.lm_eval_tasks.samples import benchmark_of, read_samples
from experiments.run_record import RunRecord, find_runs, read_jsonl
from experiments.tasks import load_prompt_set
from graft.types import Prompt

SAMPLING = {"until": [], "do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 44}
ITEMS = load_prompt_set("arith-teens").prompts
# responses(item number, sample) -> text
Responses = Callable[[int, int], str]


def log_row(number: int, doc: dict[str, Any], texts: Sequence[str], generation: dict[str, Any] = SAMPLING) -> dict[str, Any]:
    """As lm-eval's EvaluationTracker writes it."""
    return {
        "doc_id": number,
        "doc": doc,
        "target": "?",
        "arguments": {"gen_args_0": {"arg_0": "prompt", "arg_1": generation}},
        "resps": [list(texts)],
        "filtered_resps": [list(texts)],
        "filter": "every_sample",
        "metrics": ["pass@1"],
        "doc_hash": "",
    }


def log_file(folder: Path, name: str, rows: Sequence[dict[str, Any]], time: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{name}_2026-11-29T10-00-0{time}.000000.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ours(folder: Path, responses: Responses, *, samples: int = 2, benchmark: str = "arith-teens", time: int = 0) -> Path:
    """A log of our own task over every item."""
    items = load_prompt_set(benchmark).prompts
    rows = [
        log_row(i, {"id": p.id, "message": p.message, "gold": p.gold}, [responses(i, s) for s in range(samples)])
        for i, p in enumerate(items)
    ]
    return log_file(folder, f"graft_{benchmark}", rows, time)


def right_half(run: int) -> Responses:
    """Sample 0 is right, sample 1 is not; the runs differ in their text."""
    return lambda i, s: f"run {run}: \\boxed{{{ITEMS[i].gold if s == 0 else 1000 + i}}}"


def command(root: Path, *files: Path, model: str = "theirs", more: Sequence[str] = ()) -> list[str]:
    where = ["--stands-for", "qwen3-1.7b", "--scale", "cpu", "--root", str(root)]
    return [*map(str, files), "--model", model, *where, *more]


def only(root: Path) -> RunRecord:
    (record,) = find_runs([root / "paper"])
    return record


def test_rows_verdicts_and_completion(tmp_path: Path):
    files = [ours(tmp_path / "logs", right_half(r), time=r) for r in range(2)]
    assert main(command(tmp_path / "runs", *files)) == 0
    record = only(tmp_path / "runs")
    assert record.done
    assert record.config["cell"] == {"method": "imported", "pair": None, "models": ["tiny-qwen3"], "scale": "cpu", "seed": 0}
    assert record.config["deviations"] == {"method.checkpoint": "theirs"}
    rows = read_jsonl(record.path / "eval" / "tiny-qwen3" / "arith-teens" / "run1.jsonl")
    assert len(rows) == 36 * 2
    assert [(r["sample"], r["correct"]) for r in rows] == [(0, True), (1, False)] * 36
    assert {r["item"] for r in rows} == {p.id for p in ITEMS}
    assert rows[0]["gold"] == ITEMS[0].gold
    # what the log does not say
    assert (rows[0]["seed"], rows[0]["finish_reason"], rows[0]["tokens"]) == (None, "unknown", -1)
    average = {q.benchmark: q for q in load(record.path)[1]}["average"]
    assert average.mean_std("pass@1") == (0.5, 0.0)
    assert average.mean_std("pass@2") == (1.0, 0.0)
    assert average.mean_std("cut off") == average.mean_std("tokens") == (None, None)


def test_the_same_import_again_changes_nothing(tmp_path: Path):
    files = [ours(tmp_path / "logs", right_half(r), time=r) for r in range(2)]
    assert main(command(tmp_path / "runs", *files)) == 0
    before = {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in (tmp_path / "runs").rglob("run*.json*")}
    assert main(command(tmp_path / "runs", *files)) == 0
    assert {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in (tmp_path / "runs").rglob("run*.json*")} == before


def test_other_files_of_the_same_checkpoint_are_refused(tmp_path: Path, capsys):
    files = [ours(tmp_path / "logs", right_half(r), time=r) for r in range(2)]
    assert main(command(tmp_path / "runs", files[0])) == 0
    assert main(command(tmp_path / "runs", *files)) == 2
    assert "already holds theirs" in capsys.readouterr().err
    assert main(command(tmp_path / "runs", *files, model="another")) == 0


def test_an_interrupted_import_is_completed(tmp_path: Path):
    files = [ours(tmp_path / "logs", right_half(r), time=r) for r in range(2)]
    assert main(command(tmp_path / "runs", *files)) == 0
    record = only(tmp_path / "runs")
    target = record.path / "eval" / "tiny-qwen3" / "arith-teens" / "run1.jsonl"
    content = target.read_bytes()
    target.unlink()
    (record.path / "done.json").unlink()
    assert main(command(tmp_path / "runs", *files)) == 0
    assert target.read_bytes() == content
    assert only(tmp_path / "runs").done


def test_a_document_logged_once_per_filter_counts_once(tmp_path: Path):
    file = ours(tmp_path / "logs", right_half(0))
    twice = [row | {"filter": f} for row in read_jsonl(file) for f in ("every_sample", "none")]
    found = read_samples(log_file(tmp_path / "twice", "graft_arith-teens", twice), ITEMS)
    assert found.samples == 2
    assert found.responses == read_samples(file, ITEMS).responses


Change = Callable[[list[dict[str, Any]]], Any]
BAD: dict[str, tuple[Change, str]] = {
    "an item is missing": (lambda rows: rows.pop(), "1 of 36 items have no response"),
    "an item is short": (lambda rows: rows[3]["resps"][0].pop(), "1 to 2 samples"),
    "an unknown problem": (lambda rows: rows[3]["doc"].update(id="x", message="What?"), ":4: no item of the benchmark"),
    "one id, another problem": (lambda rows: rows[3]["doc"].update(message="What?"), ":4: no item of the benchmark"),
    "two different calls": (lambda rows: rows.append(rows[0] | {"resps": [["a", "b"]]}), ":37: item .* twice"),
    "two ways of sampling": (
        lambda rows: rows[3]["arguments"]["gen_args_0"].update(arg_1={"do_sample": False}),
        "sampled in 2 ways",
    ),
    "no generation": (lambda rows: rows[3].update(resps=[[[-1.5, True]]]), ":4: resps is no list of texts"),
    "no request": (lambda rows: rows[3].pop("arguments"), ":4: its request says not how"),
    "no samples log": (lambda rows: rows[3].pop("resps"), ":4: no row of lm-eval's samples"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_whole_run_is_refused_and_nothing_is_written(name: str, tmp_path: Path, capsys):
    change, says = BAD[name]
    rows = json.loads(json.dumps(read_jsonl(ours(tmp_path / "logs", right_half(0)))))
    change(rows)
    file = log_file(tmp_path / "bad", "graft_arith-teens", rows)
    assert main(command(tmp_path / "runs", file)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert re.search(says, error)
    assert not (tmp_path / "runs").exists()


def test_two_files_of_one_call_are_not_two_runs(tmp_path: Path):
    files = [ours(tmp_path / "logs", right_half(0), time=t) for t in range(2)]
    with pytest.raises(UserError, match="they are one run"):
        plan_import(arguments(command(tmp_path, *files)))


def test_benchmarks_need_equal_runs_and_samples(tmp_path: Path):
    one = ours(tmp_path, lambda i, s: "a" * s)
    two = [ours(tmp_path, lambda i, s, t=t: f"{s} {t}", benchmark="arith-aside", time=t) for t in range(2)]
    with pytest.raises(UserError, match="different numbers of files"):
        plan_import(arguments(command(tmp_path, one, *two)))
    three = ours(tmp_path / "three", lambda i, s: str(s), benchmark="arith-aside", samples=3)
    with pytest.raises(UserError, match="samples per item: 2, 3"):
        plan_import(arguments(command(tmp_path, one, three)))


def test_seeds_are_stored_where_they_are_known(tmp_path: Path):
    files = [ours(tmp_path / "logs", right_half(r), time=r) for r in range(2)]
    assert main(command(tmp_path / "runs", *files, more=["--seeds", "5", "6"])) == 0
    record = only(tmp_path / "runs")
    assert record.config["recipe"]["evaluation"]["seeds"] == [5, 6]
    rows = read_jsonl(record.path / "eval" / "tiny-qwen3" / "arith-teens" / "run1.jsonl")
    assert {r["seed"] for r in rows} == {6}
    with pytest.raises(UserError, match="2 different ones"):
        plan_import(arguments(command(tmp_path, *files, more=["--seeds", "5", "5"])))


def test_which_benchmark_a_file_is():
    time = "2026-11-29T10-00-00.000000"
    assert benchmark_of(Path(f"samples_graft_amc23_{time}.jsonl"), None) == "amc23"
    assert benchmark_of(Path(f"samples_minerva_math500_{time}.jsonl"), None) == "math500"
    assert benchmark_of(Path(f"samples_aime25_{time}.jsonl"), None) == "aime2025"
    assert benchmark_of(Path("theirs.jsonl"), "minerva") == "minerva"
    with pytest.raises(UserError, match="--benchmark"):
        benchmark_of(Path(f"samples_gsm8k_{time}.jsonl"), None)


def test_packaged_tasks_name_their_items_otherwise(tmp_path: Path):
    prompts = [
        Prompt("math/test/algebra/1", "Find $x$ if  $x=1$.", "1"),
        Prompt("aime2024/II-04", "An old wording.", "33"),
        Prompt("aime2025/I-01", "Find $\\frac{1}{2}$.", "70"),
    ]
    docs = [
        {"unique_id": "test/algebra/1.json", "problem": "Find $x$ if $x=1$.", "answer": "1"},
        {"ID": "2024-II-4", "Problem": "A new wording.", "Answer": 33},
        {"id": "0", "problem": "Find $\\frac{1}{2}$.  ", "answer": "70"},
    ]
    greedy = {"until": ["Problem:"], "do_sample": False, "temperature": 0}
    rows = [log_row(i, doc, [f"response {i}"], greedy) for i, doc in enumerate(docs)]
    found = read_samples(log_file(tmp_path, "minerva_math500", rows), prompts)
    assert found.responses == {p.id: (f"response {i}",) for i, p in enumerate(prompts)}
    assert (found.generation.temperature, found.generation.top_p, found.generation.until) == (0.0, 1.0, ("Problem:",))


def test_unknown_slots_and_missing_data_say_what_instead(tmp_path: Path, capsys):
    file = ours(tmp_path, right_half(0))
    assert main([*command(tmp_path, file), "--stands-for", "gpt-5"]) == 2
    assert "qwen3-1.7b" in capsys.readouterr().err
    math = log_file(tmp_path, "graft_math500", [])
    assert main([*command(tmp_path, math), "--scale", "paper"]) == 2
    assert "--data-root" in capsys.readouterr().err
    assert main(command(tmp_path, math)) == 2
    assert "no benchmark of scale=cpu" in capsys.readouterr().err


def test_text_that_is_no_plain_utf8_survives(tmp_path: Path):
    odd = ["√2 ≥ 1\u2028\x00", "lone \ud800 surrogate"]
    file = ours(tmp_path / "logs", lambda i, s: odd[s])
    assert main(command(tmp_path / "runs", file)) == 0
    rows = read_jsonl(only(tmp_path / "runs").path / "eval" / "tiny-qwen3" / "arith-teens" / "run0.jsonl")
    assert [r["response"] for r in rows[:2]] == odd


@pytest.mark.slow
def test_the_door_passes_arguments_and_exit_code_on(tmp_path: Path):
    file = ours(tmp_path / "logs", right_half(0))
    assert analysis(["import-lm-eval", *command(tmp_path / "runs", file)]) == 0
    assert only(tmp_path / "runs").done
    assert analysis(["import-lm-eval", str(tmp_path / "none.jsonl"), "--model", "x", "--stands-for", "y"]) == 2


def test_a_table_shows_an_imported_checkpoint(tmp_path: Path, capsys):
    benchmarks = ("arith-heldout", "arith-teens", "arith-unseen", "arith-multiply", "arith-aside")
    files = [
        ours(tmp_path / "logs", lambda i, s, r=r: f"{r}: \\boxed{{{s}}}", benchmark=b, time=r)
        for b in benchmarks
        for r in range(2)
    ]
    assert main(command(tmp_path / "runs", *files)) == 0
    capsys.readouterr()
    specs = tmp_path / "specs"
    specs.mkdir()
    row = {"slug": "theirs", "group": "g", "label": "Their checkpoint", "method": "imported", "seed": 0}
    spec = {
        "title": "T",
        "caption": "C",
        "pair": "1",
        "receivers": ["qwen3-1.7b"],
        "reference": "theirs",
        "decimals": 2,
        "columns": {"average": "average"},
        "reported_file": None,
        "parts": {"a": "P"},
        "groups": {"g": "G"},
        "rows": [row | {"deviations": {"method.checkpoint": "theirs"}}],
    }
    (specs / "t.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    where = ["--root", str(tmp_path / "runs"), "--specs", str(specs), "--format", "csv"]
    assert analysis(["t", "--scale", "cpu", *where]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("theirs,qwen3-1.7b,average,")
