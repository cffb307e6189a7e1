"""Evaluation of a model through lm-eval, with its ``hf`` or ``vllm`` back end, into the rows of a run directory.

The tasks are those of ``experiments/lm_eval_tasks``, filled from the recipe. One call of lm-eval is one (benchmark, run): its
file appears whole, so an interrupted evaluation repeats one benchmark of one run. lm-eval's caches are not used: they know
neither repeats nor seeds. Model arguments are passed as a mapping: in a string, lm-eval splits a path at its commas.

lm-eval keeps a response's text only. Where it ended, its length and its seed are taken from the back end while it generates, so
that cut-off responses are counted and not guessed from the text.

The ``vllm`` back end is written against its interface (vLLM 0.18 and later) and has not been run.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from experiments import interruption
from experiments.config import Options
from experiments.errors import UserError
from experiments.evaluation import OnRun, Sample, benchmark_prompts, item_row, rows_file, write_rows
from experiments.files import write_atomic
from experiments.lm_eval_tasks import FOLDER, VERSION, task_file
from experiments.lm_eval_tasks.hooks import dataset, to_doc
from experiments.recipe import identity
from experiments.run_record import RunRecord
from experiments.tiny import resolve_model_path
from graft.policies.sampling import sample_seed
from graft.retokenize import TextCodec
from graft.types import Prompt, StepKey
from graft.verifier import verify

BACKENDS = {"lm-eval-hf": "hf", "lm-eval-vllm": "vllm"}


def installed_version() -> str:
    """lm-eval's version; UserError if it is absent or another than these tasks were made for."""
    try:
        version = metadata.version("lm_eval")
    except metadata.PackageNotFoundError:
        raise UserError(
            "lm-eval is not installed; install it beside this project: pip install -r requirements/eval.txt (docs/evaluation.md)"
        ) from None
    if version != VERSION:
        raise UserError(f"lm-eval {version} is installed; the tasks here are made for {VERSION}: pip install lm-eval=={VERSION}")
    return version


def lm_eval_policy(engine: str, torch_policy: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's ``policy`` for an engine. With ``hf`` the number of rows in a batch changes what a seed gives."""
    if engine not in BACKENDS:
        raise UserError(f"engine={engine} is not known; known: torch, {', '.join(BACKENDS)}")
    policy = {"engine": engine, "lm_eval": installed_version()}
    return policy | ({"decode_rows": torch_policy["decode_rows"]} if engine == "lm-eval-hf" else {})


class Recorder:
    """Takes the place of a back end's cache hook, which is told every finished request, in the order of generation.

    ``pending``: what the back end said of responses whose text is not known yet. Equal (request, text) pairs are interchangeable.
    """

    dbdict = None

    def __init__(self) -> None:
        self.pending: deque[tuple[int, str, int]] = deque()
        self.filed: dict[tuple[str, str], deque[tuple[int, str, int]]] = defaultdict(deque)
        self.seeds: Iterator[int] = iter(())

    def start(self, benchmark: str, seed: int, *, per_request: bool) -> None:
        """Before one (benchmark, run). ``per_request``: the back end takes a seed for every request, else one for all."""
        key = StepKey(seed, f"lm-eval/{benchmark}", 0)
        # 63 bits: vLLM takes a signed number.
        self.seeds = (sample_seed(key, "request", i) >> 1 if per_request else seed for i in count())
        self.pending.clear()
        self.filed.clear()

    def add_partial(self, _: str, request: Sequence[Any], text: str) -> None:
        self.filed[request[0], text].append(self.pending.popleft())

    def take(self, context: str, text: str) -> Sample:
        """The sample that has this text."""
        tokens, finish_reason, seed = self.filed[context, text].popleft()
        return Sample(text, seed, finish_reason, tokens)


class Recording:
    """Mixed into a back end of lm-eval. ``recorder`` and ``codec`` are set after construction."""

    recorder: Recorder
    codec: TextCodec

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Without a bar where nobody looks at it: in a log it is one line a batch."""
        return super().generate_until(requests, disable_tqdm=disable_tqdm or not sys.stderr.isatty())  # type: ignore[misc]


class HfRecording(Recording):
    """Mixed into lm-eval's HFLM."""

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        """Text of one generated row up to its first EOS, as the torch policy decodes it: special tokens inside stay visible.

        lm-eval keeps what a batch's longer rows let a finished row go on with, unless the EOS is one that it knows.
        """
        if not (isinstance(tokens, list) and skip_special_tokens):
            return super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)  # type: ignore[misc]
        ends = [i for i, token in enumerate(tokens) if token in self.codec.eos_ids]
        kept = tokens[: ends[0] + 1] if ends else tokens
        self.recorder.pending.append((len(kept), "eos" if ends else "length", next(self.recorder.seeds)))
        return self.codec.response_text(tuple(kept))


class VllmRecording(Recording):
    """Mixed into lm-eval's VLLM."""

    def _model_generate(self, requests: Any, generate: bool = False, sampling_params: Any = None) -> Any:
        """Every request gets a seed of its own: with one seed for all, the samples of an item would be one and the same."""
        for params in sampling_params:
            params.seed = next(self.recorder.seeds)
        outputs = super()._model_generate(requests, generate=generate, sampling_params=sampling_params)  # type: ignore[misc]
        for output, params in zip(outputs, sampling_params, strict=True):
            best = output.outputs[0]
            reason = "length" if best.finish_reason == "length" else "eos"
            self.recorder.pending.append((len(best.token_ids), reason, params.seed))
        return outputs


def build_lm(recipe: Mapping[str, Any], path: str, device: str, codec: TextCodec) -> Any:
    """lm-eval's model with a recorder. Prompts are encoded as they are rendered (no BOS is added) and never cut."""
    from lm_eval.api.registry import get_model

    t, backend = recipe["training"], BACKENDS[recipe["policy"]["engine"]]
    args: dict[str, Any] = {
        "pretrained": path,
        "dtype": t["precision"],
        "add_bos_token": False,
        "max_length": t["max_prompt_tokens"] + t["max_response_tokens"],
    }
    if backend == "hf":
        args |= {"device": device, "batch_size": recipe["policy"]["decode_rows"]}
    else:
        args |= {"batch_size": "auto", "max_gen_toks": t["max_response_tokens"]}
    mixin = HfRecording if backend == "hf" else VllmRecording
    lm = type(f"Recording{mixin.__name__}", (mixin, get_model(backend)), {})(**args)
    lm.recorder = lm.cache_hook = Recorder()
    lm.codec = codec
    return lm


def task_config(recipe: Mapping[str, Any], benchmark: Mapping[str, Any], docs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The benchmark's YAML with the recipe's samples, sampling and items in it."""
    from lm_eval.tasks._yaml_loader import load_yaml

    if not task_file(benchmark["source"]).is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.yaml")))
        raise UserError(
            f"{benchmark['source']} has no lm-eval task in {FOLDER}; there are {known}. Add one, or use engine=torch."
        )
    evaluation = recipe["evaluation"]
    config = load_yaml(task_file(benchmark["source"]))
    generation = {k: evaluation[k] for k in ("temperature", "top_p")} | {
        "max_gen_toks": recipe["training"]["max_response_tokens"]
    }
    (chosen,) = config["filter_list"]
    return config | {
        "custom_dataset": lambda **_: dataset(docs),
        "dataset_kwargs": {},
        "repeats": evaluation["samples"],
        "filter_list": [chosen | {"filter": [{"function": "take_first_k", "k": evaluation["samples"]}]}],
        "generation_kwargs": config["generation_kwargs"] | generation,
    }


def run_task(lm: Any, config: Mapping[str, Any], seed: int, *, chat: bool) -> dict[str, Any]:
    """One call of lm-eval. The seed goes to every generator that a back end may draw from."""
    import lm_eval
    import numpy as np
    import torch
    from lm_eval.tasks import TaskManager

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - lm-eval's and transformers' own draws use the global generators
    torch.manual_seed(seed)
    loaded = TaskManager(include_defaults=False).load([dict(config)])
    return lm_eval.evaluate(lm, loaded, apply_chat_template=chat, fewshot_as_multiturn=True, bootstrap_iters=0, log_samples=True)


def to_rows(
    results: Mapping[str, Any], benchmark: str, run: int, prompts: Sequence[Prompt], recorder: Recorder
) -> list[dict[str, Any]]:
    """Our rows of lm-eval's logged samples, in the order of the prompts. Verdicts are remembered from the scoring."""
    (logged,) = results["samples"].values()
    by_item = {example["doc"]["id"]: example for example in logged}
    rows = []
    for prompt in prompts:
        example = by_item[prompt.id]
        ((context, _),) = example["arguments"]
        (responses,) = example["resps"]
        for i, text in enumerate(responses):
            rows.append(item_row((benchmark, run, i), prompt, recorder.take(context, text), verify(prompt.golds, text)))
    return rows


def check_lengths(codec: TextCodec, prompts: Sequence[Prompt], limit: int) -> None:
    """UserError on a prompt over the limit: lm-eval would cut its beginning."""
    for prompt in prompts:
        if len(ids := codec.render(prompt)) > limit:
            raise UserError(
                f"prompt {prompt.id} is {len(ids)} tokens, over max_prompt_tokens={limit}; prompts are never cut. "
                "Raise scale.training.max_prompt_tokens"
            )


def model_path(record: RunRecord, options: Options) -> str:
    """Where the recipe's model lies. UserError if lm-eval or the weights are no longer those that the run was frozen with."""
    recipe = record.config["recipe"]
    if (version := installed_version()) != recipe["policy"]["lm_eval"]:
        raise UserError(f"{record.path} was frozen with lm-eval {recipe['policy']['lm_eval']}, installed is {version}")
    (model,) = recipe["models"]
    source = options.model_paths.get(model["name"], model["source"])
    if identity(source) != model["source"]:
        raise UserError(f"{source} no longer holds the weights that {record.path.name} was frozen with ({model['source']})")
    return resolve_model_path(source)


def evaluate_through_lm_eval(record: RunRecord, options: Options, on_run: OnRun) -> None:
    """Write the missing evaluation files of the recipe's model. Caller holds the lock."""
    recipe = record.config["recipe"]
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    path = model_path(record, options)
    codec = TextCodec.load(Path(path), prompt_suffix=recipe["data"]["prompt_suffix"])
    benchmarks = recipe["evaluation"]["benchmarks"]
    prompts = {b["name"]: benchmark_prompts(b, options.data_root) for b in benchmarks}
    for items in prompts.values():
        check_lengths(codec, items, recipe["training"]["max_prompt_tokens"])
    lm = build_lm(recipe, path, options.device, codec)
    (name,) = (m["name"] for m in recipe["models"])
    seeds = recipe["evaluation"]["seeds"]
    for run, seed in enumerate(seeds):
        for benchmark in benchmarks:
            interruption.check(f"evaluation run {run} of {name}")
            file = rows_file(record, name, benchmark["name"], run)
            if not file.exists():
                results, rows = one_run(lm, recipe, benchmark, prompts[benchmark["name"]], (run, seed))
                write_summary(record, benchmark["name"], run, results)
                write_rows(file, rows)
        on_run(name, run + 1, len(seeds))


def one_run(
    lm: Any, recipe: Mapping[str, Any], benchmark: Mapping[str, Any], prompts: Sequence[Prompt], run_seed: tuple[int, int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(lm-eval's results, our rows) of one evaluation run on one benchmark."""
    run, seed = run_seed
    chat = bool(lm.codec.tokenizer.chat_template)
    docs = [to_doc(p, lm.codec.prompt_suffix, plain=not chat) for p in prompts]
    lm.recorder.start(benchmark["name"], seed, per_request=recipe["policy"]["engine"] == "lm-eval-vllm")
    results = run_task(lm, task_config(recipe, benchmark, docs), seed, chat=chat)
    return results, to_rows(results, benchmark["name"], run, prompts, lm.recorder)


def write_summary(record: RunRecord, benchmark: str, run: int, results: Mapping[str, Any]) -> None:
    """What lm-eval itself reports: its numbers, the task's configuration, its versions. The samples are in our rows."""
    kept = {key: value for key, value in results.items() if key != "samples"}
    text = json.dumps(kept, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    write_atomic(record.path / "lm_eval" / f"{benchmark}-run{run}.json", text + "\n")
