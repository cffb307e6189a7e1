"""One real step of every method on verl, on the stand-ins of pair 1: the loop, the exchange and the losses know no engine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from experiments.tasks import load_prompt_set
from experiments.tiny import resolve_model_path
from graft import trajectories
from graft.batches import LoopSettings, batch
from graft.composition import Method
from graft.cotrain import Setup, StepResult, run_step
from graft.methods import METHODS
from graft.retokenize import Sender
from graft.stored import Log, LogPeer
from graft.types import OptimiserSettings, SamplingSettings
from graft.verifier import Verifier
from tests.verl import cpu

pytestmark = pytest.mark.verl
NAMES = ("tiny-smollm3", "tiny-qwen3")
SEED, PROMPTS, N, LIMIT = 5, 16, 6, 44  # as in tests/methods/test_two_steps.py: groups move in both directions
STARTED = dict


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[STARTED]:
    """The pair with samplers, frozen copies for methods with a KL term, and a log of the second model's first step."""
    from graft.policies.verl_policy.policy import VerlPolicy
    from graft.policies.verl_policy.session import Session

    session = Session(NAMES, cpu.settings(max_prompt_tokens=64, max_response_tokens=LIMIT, tokens_per_gpu=1024))
    optimiser = OptimiserSettings(1.5e-4, 0.9, 0.95, 0.0, 1.0)

    def policy(name: str, **changes) -> VerlPolicy:
        """A model with its base weights."""
        return VerlPolicy(name, Path(resolve_model_path(f"package:{name}")), session, optimiser, **changes)

    try:
        policies = {name: policy(name) for name in NAMES}
        saved = tmp_path_factory.mktemp("saved")
        for name, p in policies.items():
            (saved / name).mkdir()
            p.save(saved / name)
        with Verifier() as verifier:
            yield {
                "policies": policies,
                "saved": saved,
                "verifier": verifier,
                "reference": cache(lambda name: policy(name, samples=False)),
                "log": tmp_path_factory.mktemp("log"),
            }
    finally:
        session.close()


def settings_of(method: Method) -> LoopSettings:
    return LoopSettings(SEED, 1, PROMPTS, PROMPTS // (method.minibatches or 4), N, SamplingSettings(1.0, 1.0, LIMIT))


def one_step(started: STARTED, method: Method, names: tuple[str, ...], peer: LogPeer | None = None) -> StepResult:
    """The first step from the base weights."""
    policies = {name: started["policies"][name] for name in names}
    for name, p in policies.items():
        p.load(started["saved"] / name)
    setup = Setup(policies, method, settings_of(method), started["verifier"].verify_many, started["reference"], peer)
    return run_step(setup, load_prompt_set("arith-train").prompts, 1)


def logged(started: STARTED) -> LogPeer:
    """The second model's own step as a stored peer."""
    donor, method = started["policies"][NAMES[1]], METHODS["grpo"]
    settings = settings_of(method)
    facts = trajectories.Facts(SEED, settings.sampling, {donor.name: Sender(donor.codec.fingerprint, donor.codec.special_ids)})
    if not trajectories.steps(started["log"]):
        trajectories.append(started["log"], 1, one_step(started, method, NAMES[1:]).groups, facts)
    order = (tuple(p.id for p in batch(load_prompt_set("arith-train").prompts, settings, 1)),)
    return LogPeer(Log.of(started["log"]), donor.name, N, "step", order)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_trains_and_exchanges(started: STARTED, name: str) -> None:
    method = METHODS[name]
    names = NAMES if method.joint else NAMES[:1]
    before = {n: started["policies"][n] for n in names}
    result = one_step(started, method, names, logged(started) if method.stored else None)
    for n, policy in before.items():
        mine = result.metrics["models"][n]
        assert mine["nonfinite_minibatches"] == 0
        assert mine["grad_norm_mean"] > 0
        assert mine["sampler_mismatch"]["max"] < 1e-4
        trained = policy.weights_sha256()
        policy.load(started["saved"] / n)
        assert policy.weights_sha256() != trained
    if method.joint or method.stored:
        assert sum(d["admitted"] for d in result.metrics["exchange"]) > 0
        assert sum(result.metrics["models"][n]["peer_tokens"] for n in names) > 0
