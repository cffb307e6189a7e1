"""Two real steps of every method on the stand-ins of pair 1: all run, learn, exchange, and no two leave the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from experiments.tasks import load_prompt_set
from experiments.tiny import resolve_model_path
from graft import trajectories
from graft.batches import LoopSettings, batch
from graft.composition import Method
from graft.cotrain import Setup, run_step
from graft.methods import METHODS
from graft.policies.torch_policy import TorchPolicy, TorchSettings
from graft.retokenize import Sender
from graft.stored import Log, LogPeer
from graft.types import Group, OptimiserSettings, Prompt, SamplingSettings, StepKey
from graft.verifier import Verifier

NAMES = ("tiny-smollm3", "tiny-qwen3")
pytestmark = pytest.mark.slow

LIMIT, PROMPTS, N = 44, 16, 6
SEED = 5  # its first step moves groups in both directions
FLOOR = 0.93  # high enough to drop successes as well as failures in two steps
Outcome = tuple[dict[str, str], list[dict]]


class Remembering(TorchPolicy):
    """Samples once what several methods ask of the same weights: a step's first rollouts are those of the untouched models."""

    sampled: ClassVar[dict[tuple, tuple[Group, ...]]] = {}

    def generate(self, prompts: Sequence[Prompt], *, n: int, key: StepKey, sampling: SamplingSettings) -> tuple[Group, ...]:
        asked = (self.name, self.weights_sha256(), tuple(prompts), n, key, sampling)
        if asked not in self.sampled:
            self.sampled[asked] = super().generate(prompts, n=n, key=key, sampling=sampling)
        return self.sampled[asked]


def policy(name: str) -> TorchPolicy:
    optimiser = OptimiserSettings(1.5e-4, 0.9, 0.95, 0.0, 1.0)
    return Remembering(name, Path(resolve_model_path(f"package:{name}")), TorchSettings(64, LIMIT), optimiser)


def settings_of(method: Method) -> LoopSettings:
    return LoopSettings(SEED, 1, PROMPTS, PROMPTS // (method.minibatches or 4), N, SamplingSettings(1.0, 1.0, LIMIT))


def logged(verifier: Verifier, directory: Path) -> LogPeer:
    """The log of two steps of GRPO of the second model, as a peer for the first."""
    prompts, settings, donor = load_prompt_set("arith-train").prompts, settings_of(METHODS["grpo"]), policy(NAMES[1])
    facts = trajectories.Facts(SEED, settings.sampling, {donor.name: Sender(donor.codec.fingerprint, donor.codec.special_ids)})
    for step in (1, 2):
        done = run_step(Setup({donor.name: donor}, METHODS["grpo"], settings, verifier.verify_many), prompts, step)
        trajectories.append(directory, step, done.groups, facts)
    order = tuple(tuple(p.id for p in batch(prompts, settings, step)) for step in (1, 2))
    return LogPeer(Log.of(directory), donor.name, N, "step", order)


def two_steps(method: Method, verifier: Verifier, log: LogPeer) -> Outcome:
    """Weights after two steps (an independent method trains the first model), and the metrics of both."""
    if "delta" in method.hyperparameters:
        method = method.with_hyperparameters(delta=FLOOR)
    policies = {name: policy(name) for name in (NAMES if method.joint else NAMES[:1])}
    peer = log if method.peers == "stored" else None
    setup = Setup(policies, method, settings_of(method), verifier.verify_many, policy, peer)
    prompts = load_prompt_set("arith-train").prompts
    first = run_step(setup, prompts, 1)
    second = run_step(setup, prompts, 2, first.history)
    return {n: p.weights_sha256() for n, p in policies.items()}, [dict(first.metrics), dict(second.metrics)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    with Verifier() as verifier:
        log = logged(verifier, tmp_path_factory.mktemp("log"))
        return {name: two_steps(m, verifier, log) for name, m in METHODS.items()}


@pytest.fixture(scope="module")
def untouched() -> dict[str, str]:
    return {name: policy(name).weights_sha256() for name in NAMES}


@pytest.mark.parametrize("name", METHODS)
def test_two_steps_train_and_report(outcomes: dict[str, Outcome], untouched: dict[str, str], name: str) -> None:
    weights, metrics = outcomes[name]
    assert set(weights) == set(NAMES if METHODS[name].joint else NAMES[:1])
    assert all(digest != untouched[model] for model, digest in weights.items())
    assert [m["step"] for m in metrics] == [1, 2]
    for m in metrics:
        for model in m["models"].values():
            assert model["minibatches"] > 0
            assert model["nonfinite_minibatches"] == 0
            assert np.isfinite([model["loss_mean"], model["grad_norm_mean"]]).all()
            assert model["rollouts"] == m["rounds"] * PROMPTS * N
    offered = {(d["source"], d["receiver"]): 0 for m in metrics for d in m["exchange"]}
    for m in metrics:
        for d in m["exchange"]:
            offered[d["source"], d["receiver"]] += d["offered"]
    if METHODS[name].joint:  # the situation is informative: both directions have something to give
        assert all(offered[d] > 0 for d in (NAMES, NAMES[::-1]))
    elif METHODS[name].peers == "stored":  # the log gives and does not learn
        assert list(offered) == [NAMES[::-1]]
        assert offered[NAMES[::-1]] > 0
    else:
        assert offered == {}


def test_no_two_methods_leave_the_same_weights(outcomes: dict[str, Outcome]) -> None:
    def alike(a: str, b: str) -> bool:
        """Whether all models that both methods train end in the same weights."""
        shared = outcomes[a][0].keys() & outcomes[b][0].keys()
        return all(outcomes[a][0][m] == outcomes[b][0][m] for m in shared)

    assert [pair for pair in combinations(outcomes, 2) if alike(*pair)] == []


def test_kl_to_the_base_model_is_zero_before_the_first_update_only(outcomes: dict[str, Outcome]) -> None:
    # HACPO's own minibatches: the first one of step 1 is at pi = pi_ref; later ones and step 2 are not.
    first, second = (m["models"][NAMES[0]]["kl_own_mean"] for m in outcomes["hacpo"][1])
    assert 0 < first < second
    assert outcomes["graft"][1][0]["models"][NAMES[0]]["kl_own_mean"] is None
