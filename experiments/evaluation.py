"""Sampling benchmarks: quick validation during training, and the evaluation runs of one selected checkpoint.

The evaluation's rows, files and completion record are the same whichever engine samples: the torch policy here, or lm-eval
(``experiments.lm_eval_run``), as the recipe says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import interruption
from experiments.config import Options
from experiments.engine import build_policies, devices, set_threads, shared_verifier
from experiments.errors import UserError
from experiments.files import canonical_json, read_json, write_atomic, write_json
from experiments.run_record import RunRecord, read_jsonl
from experiments.tasks import load_pinned
from graft.cotrain import verified
from graft.policies.base import Policy
from graft.policies.sampling import sample_seed
from graft.types import Group, Prompt, SamplingSettings, StepKey, Verdict
from graft.verifier import Verifier

OnRun = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sample:
    """One response as a row stores it. ``seed`` is None, ``tokens`` -1 and ``finish_reason`` "unknown" where a source does not say."""

    response: str
    seed: int | None = None
    finish_reason: str = "unknown"
    tokens: int = -1


def benchmark_prompts(described: Mapping[str, Any], root: str | None) -> tuple[Prompt, ...]:
    """The prompts of a recipe's benchmark: the pinned set, or evenly spaced ones of it if the recipe's ``items`` are fewer.

    Evenly spaced, because sets are sorted by kind of problem.
    """
    prompts, items = load_pinned(described, root).prompts, described["items"]
    return tuple(prompts[i * len(prompts) // items] for i in range(items))


@dataclass(frozen=True)
class Sampler:
    """Benchmarks, sampling settings and the verifier of one run."""

    benchmarks: Mapping[str, tuple[Prompt, ...]]
    sampling: SamplingSettings
    samples: int
    verifier: Verifier
    seed: int
    # The policy's own limit of rows, so that asking batch by batch is the same computation; None asks for everything at once.
    rows: int | None = None

    def groups(self, policy: Policy, prompts: Sequence[Prompt], key: StepKey) -> tuple[Group, ...]:
        """Verified groups of ``samples`` responses. Interrupted between batches: nothing is written before all are there."""
        size = max(1, self.rows // self.samples) if self.rows else max(1, len(prompts))
        sampled: list[Group] = []
        for start in range(0, len(prompts), size):
            interruption.check(f"a batch of {key.stream}")
            batch = prompts[start : start + size]
            sampled += policy.generate(batch, n=self.samples, key=key, sampling=self.sampling)
        return verified(sampled, self.verifier.verify_many)

    def validate_on(self, policy: Policy, name: str, prompts: Sequence[Prompt], step: int) -> float:
        """pass@1 on one prompt set: mean over samples, then items."""
        groups = self.groups(policy, prompts, StepKey(self.seed, f"validation/{name}", step))
        return sum(g.successes / len(g.responses) for g in groups) / len(groups)

    def all_benchmarks(self, policy: Policy, key: StepKey) -> dict[str, list[Group]]:
        """Groups by benchmark. All items go through the sampler in one batch, which is what makes it quick."""
        flat = [(name, p) for name, prompts in self.benchmarks.items() for p in prompts]
        by_name: dict[str, list[Group]] = {name: [] for name in self.benchmarks}
        for (name, _), g in zip(flat, self.groups(policy, [p for _, p in flat], key), strict=True):
            by_name[name].append(g)
        return by_name

    def validate(self, policy: Policy, step: int) -> dict[str, float]:
        """pass@1 of every benchmark."""
        sampled = self.all_benchmarks(policy, StepKey(self.seed, "validation", step))
        return {name: sum(g.successes / len(g.responses) for g in groups) / len(groups) for name, groups in sampled.items()}


def average(scores: Mapping[str, float]) -> float:
    """Unweighted mean of the benchmarks (the paper's aggregate)."""
    return sum(scores.values()) / len(scores)


def sampler_of(record: RunRecord, options: Options, verifier: Verifier, *, samples: int | None = None) -> Sampler:
    """The run's sampler; ``samples`` overrides the evaluation's number for validation."""
    recipe = record.config["recipe"]
    e = recipe["evaluation"]
    benchmarks = {b["name"]: benchmark_prompts(b, options.data_root) for b in e["benchmarks"]}
    sampling = SamplingSettings(e["temperature"], e["top_p"], recipe["training"]["max_response_tokens"])
    rows = recipe["policy"]["decode_rows"] if recipe["policy"]["engine"] == "torch" else None
    return Sampler(benchmarks, sampling, samples or e["samples"], verifier, recipe["seed"], rows)


def rows_file(record: RunRecord, model: str, benchmark: str, run: int) -> Path:
    return record.path / "eval" / model / benchmark / f"run{run}.jsonl"


def evaluate(record: RunRecord, attempt: Path, options: Options, on_run: OnRun) -> None:
    """Write the missing evaluation files of the selected checkpoints. Caller holds the lock; ``attempt`` is its directory.

    A file appears whole or not at all and is never written again, so an interrupted evaluation repeats at most the
    sampling of one run of one model.
    """
    recipe = record.config["recipe"]
    base = not record.trains
    if not base and not (record.path / "selected.json").exists():
        raise UserError(
            f"{record.path} has not finished training, so no checkpoint is selected. Run experiments.train for it first."
        )
    started = time.perf_counter()
    set_threads(options.threads)
    write_json(attempt / "devices.json", devices(options))
    try:
        if recipe["policy"]["engine"] == "torch":
            _evaluate_torch(record, options, on_run, {} if base else read_json(record.path / "selected.json"))
        else:
            from experiments.lm_eval_run import evaluate_through_lm_eval

            evaluate_through_lm_eval(record, options, on_run)
    finally:  # what an interrupted evaluation took is part of the bill
        write_json(attempt / "evaluation.json", {"seconds": time.perf_counter() - started})


def _evaluate_torch(record: RunRecord, options: Options, on_run: OnRun, selected: Mapping[str, Any]) -> None:
    """``selected``: the checkpoint of each trained model; {} for base models."""
    recipe = record.config["recipe"]
    policies = build_policies(record, options.model_paths, options.device)
    todo = [(name, run, seed) for name in policies for run, seed in enumerate(recipe["evaluation"]["seeds"])]
    sampler = sampler_of(record, options, shared_verifier())
    for name, policy in policies.items():
        if name in selected:
            policy.load(record.path / "best" / name / f"step-{selected[name]['step']:06d}")
    for number, (name, run, seed) in enumerate(todo, 1):
        interruption.check(f"evaluation run {run} of {name}")
        evaluate_once(record, sampler, policies[name], run, seed)
        on_run(name, number, len(todo))
    for policy in policies.values():
        policy.close()


def evaluate_once(record: RunRecord, sampler: Sampler, policy: Policy, run: int, seed: int) -> None:
    """One evaluation run of one model: a file per benchmark; what is there already is not written again.

    If any file is missing, all benchmarks are sampled in the batches of an uninterrupted run: rows must not depend, in a last bit
    that may turn a token, on which files were still missing. Together they also go through the sampler faster than one by one.
    """
    files = {benchmark: rows_file(record, policy.name, benchmark, run) for benchmark in sampler.benchmarks}
    missing = [benchmark for benchmark, file in files.items() if not file.exists()]
    if not missing:
        return
    key = StepKey(seed, "evaluation", 0)
    sampled = sampler.all_benchmarks(policy, key)
    for benchmark in missing:
        write_rows(files[benchmark], evaluation_rows(benchmark, run, sampled[benchmark], key))


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows of one evaluation run on one benchmark, whole or not at all."""
    write_atomic(file, "".join(canonical_json(row) + "\n" for row in rows))


def evaluation_rows(benchmark: str, run: int, groups: Sequence[Group], key: StepKey) -> list[dict[str, Any]]:
    """One row per item and sample."""
    return [
        item_row(
            (benchmark, run, i),
            g.prompt,
            Sample(r.text, sample_seed(key, g.prompt.id, i), r.finish_reason, len(r.ids)),
            r.verdict or Verdict(bool(r.reward), None, "not verified"),
        )
        for g in groups
        for i, r in enumerate(g.responses)
    ]


def item_row(place: tuple[str, int, int], prompt: Prompt, sample: Sample, verdict: Verdict) -> dict[str, Any]:
    """One evaluation row; ``place`` is (benchmark, run, sample index)."""
    benchmark, run, index = place
    return {
        "benchmark": benchmark,
        "run": run,
        "item": prompt.id,
        "sample": index,
        "seed": sample.seed,
        "response": sample.response,
        "extracted": verdict.extracted,
        "gold": prompt.gold,
        **({"alternatives": list(prompt.alternatives)} if prompt.alternatives else {}),
        "correct": verdict.correct,
        "how": verdict.how,
        "finish_reason": sample.finish_reason,
        "tokens": sample.tokens,
    }


def count_complete(record: RunRecord) -> dict[str, Any]:
    """Count every step, benchmark, run, item and sample; ValueError names the first thing that is missing or double."""
    counts: dict[str, Any] = {"fingerprint": record.config["fingerprint"], "steps": 0, "evaluation_rows": 0}
    if record.trains:
        steps = [row["step"] for row in read_jsonl(record.path / "metrics.jsonl")]
        expected = record.status()["steps"]
        if steps != list(range(1, expected + 1)):
            raise ValueError(f"{record.path}: metrics.jsonl does not hold the steps 1..{expected} exactly once each")
        counts["steps"] = expected
        counts["selected"] = read_json(record.path / "selected.json")
    for file, expected in expected_files(record):
        present = whole_rows(file)
        if present != expected:
            raise ValueError(f"{file}: {present} of {expected} rows present")
        counts["evaluation_rows"] += expected
    return counts


def expected_files(record: RunRecord) -> list[tuple[Path, int]]:
    """Every evaluation file that the recipe asks for, and its number of rows."""
    recipe = record.config["recipe"]
    e = recipe["evaluation"]
    return [
        (rows_file(record, model["name"], b["name"], run), b["items"] * e["samples"])
        for model in recipe["models"]
        for b in e["benchmarks"]
        for run in range(len(e["seeds"]))
    ]


def whole_rows(file: Path) -> int:
    """Distinct (item, sample) of a file; -1 when rows are doubled or cannot be read."""
    try:
        keys = [(row["item"], row["sample"]) for row in read_jsonl(file)]
    except (ValueError, KeyError, TypeError):
        return -1
    return len(keys) if len(set(keys)) == len(keys) else -1


def set_aside_damaged(record: RunRecord) -> list[Path]:
    """Rename evaluation files that are not whole to <name>.damaged and withdraw the completion record, so they are made again."""
    damaged = [f for f, expected in expected_files(record) if f.exists() and whole_rows(f) != expected]
    for file in damaged:
        file.rename(file.with_name(file.name + ".damaged"))
    if damaged or any(not f.exists() for f, _ in expected_files(record)):
        (record.path / "done.json").unlink(missing_ok=True)
    return damaged
