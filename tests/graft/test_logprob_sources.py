"""Which log-probs count, where the sampler is another program than the trainer: a sampler that is off by a known amount."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graft.batches import LoopSettings
from graft.cotrain import Setup, StepResult, run_step
from graft.methods import METHODS
from graft.metrics import logprob_mismatch
from graft.policies.torch_policy import TorchPolicy, TorchSettings
from graft.types import Group, SamplingSettings, Verdict
from tests.graft import tiny

OFF = 0.25
FULL = SamplingSettings(1.0, 1.0, 12)


class Apart(TorchPolicy):
    """A torch policy whose sampler says OFF less than the trainer, on every token, and keeps what it was asked to train on."""

    sampler_apart = True

    def generate(self, prompts, **asked) -> tuple[Group, ...]:
        def off(r):
            return replace(r, logprobs=tuple(x - OFF for x in r.logprobs))

        return tuple(replace(g, responses=tuple(map(off, g.responses))) for g in super().generate(prompts, **asked))

    def score(self, items):
        self.scored = [*getattr(self, "scored", []), len(items)]
        return super().score(items)

    def update(self, minibatch, loss):
        self.seen = [*getattr(self, "seen", []), *minibatch.sequences]
        return super().update(minibatch, loss)


class Telling(Apart):
    """The same with texts that every tokenizer can carry; random models write broken bytes."""

    def generate(self, prompts, **asked) -> tuple[Group, ...]:
        def told(r):
            return replace(r, text="The answer is 12.")

        return tuple(replace(g, responses=tuple(map(told, g.responses))) for g in super().generate(prompts, **asked))


def right_half(pairs) -> list[Verdict]:
    """Every second response is right: all groups are mixed, none moves by failing."""
    return [Verdict(i % 2 == 0, None, "equal") for i, _ in enumerate(pairs)]


def only_one_model(pairs) -> list[Verdict]:
    """The first model to be verified fails everything, the other nothing (two models verify alternately)."""
    only_one_model.calls += 1
    return [Verdict(only_one_model.calls % 2 == 0, None, "equal") for _ in pairs]


def one_step(
    dirs: dict[str, Path], method: str, verify=right_half, cls=Apart, **sources: str
) -> tuple[StepResult, dict[str, TorchPolicy]]:
    only_one_model.calls = 0
    names = ("quick", "small") if METHODS[method].joint else ("quick",)
    policies = {n: cls(n, dirs[n], TorchSettings(64, 24), tiny.OPTIMISER) for n in names}
    settings = LoopSettings(3, 1, 4, 2, 2, FULL, **sources)  # type: ignore[arg-type]
    return run_step(Setup(policies, METHODS[method], settings, verify), tiny.prompts(4), 1), policies


def off_by(policy: TorchPolicy, dirs: dict[str, Path]) -> set[float]:
    """How far pi_old of the own rows trained on is from the untrained model's log-probs, per token."""
    rows = [s for s in policy.seen if not s.is_peer]
    fresh = TorchPolicy("x", dirs[policy.name], TorchSettings(64, 24), tiny.OPTIMISER)
    scores = fresh.score([(s.prompt_ids, s.response_ids) for s in rows])
    return {round(b - a, 4) + 0.0 for s, x in zip(rows, scores, strict=True) for a, b in zip(s.old_logprobs, x, strict=True)}


def test_mismatch_by_hand() -> None:
    # tokens 1 and 2: +0.5 and -0.1; token 3: +0.2 -> mean |d| = 0.8 / 3, max 0.5, signed mean 0.6 / 3
    found = logprob_mismatch([(-1.0, -2.1), (-0.3,)], [(-1.5, -2.0), (-0.5,)])
    assert found == {"tokens": 3, "mean": pytest.approx(0.8 / 3), "max": pytest.approx(0.5), "kl": pytest.approx(0.2)}
    assert logprob_mismatch([], []) == {"tokens": 0, "mean": 0.0, "max": 0.0, "kl": 0.0}


@pytest.mark.parametrize(
    ("sources", "pi_old", "measured"),
    [
        ({}, OFF, 2),  # one minibatch of two prompts is scored to measure
        ({"old_logprobs": "recomputed"}, 0.0, 4),  # all own rows are scored anyway
        ({"old_logprobs": "recomputed", "peer_logprobs": "recomputed"}, 0.0, 4),  # all four are scored anyway
    ],
)
def test_pi_old_is_the_named_one_and_the_mismatch_is_measured(tiny_dirs, sources, pi_old, measured) -> None:
    result, policies = one_step(tiny_dirs, "grpo", **sources)
    assert off_by(policies["quick"], tiny_dirs) == {pi_old}
    assert policies["quick"].scored == [2 * measured]  # once, and no more than is said
    apart = result.metrics["models"]["quick"]["sampler_mismatch"]
    assert apart["mean"] == pytest.approx(OFF, abs=1e-5)
    assert apart["kl"] == pytest.approx(-OFF, abs=1e-5)
    assert apart["tokens"] == sum(len(r.ids) for g in result.groups["quick"][:measured] for r in g.responses)
    # what is logged is what the sampler said, whatever is trained on
    logged = result.groups["quick"][0].responses[0]
    untrained = TorchPolicy("x", tiny_dirs["quick"], TorchSettings(64, 24), tiny.OPTIMISER)
    (score,) = untrained.score([(result.groups["quick"][0].prompt_ids, logged.ids)])
    assert score[0] - logged.logprobs[0] == pytest.approx(OFF, abs=1e-5)


def test_peer_logprobs_change_the_compatibility_score_of_the_same_text(tiny_dirs) -> None:
    """s compares the receiver's mean log-prob with the source's; the source's is OFF higher when its trainer says it."""
    scores = {}
    for source in ("sampler", "recomputed"):
        result, _ = one_step(tiny_dirs, "naive_sharing", only_one_model, Telling, old_logprobs="recomputed", peer_logprobs=source)
        scores[source] = {(r.prompt_id, r.index): r.score for r in result.exchange.report.rows if r.score is not None}
    both = scores["sampler"].keys() & scores["recomputed"].keys()
    assert both
    assert all(scores["sampler"][k] != scores["recomputed"][k] for k in both)


def test_nothing_is_measured_where_sampler_and_trainer_are_one(tiny_dirs) -> None:
    result, _ = one_step(tiny_dirs, "grpo", cls=type("Same", (Apart,), {"sampler_apart": False}))
    assert "sampler_mismatch" not in result.metrics["models"]["quick"]


def test_combinations_that_cannot_be(tiny_dirs) -> None:
    with pytest.raises(ValueError, match="set old_logprobs=recomputed, too"):
        LoopSettings(3, 1, 4, 2, 2, FULL, peer_logprobs="recomputed")
    with pytest.raises(ValueError, match="peer_logprobs 'vllm' is not known"):
        LoopSettings(3, 1, 4, 2, 2, FULL, peer_logprobs="vllm")  # type: ignore[arg-type]
    policy = Apart("quick", tiny_dirs["quick"], TorchSettings(64, 24), tiny.OPTIMISER)
    cut = LoopSettings(3, 1, 4, 2, 2, SamplingSettings(1.0, 0.9, 8))
    with pytest.raises(ValueError, match=r"log-probs of the truncated distribution \(top_p=0.9\)"):
        Setup({"quick": policy}, METHODS["grpo"], cut, right_half)
    one = TorchPolicy("quick", tiny_dirs["quick"], TorchSettings(64, 24), tiny.OPTIMISER)
    Setup({"quick": one}, METHODS["grpo"], cut, right_half)  # its log-probs are those of the full distribution
    Setup({"quick": policy}, METHODS["grpo"], replace(cut, old_logprobs="recomputed", peer_logprobs="recomputed"), right_half)
