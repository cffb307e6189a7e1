"""The lm-eval tasks: what their YAMLs say without lm-eval, and with it that prompts, stops, samples, seeds and rows are ours."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from experiments.compose import CONF
from experiments.config import load_config
from experiments.errors import UserError
from experiments.evaluation import Sample
from experiments.lm_eval_run import HfRecording, Recorder, VllmRecording, check_lengths, lm_eval_policy
from experiments.lm_eval_tasks import FOLDER, PREFIX, hooks
from experiments.run_record import read_jsonl
from experiments.tiny import PACKAGED
from graft.retokenize import TextCodec
from graft.types import Prompt
from tests.experiments.smoke import only_run, run_cold as run

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed here (pip install -r requirements/eval.txt)"
)
BASE = CONF / "data"


def plain_yaml(path: Path) -> dict[str, Any]:
    """A task's keys; functions stay the names that the file gives, and base_yaml is merged as lm-eval does."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    return (plain_yaml(FOLDER / content.pop("include")) if "include" in content else {}) | content


TASKS = {p.stem: plain_yaml(p) for p in sorted(FOLDER.glob("*.yaml"))}


def data_group(name: str) -> Mapping[str, Any]:
    return yaml.safe_load((BASE / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("group", ["math", "arithmetic"])
def test_every_benchmark_has_a_task_with_the_groups_prompt(group: str):
    data = data_group(group)
    for benchmark in data["benchmarks"]:
        task = TASKS[benchmark["source"]]
        assert task["task"] == PREFIX + benchmark["source"]
        assert task["dataset_kwargs"] == {"source": benchmark["source"], "prompt_suffix": data["prompt_suffix"]}


@pytest.mark.parametrize("name", TASKS)
def test_no_stops_all_samples_and_the_papers_sampling(name: str):
    task, scale = TASKS[name], load_config(["scale=paper"]).scale
    generation = task["generation_kwargs"]
    assert generation["until"] == []
    assert generation["do_sample"] is True
    assert (generation["temperature"], generation["top_p"]) == (scale.evaluation.temperature, scale.evaluation.top_p)
    assert (generation["top_k"], generation["repetition_penalty"]) == (0, 1.0)
    assert generation["max_gen_toks"] == scale.training.max_response_tokens
    assert task["repeats"] == scale.evaluation.samples
    assert task["filter_list"] == [{"name": "every_sample", "filter": [{"function": "take_first_k", "k": task["repeats"]}]}]


def test_every_sample_is_scored_by_our_verifier():
    responses = ["\\boxed{\\frac{1}{2}}", "\\boxed{0.5}", "\\boxed{2}", "0.5 without a box"]
    one, two = Prompt("x", "?", "1/2"), Prompt("x", "?", "1/2", alternatives=("2",))
    scores = [hooks.process_results(hooks.to_doc(p, "", plain=False), [responses]) for p in (one, two)]
    assert scores == [{"pass@1": share, "boxed_missing": 0.25, "timeout": 0.0} for share in (0.5, 0.75)]


@needs_lm_eval
def test_alternatives_reach_lm_eval_beside_items_without_any():
    prompts = (Prompt("x", "?", "1/2"), Prompt("y", "?", "1", alternatives=("2", "3")))
    for chosen in (prompts, prompts[::-1], prompts[:1]):  # the columns' types come from the first rows, or from an empty list
        docs = list(hooks.dataset(hooks.to_doc(p, "", plain=False) for p in chosen)["test"])
        assert [(d["gold"], tuple(d["alternatives"])) for d in docs] == [(p.gold, p.alternatives) for p in chosen]
        assert [hooks.process_results(d, [["\\boxed{2}"]])["pass@1"] for d in docs] == [float("2" in p.golds) for p in chosen]


def test_a_filter_that_keeps_the_first_sample_only_is_refused():
    with pytest.raises(UserError, match="take_first_k"):
        hooks.process_results({"gold": "1", "alternatives": []}, ["\\boxed{1}"])


@pytest.mark.parametrize("template", [True, False])
def test_the_prompt_is_what_the_policy_is_given(template: bool):
    codec = TextCodec.load(PACKAGED / "tiny-qwen3", prompt_suffix="\nBox it.")
    if not template:
        codec.tokenizer.chat_template = None
    prompt = Prompt("a", "What is 1 + {{1}}?", "2")
    message = hooks.to_doc(prompt, codec.prompt_suffix, plain=not template)["message"]
    text = (
        codec.tokenizer.apply_chat_template([{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True)
        if template
        else message
    )
    assert codec.encode(text) == codec.render(prompt)


def test_a_prompt_over_the_limit_is_refused_and_not_cut():
    codec = TextCodec.load(PACKAGED / "tiny-qwen3")
    with pytest.raises(UserError, match="prompts are never cut"):
        check_lengths(codec, [Prompt("long", "word " * 100, "1")], 50)


def test_recorder_files_samples_by_request_and_text():
    recorder = Recorder()
    recorder.start("math500", 7, per_request=False)
    for tokens, reason, text in ((3, "eos", "a"), (9, "length", "b"), (4, "eos", "a")):
        recorder.pending.append((tokens, reason, next(recorder.seeds)))
        recorder.add_partial("generate_until", ("prompt", {}), text)
    assert recorder.take("prompt", "b") == Sample("b", 7, "length", 9)
    assert [recorder.take("prompt", "a").tokens for _ in range(2)] == [3, 4]


def test_a_back_end_with_a_seed_per_request_gets_distinct_ones():
    def seeds(benchmark: str, seed: int) -> list[int]:
        recorder = Recorder()
        recorder.start(benchmark, seed, per_request=True)
        return [next(recorder.seeds) for _ in range(100)]

    every = seeds("math500", 1001) + seeds("math500", 1002) + seeds("aime2024", 1001)
    assert len(set(every)) == 300
    assert seeds("math500", 1001) == every[:100]
    assert all(0 <= s < 2**63 for s in every)


class Decoder:
    """What HfRecording asks of lm-eval's HFLM."""

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        return f"plain {tokens} {skip_special_tokens}"


def test_hf_responses_end_at_their_first_eos_and_say_where_they_ended():
    lm = type("Lm", (HfRecording, Decoder), {})()
    lm.recorder, lm.codec = Recorder(), TextCodec.load(PACKAGED / "tiny-qwen3")
    lm.recorder.start("math500", 7, per_request=False)
    (eos,) = lm.codec.eos_ids
    ids = list(lm.codec.encode("The answer is 7."))
    assert lm.tok_decode([*ids, eos, *ids, 0, 0]) == "The answer is 7."
    assert lm.tok_decode(ids) == "The answer is 7."
    assert list(lm.recorder.pending) == [(len(ids) + 1, "eos", 7), (len(ids), "length", 7)]
    # lm-eval asks for the text of the EOS token in this way; no response is recorded
    assert lm.tok_decode(eos, skip_special_tokens=False) == f"plain {eos} False"
    assert len(lm.recorder.pending) == 2


@dataclass
class Params:
    """As vLLM's SamplingParams: one object per request."""

    seed: int | None = None


class Engine:
    """What VllmRecording asks of lm-eval's VLLM: a request ends by length if its number is odd."""

    def _model_generate(self, requests: Any, generate: bool = False, sampling_params: Any = None) -> list[Any]:
        assert generate
        self.seen = [p.seed for p in sampling_params]
        reasons = ("length" if r % 2 else "stop" for r in requests)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * 5, finish_reason=f)]) for f in reasons]


def test_vllm_requests_get_a_seed_each_and_it_is_stored():
    lm = type("Lm", (VllmRecording, Engine), {})()
    lm.recorder = Recorder()
    lm.recorder.start("math500", 7, per_request=True)
    params = [Params() for _ in range(8)]
    lm._model_generate(list(range(8)), generate=True, sampling_params=params)
    assert len(set(lm.seen)) == 8
    assert [p[1] for p in lm.recorder.pending] == ["eos", "length"] * 4
    assert [(tokens, seed) for tokens, _, seed in lm.recorder.pending] == [(5, seed) for seed in lm.seen]


@needs_lm_eval
def test_lm_evals_vllm_back_end_still_has_what_is_built_on():
    """vLLM is not installed, so its back end cannot be imported; its source can be read."""
    import lm_eval

    tree = ast.parse((Path(lm_eval.__file__).parent / "models" / "vllm_causallms.py").read_text(encoding="utf-8"))
    (cls,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "VLLM")
    methods = {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}
    assert [a.arg for a in methods["_model_generate"].args.args] == ["self", "requests", "generate", "sampling_params"]
    accepted = {a.arg for a in methods["__init__"].args.args}
    assert {"pretrained", "dtype", "add_bos_token", "max_length", "batch_size", "max_gen_toks"} <= accepted
    source = ast.unparse(methods["generate_until"])
    assert "SamplingParams(max_tokens=max_gen_toks, stop=until, **kwargs)" in source
    assert "self.cache_hook.add_partial('generate_until', (_context, _gen_kwargs), generated_text)" in source


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_without_lm_eval_the_message_says_how_to_get_it():
    with pytest.raises(UserError, match=r"requirements/eval\.txt"):
        lm_eval_policy("lm-eval-hf", {"decode_rows": 8})


@needs_lm_eval
def test_lm_eval_finds_the_tasks_and_adds_no_stop_string():
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=FOLDER, include_defaults=False)
    assert set(manager.all_tasks) == {PREFIX + name for name in TASKS}
    loaded = manager.load(["graft_arith-teens"])["tasks"]["graft_arith-teens"]
    assert loaded.config.generation_kwargs["until"] == []
    kwargs = normalize_gen_kwargs(loaded.config.generation_kwargs)
    assert handle_stop_sequences(kwargs["until"], eos="<eos>") == ["<eos>"]
    assert (kwargs["do_sample"], kwargs["temperature"], kwargs["top_p"], kwargs["top_k"]) == (True, 0.6, 0.95, 0)
    assert len(loaded.eval_docs) == 36


def through(root: Path, *args: str, model: str = "tiny-qwen3") -> Path:
    done = run("experiments.evaluate", f"model={model}", "scale=smoke", "engine=lm-eval-hf", *args, f"runs_root={root}")
    assert done.returncode == 0, done.stderr
    return only_run(root)


@pytest.fixture(scope="module")
def rows_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("benchmarks=[arith-teens,arith-aside]", "runs=2", "samples=8", "limit=4")
    # At 0.6 a model that is sure repeats itself; here equal samples could only come from a cache or from one seed for all.
    hot = ("scale.evaluation.temperature=2", "scale.evaluation.top_p=1")
    return through(tmp_path_factory.mktemp("through"), *words, *hot)


@needs_lm_eval
@pytest.mark.slow
def test_rows_are_whole_distinct_and_as_lm_eval_scored_them(rows_dir: Path):
    assert (rows_dir / "done.json").exists()
    for benchmark in ("arith-teens", "arith-aside"):
        texts = []
        for run_, seed in ((0, 1001), (1, 1002)):
            rows = read_jsonl(rows_dir / "eval" / "tiny-qwen3" / benchmark / f"run{run_}.jsonl")
            assert [(r["sample"], r["seed"]) for r in rows] == [(i, seed) for _ in range(4) for i in range(8)]
            assert len({r["item"] for r in rows}) == 4
            for r in rows:
                # 44 is max_response_tokens of the scale
                assert r["finish_reason"] == "eos" or (r["finish_reason"], r["tokens"]) == ("length", 44)
                assert 1 <= r["tokens"] <= 44
                assert "<eos>" not in r["response"]
            summary = json.loads((rows_dir / "lm_eval" / "tiny-qwen3" / f"{benchmark}-run{run_}.json").read_text())
            (metrics,) = summary["results"].values()
            assert metrics["pass@1,every_sample"] == pytest.approx(sum(r["correct"] for r in rows) / 32)
            texts.append([r["response"] for r in rows])
            assert [len(set(texts[-1][i : i + 8])) for i in range(0, 32, 8)] == [8] * 4
        assert texts[0] != texts[1]


@needs_lm_eval
@pytest.mark.slow
def test_a_lost_file_is_made_again_alone_and_equal(rows_dir: Path):
    files = {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in rows_dir.glob("eval/*/*/*.jsonl")}
    lost = rows_dir / "eval" / "tiny-qwen3" / "arith-aside" / "run1.jsonl"
    lost.unlink()
    again = run("experiments.evaluate", f"run={rows_dir}")
    assert again.returncode == 0, again.stderr
    assert {f: f.read_bytes() for f in files} == {f: content for f, (content, _) in files.items()}
    assert [f for f, (_, time) in files.items() if f.stat().st_mtime_ns != time] == [lost]


@needs_lm_eval
@pytest.mark.slow
def test_lm_evals_prompt_tokens_are_the_policys(tmp_path: Path):
    """Llama: a tokenizer that would add a BOS; a path with a comma and an equal sign, which lm-eval's argument string would split."""
    import shutil

    from experiments.lm_eval_run import build_lm

    path = tmp_path / "a,b=c" / "tiny-llama"
    shutil.copytree(PACKAGED / "tiny-llama", path)
    codec = TextCodec.load(path)
    recipe = {
        "training": {"precision": "float32", "max_prompt_tokens": 64, "max_response_tokens": 44},
        "policy": {"engine": "lm-eval-hf", "decode_rows": 8},
    }
    lm = build_lm(recipe, str(path), "cpu", codec)
    prompt = Prompt("a", "Ben has 3 cards, buys 4 more, then loses 2. How many?", "5")
    text = lm.apply_chat_template([{"role": "user", "content": prompt.message}])
    ids, mask = lm.tok_batch_encode([text])
    assert tuple(ids[0].tolist()) == codec.render(prompt)
    assert mask.all()
    assert lm.max_length == 108


@needs_lm_eval
@pytest.mark.slow
def test_both_engines_agree_within_sampling_error(tmp_path: Path):
    words = ("benchmarks=[arith-heldout]", "runs=3", "samples=8", "limit=48")
    ours = run("experiments.evaluate", "model=tiny-qwen3", "scale=smoke", *words, f"runs_root={tmp_path / 'ours'}")
    assert ours.returncode == 0, ours.stderr
    shares = []
    for directory in (only_run(tmp_path / "ours"), through(tmp_path / "theirs", *words)):
        files = directory.glob("eval/tiny-qwen3/arith-heldout/run*.jsonl")
        rows = [row for f in files for row in read_jsonl(f)]
        assert len(rows) == 3 * 48 * 8
        shares.append(sum(r["correct"] for r in rows) / len(rows))
    # 1152 rows each: the std of the difference of two shares near 0.5 is at most sqrt(2 x 0.25 / 1152) = 0.021
    assert abs(shares[0] - shares[1]) < 4 * 0.021
