"""Ten steps of GRAFT on the packaged pair, pinned: losses, rewards and exchange everywhere, weights' hashes where kernels are equal.

``GOLDEN_UPDATE=1 pytest tests/experiments/test_golden.py`` rewrites the file after an intended change; the diff is the review.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from experiments.tasks import load_prompt_set
from experiments.tiny import resolve_model_path
from graft.batches import LoopSettings
from graft.cotrain import Setup, cotrain
from graft.methods import METHODS
from graft.policies.torch_policy import TorchPolicy, TorchSettings
from graft.types import OptimiserSettings, SamplingSettings
from graft.verifier import Verifier

GOLDEN = Path(__file__).parents[1] / "golden" / "graft_ten_steps.json"
NAMES = ("tiny-smollm3", "tiny-qwen3")
LIMIT = 44


def kernels() -> str:
    """What decides the last bits of a matrix product."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {model}"


class Collect:
    def __init__(self) -> None:
        self.rows: list[dict] = []

    def step_done(self, result) -> None:
        self.rows.append(json.loads(json.dumps(result.metrics)))


def ten_steps() -> dict:
    optimiser = OptimiserSettings(1.5e-4, 0.9, 0.95, 0.0, 1.0)
    policies = {n: TorchPolicy(n, Path(resolve_model_path(f"package:{n}")), TorchSettings(64, LIMIT), optimiser) for n in NAMES}
    settings = LoopSettings(0, 1, 8, 4, 4, SamplingSettings(1.0, 1.0, LIMIT), max_steps=10)
    seen = Collect()
    with Verifier() as verifier:
        setup = Setup(policies, METHODS["graft"], settings, verifier.verify_many)
        cotrain(setup, load_prompt_set("arith-train").prompts, observer=seen)
    return {"kernels": kernels(), "metrics": seen.rows, "weights": {n: p.weights_sha256() for n, p in policies.items()}}


@pytest.fixture(scope="module")
def fresh() -> dict:
    result = ten_steps()
    if os.environ.get("GOLDEN_UPDATE"):
        GOLDEN.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return result


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def close(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    return a == pytest.approx(b, rel=1e-3, abs=1e-5) if isinstance(a, float) else a == b


def test_ten_steps_are_the_golden_ones(fresh, golden):
    assert len(golden["metrics"]) == 10
    for mine, theirs in zip(fresh["metrics"], golden["metrics"], strict=True):
        assert close(mine, theirs), f"step {mine['step']} differs:\n{mine}\n{theirs}"


def test_golden_steps_exchange_and_learn_from_peers(golden):
    """The pinned run exercises what it stands for: both directions are used, and peer tokens reach the loss."""
    rows = golden["metrics"]
    directions = {(d["source"], d["receiver"]) for row in rows for d in row["exchange"] if d["admitted"]}
    assert directions == {NAMES, NAMES[::-1]}
    assert all(sum(row["models"][n]["peer_tokens"] for row in rows) > 0 for n in NAMES)


def test_weights_are_equal_to_the_last_bit_on_equal_kernels(fresh, golden):
    if fresh["kernels"] != golden["kernels"]:
        pytest.skip(f"golden weights were made with {golden['kernels']}; this is {fresh['kernels']}")
    assert fresh["weights"] == golden["weights"]
