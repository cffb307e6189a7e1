"""Frozen run records on a temporary folder, cheaply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.config import Options
from experiments.run_record import RunRecord
from experiments.works import Work


def recipe(method: str = "grpo", models: tuple[str, ...] = ("qwen3-1.7b",), seed: int = 0, **of_method: Any) -> dict[str, Any]:
    """As much of a recipe as launching, planning and surveying read."""
    return {
        "method": {"name": method, "n": 8} | of_method,
        "models": [{"name": f"tiny-{m}", "stands_for": m, "source": f"package:tiny-{m}"} for m in models],
        "training": {"max_steps": 3},
        "evaluation": {"seeds": [1, 2], "benchmarks": [{"name": "arith"}]},
        "seed": seed,
    }


def made_record(root: Path, method: str = "grpo", models: tuple[str, ...] = ("qwen3-1.7b",), seed: int = 0) -> RunRecord:
    cell = {"method": method, "pair": "1" if len(models) > 1 else None, "models": list(models), "scale": "cpu", "seed": seed}
    return RunRecord.create(root, cell=cell, recipe=recipe(method, models, seed), deviations={})


def options(root: Path) -> Options:
    return Options(
        experiment_root=root,
        data_root=None,
        model_paths={},
        device="cpu",
        threads=1,
        resume="auto",
        evaluate=True,
        logger="none",
        checkpoint_every=5,
        dry_run=False,
    )


def work_of(record: RunRecord, stage: str = "all", after: tuple[str, ...] = ()) -> Work:
    return Work(record, options(record.path.parent), stage, after)
