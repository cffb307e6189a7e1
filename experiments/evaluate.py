"""``python -m experiments.evaluate run=<dir>`` completes a run's evaluation; ``model=<hf dir or name>`` evaluates that model.

    python -m experiments.evaluate model=<hf path> benchmarks=[math500,aime2024] runs=5 samples=8 data=math data.root=<dir>
    python -m experiments.evaluate model=<hf path> engine=lm-eval-hf

A finished evaluation is counted again and reused; files that are not whole are set aside and made again. ``model=`` takes a
Hugging Face directory or hub name, a model's name or a slot of the pair, and any further override (scale=, data=, ...); its record
is a run of method ``base``. benchmarks= chooses among those of the data group, runs= and samples= say how much to sample,
engine= who samples (torch, lm-eval-hf, lm-eval-vllm), limit= takes that many items of each benchmark, for a trial.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments import interruption
from experiments.cli import existing_dir, run_hydra
from experiments.compose import override
from experiments.config import Config, Options, RunPlan, load_config, resolve
from experiments.errors import UserError
from experiments.files import read_json
from experiments.job import finish, options_from_json
from experiments.progress import Display
from experiments.run_record import RunRecord
from experiments.train import freeze
from graft.policies.base import PolicyLimitError

# No keys of the configuration, so they reach Hydra as additions.
WORDS = ("run", "benchmarks", "runs", "samples", "engine", "limit")
ENGINES = ("torch", "lm-eval-hf", "lm-eval-vllm")


def evaluate_run(path: Path) -> None:
    from experiments.evaluation import set_aside_damaged

    record = RunRecord.open(existing_dir(str(path), "run"))
    method = record.config["recipe"]["method"]["name"]
    if method == "imported":
        raise UserError(f"{path} holds imported samples; nothing can be sampled for it. Import again from the lm-eval files.")
    options = options_from_json(read_json(path / "options.json") | {"evaluate": True})
    if record.trains and not (path / "selected.json").exists():
        raise UserError(
            f"{path} has not finished training. Run experiments.train with its recipe first; it continues where it stopped."
        )
    with Display() as display:
        with record.lock():
            for file in set_aside_damaged(record):
                display.say(f"{file} is not whole; kept as {file.name}.damaged and evaluated again")
        complete(record, options, display)


def task(overrides: Sequence[str]) -> None:
    words, rest = split_words(overrides)
    if "run" in words:
        evaluate_frozen(words, rest)
        return
    model = next((o.partition("=")[2] for o in rest if o.startswith("model=")), None)
    if model is None:
        raise UserError("say what to evaluate: run=<run directory> or model=<Hugging Face directory or model name>")
    rest = ["method=base", *(o for o in rest if not o.startswith(("model=", "method=")))]
    if is_source(model):
        model, chosen = into_slot(model, load_config(rest))
        rest += chosen
    rest += words_to_overrides(words, load_config(rest))
    plans, options = resolve([*rest, f"model={model}"])
    plans = tuple(with_engine(plan, words) for plan in plans)
    if options.dry_run:
        for plan in plans:
            print(options.experiment_root / plan.name)
        return
    with Display() as display:
        for plan in plans:
            complete(freeze(plan, options), options, display)


def complete(record: RunRecord, options: Options, display: Display) -> None:
    """Finish the run; a prompt over the limit is the user's to correct."""
    try:
        finish(record, options, display)
    except PolicyLimitError as e:
        raise UserError(f"{e} (scale.training.max_prompt_tokens=)") from e


def split_words(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """({word: value}, the configuration's own overrides)."""
    pairs = [o.removeprefix("+").partition("=") for o in overrides]
    words = {key: value for key, _, value in pairs if key in WORDS}
    return words, [o for o, (key, _, _) in zip(overrides, pairs) if key not in WORDS]


def evaluate_frozen(words: Mapping[str, str], rest: Sequence[str]) -> None:
    """run=<dir>: what to evaluate and how is in the directory."""
    others = [*(f"{key}={value}" for key, value in words.items() if key != "run"), *rest]
    if others:
        raise UserError(
            f"{', '.join(others)}: the recipe of run={words['run']} is frozen, so nothing can be chosen for it (data.root, devices "
            "and threads are in its options.json). Leave it out, or evaluate model=<exported Hugging Face directory> instead."
        )
    evaluate_run(Path(words["run"]))


def is_source(model: str) -> bool:
    """Whether ``model`` is a directory or a hub name, and no name or slot of the pair."""
    return Path(model).expanduser().is_dir() or "/" in model


def into_slot(source: str, config: Config) -> tuple[str, list[str]]:
    """(slot, overrides that put the model into it).

    A model named like one of the pair's takes that model's place; two models of one name would be refused. The name is part of
    paths and may come from any directory, so it keeps letters, digits, dots, hyphens and underscores only.
    """
    name = re.sub(r"[^\w.-]+", "-", Path(source).expanduser().resolve().name)
    slot = next((s for s in config.pair.models if config.scale.slots[s].name == name), config.pair.models[0])
    key = next(k for k, m in config.scale.models.items() if m.stands_for == slot)
    return slot, [override(f"scale.models.{key}.source", source), override(f"scale.models.{key}.name", name)]


def words_to_overrides(words: Mapping[str, str], config: Config) -> list[str]:
    """benchmarks=, runs=, samples= and limit= as overrides of the configuration."""
    found = []
    if "benchmarks" in words:
        found.append(choose_benchmarks([n.strip(" '\"") for n in words["benchmarks"].strip("[] ").split(",")], config))
    if "runs" in words:
        seeds = list(config.scale.evaluation.seeds)
        number = positive("runs", words["runs"])
        # More runs than the scale has seeds: the next numbers, so that the first runs stay what they are.
        seeds += range(max(seeds) + 1, max(seeds) + 1 + max(0, number - len(seeds)))
        found.append(override("scale.evaluation.seeds", seeds[:number]))
    if "samples" in words:
        found.append(override("scale.evaluation.samples", positive("samples", words["samples"])))
    if "limit" in words:
        # ++: most scales leave the key out.
        found.append("++" + override("scale.evaluation.max_items", positive("limit", words["limit"])))
    return found


def choose_benchmarks(names: Sequence[str], config: Config) -> str:
    """The override that leaves only these of the data group's benchmarks. UserError for others, or one named twice."""
    known = {b.name: b for b in config.data.benchmarks}
    if wrong := sorted({n for n in names if n not in known or names.count(n) > 1}):
        raise UserError(
            f"benchmarks: {', '.join(map(repr, wrong))} not in this data group, or given twice; it has {', '.join(known)} "
            "(data=math data.root=<directory> has the paper's)"
        )
    return override("data.benchmarks", [known[n].model_dump() for n in names])


def positive(word: str, value: str) -> int:
    """A whole number of at least 1, or a UserError."""
    if not (value.isascii() and value.isdigit() and int(value)):
        raise UserError(f"{word}={value}: give a whole number of at least 1")
    return int(value)


def with_engine(plan: RunPlan, words: Mapping[str, str]) -> RunPlan:
    """The plan under engine=; through lm-eval it is a run of its own, which deviates from the plain base run in the engine."""
    engine = words.get("engine", "torch")
    if engine not in ENGINES:
        raise UserError(f"engine={engine} is not known; known: {', '.join(ENGINES)}")
    if engine == "torch":
        return plan
    from experiments.lm_eval_run import lm_eval_policy

    policy = lm_eval_policy(engine, plan.recipe["policy"])
    return replace(
        plan,
        recipe={**plan.recipe, "policy": policy},
        deviations={**plan.deviations, "policy.engine": engine},
    )


def main() -> int:
    interruption.install()
    sys.argv = [f"+{a}" if a.partition("=")[0] in WORDS else a for a in sys.argv]
    return run_hydra(task)


if __name__ == "__main__":
    sys.exit(main())
