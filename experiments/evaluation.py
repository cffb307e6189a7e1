"""Sampling benchmarks: quick validation during training, and the evaluation runs of one selected checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config import Options
from experiments.engine import build_policies, set_threads
from experiments.errors import UserError
from experiments.files import canonical_json, read_json, write_atomic, write_json
from experiments.run_record import RunRecord, read_jsonl
from experiments.tasks import load_pinned
from graft.cotrain import verified
from graft.policies.base import Policy
from graft.policies.sampling import sample_seed
from graft.types import Group, Prompt, SamplingSettings, StepKey
from graft.verifier import Verifier

OnRun = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sampler:
    """Benchmarks, sampling settings and the verifier of one run."""

    benchmarks: Mapping[str, tuple[Prompt, ...]]
    sampling: SamplingSettings
    samples: int
    verifier: Verifier
    seed: int

    def groups(self, policy: Policy, prompts: Sequence[Prompt], key: StepKey) -> tuple[Group, ...]:
        """Verified groups of ``samples`` responses."""
        return verified(policy.generate(prompts, n=self.samples, key=key, sampling=self.sampling), self.verifier.verify_many)

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
    benchmarks = {b["name"]: load_pinned(b, options.data_root).prompts for b in e["benchmarks"]}
    sampling = SamplingSettings(e["temperature"], e["top_p"], recipe["training"]["max_response_tokens"])
    return Sampler(benchmarks, sampling, samples or e["samples"], verifier, recipe["seed"])


def rows_file(record: RunRecord, model: str, benchmark: str, run: int) -> Path:
    return record.path / "eval" / model / benchmark / f"run{run}.jsonl"


def evaluate(record: RunRecord, options: Options, on_run: OnRun) -> None:
    """Write the missing evaluation files of the selected checkpoints, then the completion record. Caller holds the lock.

    A file appears whole or not at all, so an interrupted evaluation repeats at most one run of one model.
    """
    recipe = record.config["recipe"]
    base = recipe["method"]["name"] == "base"
    if not base and not (record.path / "selected.json").exists():
        raise UserError(
            f"{record.path} has not finished training, so no checkpoint is selected. Run experiments.train for it first."
        )
    started = time.perf_counter()
    set_threads(options.threads)
    attempt = record.new_attempt()
    policies = build_policies(record, options.model_paths, options.device)
    selected = {} if base else read_json(record.path / "selected.json")
    todo = [(name, run, seed) for name in policies for run, seed in enumerate(recipe["evaluation"]["seeds"])]
    with Verifier() as verifier:
        sampler = sampler_of(record, options, verifier)
        for name, policy in policies.items():
            if name in selected:
                policy.load(record.path / "best" / name / f"step-{selected[name]['step']:06d}")
        for number, (name, run, seed) in enumerate(todo, 1):
            evaluate_once(record, sampler, policies[name], run, seed)
            on_run(name, number, len(todo))
    write_json(attempt / "evaluation.json", {"seconds": time.perf_counter() - started})
    for policy in policies.values():
        policy.close()


def evaluate_once(record: RunRecord, sampler: Sampler, policy: Policy, run: int, seed: int) -> None:
    """One evaluation run of one model: a file per benchmark. Nothing is sampled when all of them exist."""
    files = {benchmark: rows_file(record, policy.name, benchmark, run) for benchmark in sampler.benchmarks}
    if all(f.exists() for f in files.values()):
        return
    key = StepKey(seed, "evaluation", 0)
    for benchmark, groups in sampler.all_benchmarks(policy, key).items():
        rows = evaluation_rows(benchmark, run, groups, key)
        write_atomic(files[benchmark], "".join(canonical_json(row) + "\n" for row in rows))


def evaluation_rows(benchmark: str, run: int, groups: Sequence[Group], key: StepKey) -> list[dict[str, Any]]:
    """One row per item and sample."""
    return [
        {
            "benchmark": benchmark,
            "run": run,
            "item": g.prompt.id,
            "sample": i,
            "seed": sample_seed(key, g.prompt.id, i),
            "response": r.text,
            "extracted": r.verdict.extracted if r.verdict else None,
            "gold": g.prompt.gold,
            "correct": bool(r.reward),
            "how": r.verdict.how if r.verdict else None,
            "finish_reason": r.finish_reason,
            "tokens": len(r.ids),
        }
        for g in groups
        for i, r in enumerate(g.responses)
    ]


def count_complete(record: RunRecord) -> dict[str, Any]:
    """Count every step, benchmark, run, item and sample; ValueError names the first thing that is missing or double."""
    recipe = record.config["recipe"]
    counts: dict[str, Any] = {"fingerprint": record.config["fingerprint"], "steps": 0, "evaluation_rows": 0}
    if recipe["method"]["name"] != "base":
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
