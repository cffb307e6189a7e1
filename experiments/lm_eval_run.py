"""Evaluation of a model through lm-eval, with its ``hf`` or ``vllm`` back end, into the rows of a run directory.

The tasks are those of ``experiments/lm_eval_tasks``, filled from the recipe. One call of lm-eval is one (benchmark, run): its
file appears whole, so an interrupted evaluation repeats one benchmark of one run. lm-eval's caches are not used: they know
neither repeats nor seeds. Model arguments are passed as a mapping: in a string, lm-eval splits a path at its commas.

lm-eval keeps a response's text only. Where it ended, its length and its seed are taken from the back end while it generates, so
that cut-off responses are counted and not guessed from the text.

The ``vllm`` back end was run on a CPU only (vLLM 0.30).
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments import interruption
from experiments.config import Options
from experiments.engine import model_path
from experiments.errors import EXIT_ENVIRONMENT, EXIT_OWN_ERROR, EXIT_USER_ERROR, UserError, environment_failure
from experiments.evaluation import OnRun, benchmark_prompts, item_row, rows_file, write_rows
from experiments.files import read_json, write_atomic
from experiments.job import options_from_json, options_to_json
from experiments.lm_eval_recording import HfRecording, Recorder, VllmRecording
from experiments.lm_eval_tasks import FOLDER, VERSION, task_file
from experiments.lm_eval_tasks.hooks import dataset, to_doc
from experiments.run_record import RunRecord
from graft.policies.base import EngineFailure
from graft.retokenize import TextCodec
from graft.types import Prompt
from graft.verifier import verify

BACKENDS = {"lm-eval-hf": "hf", "lm-eval-vllm": "vllm", "verl": "vllm"}


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
    policy = {"engine": engine, "lm_eval": installed_version()}
    return policy | ({"decode_rows": torch_policy["decode_rows"]} if engine == "lm-eval-hf" else {})


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
        # One model on as many GPUs as its sampler had in training.
        args |= {"batch_size": "auto", "max_gen_toks": t["max_response_tokens"]}
        args |= {"tensor_parallel_size": recipe["policy"].get("tensor_parallel", 1)}
        # Compiling pays on a GPU; on a CPU it takes minutes and wins none back.
        args |= {"enforce_eager": True} if device == "cpu" else {}
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
    results: Mapping[str, Any], place: tuple[str, int], prompts: Sequence[Prompt], recorder: Recorder, codec: TextCodec
) -> list[dict[str, Any]]:
    """Our rows of lm-eval's logged samples at ``place`` (benchmark, run), in the order of the prompts.

    Verdicts are remembered from the scoring. UserError where lm-eval asked anything but what training asks.
    """
    benchmark, run = place
    (logged,) = results["samples"].values()
    by_item = {example["doc"]["id"]: example for example in logged}
    rows = []
    for prompt in prompts:
        example = by_item[prompt.id]
        ((context, _),) = example["arguments"]
        if codec.encode(context) != codec.render(prompt):
            raise UserError(
                f"prompt {prompt.id}: lm-eval renders the chat template differently from training ({context[:200]!r}); evaluate with "
                "engine=torch, or give the model a template that does not depend on its caller"
            )
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


def checkpoint_path(record: RunRecord, options: Options, name: str) -> str:
    """Where the model to evaluate lies: the selected checkpoint of a trained model, or the recipe's own weights.

    UserError if lm-eval or the weights are no longer those that the run was frozen with.
    """
    if (version := installed_version()) != (frozen := record.config["recipe"]["policy"]["lm_eval"]):
        raise UserError(f"{record.path} was frozen with lm-eval {frozen}, installed is {version}")
    if record.trains:
        step = read_json(record.path / "selected.json")[name]["step"]
        return str(record.path / "best" / name / f"step-{step:06d}")
    return str(model_path(record, name, options.model_paths))


def evaluate_through_lm_eval(record: RunRecord, options: Options, on_run: OnRun) -> None:
    """Write the missing evaluation files of the recipe's models. Caller holds the lock.

    With vLLM each model has a process of its own: it gives the GPU's memory back when its process ends, and not before.
    """
    names = [m["name"] for m in record.config["recipe"]["models"]]
    runs = len(record.config["recipe"]["evaluation"]["seeds"])
    for name in names:
        if BACKENDS[record.config["recipe"]["policy"]["engine"]] == "vllm":
            in_a_process(record, options, name)
            on_run(name, runs, runs)
        else:
            evaluate_model(record, options, name, lambda k, name=name: on_run(name, k, runs))


def in_a_process(record: RunRecord, options: Options, name: str) -> None:
    """``evaluate_model`` in a process that ends with it, and with all that vLLM started. It prints where this process prints."""
    command = [sys.executable, "-m", "experiments.lm_eval_run", str(record.path.absolute()), name]
    # PYTHONPATH names where this code is: a job's is a snapshot.
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}, start_new_session=True
    )
    try:
        assert child.stdin is not None
        child.stdin.write(json.dumps(options_to_json(options)))
        child.stdin.close()
        while child.poll() is None:  # files appear whole, so a signal need not wait for the next one
            interruption.check(f"the evaluation of {name}")
            time.sleep(0.2)
    finally:
        # Its engine is a process of its own, which vLLM leaves on the GPU when its parent goes without a word.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode == EXIT_USER_ERROR:
        raise UserError(f"the evaluation of {name} was refused; the reason is in the lines above")
    if child.returncode < 0 or child.returncode == EXIT_ENVIRONMENT:
        raise EngineFailure(f"the evaluation of {name} ended with exit code {child.returncode}; its last lines stand above")
    if child.returncode:
        raise RuntimeError(f"the evaluation of {name} failed; its last lines stand above")


def evaluate_model(record: RunRecord, options: Options, name: str, on_seed: Callable[[int], None] = lambda _: None) -> None:
    """Write the missing evaluation files of one model."""
    recipe = record.config["recipe"]
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    path = checkpoint_path(record, options, name)
    codec = TextCodec.load(Path(path), prompt_suffix=recipe["data"]["prompt_suffix"])
    benchmarks = recipe["evaluation"]["benchmarks"]
    prompts = {b["name"]: benchmark_prompts(b, options.data_root) for b in benchmarks}
    for items in prompts.values():
        check_lengths(codec, items, recipe["training"]["max_prompt_tokens"])
    todo = [
        (run, seed, benchmark)
        for run, seed in enumerate(recipe["evaluation"]["seeds"])
        for benchmark in benchmarks
        if not rows_file(record, name, benchmark["name"], run).exists()
    ]
    lm = build_lm(recipe, path, options.device, codec) if todo else None
    for run, seed, benchmark in todo:
        interruption.check(f"evaluation run {run} of {name}")
        results, rows = one_run(lm, recipe, benchmark, prompts[benchmark["name"]], (run, seed))
        write_summary(record, (name, benchmark["name"], run), results)
        write_rows(rows_file(record, name, benchmark["name"], run), rows)
        if benchmark is benchmarks[-1]:
            on_seed(run + 1)


def one_run(
    lm: Any, recipe: Mapping[str, Any], benchmark: Mapping[str, Any], prompts: Sequence[Prompt], run_seed: tuple[int, int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(lm-eval's results, our rows) of one evaluation run on one benchmark."""
    run, seed = run_seed
    chat = bool(lm.codec.tokenizer.chat_template)
    docs = [to_doc(p, lm.codec.prompt_suffix, plain=not chat) for p in prompts]
    lm.recorder.start(benchmark["name"], seed, per_request=BACKENDS[recipe["policy"]["engine"]] == "vllm")
    results = run_task(lm, task_config(recipe, benchmark, docs), seed, chat=chat)
    return results, to_rows(results, (benchmark["name"], run), prompts, lm.recorder, lm.codec)


def write_summary(record: RunRecord, place: tuple[str, str, int], results: Mapping[str, Any]) -> None:
    """What lm-eval itself reports (numbers, configuration, versions) at ``place``: model, benchmark, run. Samples are in our rows."""
    kept = {key: value for key, value in results.items() if key != "samples"}
    text = json.dumps(kept, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    model, benchmark, run = place
    write_atomic(record.path / "lm_eval" / model / f"{benchmark}-run{run}.json", text + "\n")


def main(run: str, name: str) -> int:
    """One model of a run whose lock the parent holds; its options come as JSON on stdin."""
    from graft.policies.verl_policy.session import MACHINE

    try:
        evaluate_model(RunRecord.open(Path(run)), options_from_json(json.load(sys.stdin)), name)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    except Exception as e:
        traceback.print_exc()
        machine = environment_failure(e, run) or any(sign in str(e) for sign in MACHINE)
        return EXIT_ENVIRONMENT if machine else EXIT_OWN_ERROR
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Leaving in the usual way would wait for vLLM's engine, which waits for this process; the parent ends both.
    os._exit(code)
