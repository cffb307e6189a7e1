"""Real run directories on tmp_path, written with the run record's own code, and a small table spec beside its reported values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from experiments.run_record import RunRecord

SLOTS = {"smollm3-3b": "tiny-smollm3", "qwen3-1.7b": "tiny-qwen3"}
# A third model, for tables of several pairs.
NAMES = SLOTS | {"octothinker-3b": "tiny-octothinker"}
BENCHMARKS = (("arith-heldout", "math500", 2), ("arith-large", "amc23", 1))
# verdict(model, benchmark, run, item, sample) -> was the response correct
Verdict = Callable[[str, str, int, int, int], bool]


def share(k: int) -> Verdict:
    """Correct on the first k of the 4 samples of every item, in every run."""
    return lambda model, benchmark, run, item, sample: sample < k


@dataclass
class Runs:
    """Makes run directories under ``root``; ``samples`` x items rows per benchmark and evaluation run."""

    root: Path
    samples: int = 4
    runs: int = 2
    evaluation: dict[str, Any] = field(default_factory=dict)

    def recipe(self, models: list[str], **extra: Any) -> dict[str, Any]:
        evaluation = {
            "samples": self.samples,
            "temperature": 0.6,
            "top_p": 0.95,
            "seeds": list(range(100, 100 + self.runs)),
            "benchmarks": [{"name": n, "stands_for": s, "items": i, "sha256": "0" * 64} for n, s, i in BENCHMARKS],
        }
        named = [{"name": NAMES[m], "stands_for": m, "source": f"package:{NAMES[m]}"} for m in models]
        return {"models": named, "training": {"selection": "best"}, "evaluation": evaluation | self.evaluation} | extra

    def make(
        self,
        method: str,
        verdict: Verdict,
        *,
        models: tuple[str, ...] = tuple(SLOTS),
        pair: str | None = "1",
        deviations: dict[str, Any] | None = None,
        cell: dict[str, Any] | None = None,
        done: bool = True,
        **extra: Any,
    ) -> RunRecord:
        names = [NAMES[m] for m in models]
        full_cell = {"method": method, "pair": pair, "models": names, "scale": "cpu", "seed": 0} | (cell or {})
        recipe = self.recipe(list(models), method=method, deviations=deviations or {}, cell=full_cell, **extra)
        record = RunRecord.create(self.root, cell=full_cell, recipe=recipe, deviations=deviations or {})
        for model in names:
            for benchmark, _, items in BENCHMARKS:
                for run in range(self.runs):
                    self.write(record, model, benchmark, run, self.rows(model, benchmark, run, items, verdict))
        if done:
            record.set_status("done", step=3, steps=3)
            (record.path / "done.json").write_text(json.dumps({"fingerprint": record.config["fingerprint"]}))
        return record

    @staticmethod
    def metrics(
        record: RunRecord, steps: list[dict[str, tuple[int, int, int, int]]], exchange: list[list[Any]] | None = None
    ) -> Path:
        """metrics.jsonl of the given steps: per model (own, clipped own, peer, clipped peer) tokens, and exchange rows."""
        keys = ("own_tokens", "clipped_own_tokens", "peer_tokens", "clipped_peer_tokens")
        rows = [
            {
                "step": k,
                "models": {m: dict(zip(keys, t, strict=True)) for m, t in models.items()},
                "exchange": exchange[k - 1] if exchange else [],
            }
            for k, models in enumerate(steps, 1)
        ]
        file = record.path / "metrics.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    @staticmethod
    def trajectories(record: RunRecord, model: str, steps: list[dict[str, list[float]]]) -> Path:
        """The trajectory log: per step, prompt id -> the rewards of the model's group."""
        folder = record.path / "trajectories"
        folder.mkdir(parents=True)
        for k, groups in enumerate(steps, 1):
            rows = [
                {"step": k, "model": model, "prompt_id": prompt, "index": i, "reward": reward}
                for prompt, rewards in groups.items()
                for i, reward in enumerate(rewards)
            ]
            pq.write_table(pa.Table.from_pylist(rows), folder / f"step-{k:06d}.parquet")
        return folder

    @staticmethod
    def costs(record: RunRecord, steps: int, seconds: dict[str, float], selected: dict[str, int], gpus: int = 4) -> None:
        """One attempt on GPUs whose steps all took 60 s of validation and ``seconds`` by phase; and the selected checkpoints."""
        attempt = record.path / "attempts" / "1"
        attempt.mkdir(parents=True)
        (attempt / "devices.json").write_text(json.dumps({"kind": "gpu", "count": gpus}))
        phases = {**seconds, "validation": 60.0}
        rows = [{"step": k, "wall": sum(phases.values()), "seconds": phases, "tokens": {}} for k in range(1, steps + 1)]
        (attempt / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (record.path / "selected.json").write_text(json.dumps({m: {"step": k} for m, k in selected.items()}))

    def rows(self, model: str, benchmark: str, run: int, items: int, verdict: Verdict) -> list[dict[str, Any]]:
        return [
            {
                "benchmark": benchmark,
                "run": run,
                "item": f"item-{item}",
                "sample": sample,
                "seed": 100 + run,
                "response": f"{model} says {run} {item} {sample} ≥ √2",
                "extracted": "2",
                "gold": "2",
                "correct": verdict(model, benchmark, run, item, sample),
                "how": "equal",
                "finish_reason": "eos",
                "tokens": 7,
            }
            for item in range(items)
            for sample in range(self.samples)
        ]

    @staticmethod
    def file(record: RunRecord, model: str, benchmark: str, run: int) -> Path:
        return record.path / "eval" / model / benchmark / f"run{run}.jsonl"

    def write(self, record: RunRecord, model: str, benchmark: str, run: int, rows: list[Any]) -> Path:
        file = self.file(record, model, benchmark, run)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return file

    def read(self, record: RunRecord, model: str, benchmark: str, run: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file(record, model, benchmark, run).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs" / "paper")


SPEC: dict[str, Any] = {
    "title": "Test",
    "caption": "A caption with 100 % & more.",
    "pair": "1",
    "receivers": list(SLOTS),
    "reference": "full",
    "decimals": 2,
    "columns": {"average": "average"},
    "reported_file": "mini.csv",
    "parts": {"a": "First", "b": "Second"},
    "groups": {"base": "Before", "main": "Main"},
    "rows": [
        {
            "slug": "base",
            "group": "base",
            "label": "Base",
            "method": "base",
            "seed": 0,
            "parts": ["a"],
            "compare": False,
            "optional": True,
        },
        {"slug": "full", "group": "main", "label": "Full", "method": "graft", "parts": ["a", "b"]},
        {
            "slug": "delta_0.7",
            "group": "main",
            "label": "d",
            "method": "graft",
            "parts": ["a"],
            "deviations": {"method.delta": 0.7},
        },
        {"slug": "grpo_n8", "group": "main", "label": "GRPO_8 50%", "method": "grpo", "parts": ["a", "b"]},
        {"slug": "hacpo", "group": "main", "label": "HACPO", "method": "hacpo", "parts": ["b"]},
    ],
}


# The same rows on the two benchmarks of the runs and their average: one part, as tables 7 and 8.
WIDE: dict[str, Any] = SPEC | {
    "columns": {"math500": "MATH500", "amc23": "AMC23", "average": "average"},
    "reported_file": "wide.csv",
    "parts": {"a": "Every benchmark"},
    "rows": [{k: v for k, v in row.items() if k != "parts"} for row in SPEC["rows"]],
}


def write_spec(folder: Path, name: str, spec: dict[str, Any]) -> None:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """Folder with mini.yaml, wide.yaml and unprinted.yaml; the reported values lie in the sibling folder."""
    folder = tmp_path / "tables" / "specs"
    folder.mkdir(parents=True)
    write_spec(folder, "mini", SPEC)
    write_spec(folder, "wide", WIDE)
    write_spec(folder, "unprinted", WIDE | {"reported_file": None})
    lines, wide = ["variant,receiver,mean,std,delta"], ["variant,receiver,benchmark,mean,std,delta"]
    for row in SPEC["rows"][1:]:
        delta = "" if row["slug"] == "full" else "-1.50"
        lines += [f"{row['slug']},{x},30.00,0.50,{delta}" for x in SLOTS]
        for x in SLOTS:
            wide += [f"{row['slug']},{x},math500,40.00,0.25,", f"{row['slug']},{x},amc23,20.00,0.75,"]
            wide.append(f"{row['slug']},{x},avg,30.00,0.50,{delta}")
    reported = folder.parent / "reported"
    reported.mkdir()
    (reported / "mini.csv").write_text("\n".join(lines) + "\n")
    (reported / "wide.csv").write_text("\n".join(wide) + "\n")
    return folder


@pytest.fixture
def methods(tmp_path: Path) -> Path:
    """A version that has graft and grpo, and no hacpo."""
    folder = tmp_path / "method"
    folder.mkdir()
    for name in ("graft", "grpo"):
        (folder / f"{name}.yaml").write_text("")
    return folder
