"""The executable specification: log-probs, restart bit for bit, precision."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graft.methods import METHODS
from graft.policies.sampling import draw, uniforms
from graft.policies.torch_policy import TorchPolicy, TorchSettings
from graft.types import Group, SamplingSettings, StepKey
from tests.graft import tiny

LOSS = METHODS["graft"].loss()
KEY = StepKey(0, "train/a", 1)
FULL = SamplingSettings(1.0, 1.0, tiny.LIMIT)
KINDS = pytest.mark.parametrize("kind", tiny.KINDS)


def items_of(groups: Seq[Group]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(g.prompt_ids, r.ids) for g in groups for r in g.responses]


def plain_logprobs(policy: TorchPolicy, prompt: tuple[int, ...], ids: tuple[int, ...]) -> list[float]:
    """One unpadded row, one forward pass, no cache: the definition."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + ids])).logits[0].double()
    logp = torch.log_softmax(logits, -1)
    return [float(logp[len(prompt) - 1 + i, t]) for i, t in enumerate(ids)]


def close(a: Seq[Seq[float]], b: Seq[Seq[float]], tolerance: float = 1e-5) -> bool:
    return max(abs(x - y) for r, s in zip(a, b, strict=True) for x, y in zip(r, s, strict=True)) < tolerance


@KINDS
def test_batch_composition_and_padding_do_not_change_logprobs(frozen: TorchPolicy) -> None:
    items = [
        ((80, 81, 82 + i) * (1 + i % 4), tuple(30 + (11 * i + 5 * j) % 250 for j in range(1 + (7 * i) % 13))) for i in range(9)
    ]
    expected = [plain_logprobs(frozen, *x) for x in items]
    assert close([frozen.score([x])[0] for x in items], expected)
    assert close(frozen.score(items), expected)
    assert close(frozen.score(items[::-1])[::-1], expected)
    longer = (tuple(range(40, 100)), tuple(range(100, 160)))  # left-pads every prompt and right-pads every response
    assert close(frozen.score([*items, longer])[:-1], expected)
    frozen.settings, kept = replace(frozen.settings, train_rows=2), frozen.settings
    try:
        assert close(frozen.score(items), expected)
    finally:
        frozen.settings = kept


@KINDS
def test_generation_logprobs_are_the_scores(frozen: TorchPolicy) -> None:
    groups = frozen.generate(tiny.prompts(5), n=4, key=KEY, sampling=FULL)
    assert close(frozen.score(items_of(groups)), [r.logprobs for g in groups for r in g.responses])


def test_score_of_nothing_and_of_an_empty_response(quick: TorchPolicy) -> None:
    assert quick.score([]) == []
    with pytest.raises(ValueError, match="empty response"):
        quick.score([((70,), (71,)), ((70,), ())])


def test_training_temperature_divides_the_logits(tiny_dirs: dict[str, Path], quick: TorchPolicy) -> None:
    warm = tiny.policy(tiny_dirs["quick"], temperature=2.0)
    with torch.no_grad():
        logits = quick.model(torch.tensor([[70, 71, 99]])).logits[0, 1]
    assert warm.score([((70, 71), (99,))])[0][0] == pytest.approx(float(torch.log_softmax(logits / 2, -1)[99]), abs=1e-5)


# ---- state


@KINDS
def test_save_and_load_replay_bit_for_bit(tiny_dirs: dict[str, Path], tmp_path: Path, kind: str) -> None:
    policy = tiny.policy(tiny_dirs[kind])
    minibatch = tiny.mixed_minibatch(policy)
    policy.update(minibatch, LOSS)
    policy.save(tmp_path)
    saved = policy.weights_sha256()
    policy.update(minibatch, LOSS)
    fresh = tiny.policy(tiny_dirs[kind])
    assert fresh.weights_sha256() != saved
    fresh.load(tmp_path)
    assert fresh.weights_sha256() == saved
    fresh.update(minibatch, LOSS)
    assert fresh.weights_sha256() == policy.weights_sha256()
    sampled = [
        [r.ids for g in p.generate(tiny.prompts(2), n=2, key=KEY, sampling=FULL) for r in g.responses] for p in (fresh, policy)
    ]
    assert sampled[0] == sampled[1]


def test_load_forgets_later_moments(tiny_dirs: dict[str, Path], tmp_path: Path) -> None:
    # A checkpoint from before the first update holds no moments; a policy that has some must lose them on load.
    policy = tiny.policy(tiny_dirs["quick"])
    minibatch = tiny.mixed_minibatch(policy)
    policy.save(tmp_path)
    policy.update(minibatch, LOSS)
    once = policy.weights_sha256()
    policy.update(minibatch, LOSS)
    policy.load(tmp_path)
    policy.update(minibatch, LOSS)
    assert policy.weights_sha256() == once


def test_weights_alone_are_enough_to_evaluate(tiny_dirs: dict[str, Path], tmp_path: Path) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    policy.update(tiny.mixed_minibatch(policy), LOSS)
    policy.save(tmp_path)
    (tmp_path / "optimiser.safetensors").unlink()
    fresh = tiny.policy(tiny_dirs["quick"])
    fresh.load(tmp_path)
    assert fresh.weights_sha256() == policy.weights_sha256()


@KINDS
def test_export_is_a_model_directory(tiny_dirs: dict[str, Path], tmp_path: Path, kind: str) -> None:
    policy = tiny.policy(tiny_dirs[kind])
    policy.update(tiny.mixed_minibatch(policy), LOSS)
    policy.export(tmp_path)
    again = tiny.policy(tmp_path)
    assert again.weights_sha256() == policy.weights_sha256()
    assert again.codec.fingerprint == policy.codec.fingerprint
    assert again.codec.render(tiny.prompts(1)[0]) == policy.codec.render(tiny.prompts(1)[0])


# ---- precision


@KINDS
def test_bfloat16_runs_over_float32_weights(tiny_dirs: dict[str, Path], frozen: TorchPolicy, kind: str) -> None:
    policy = tiny.policy(tiny_dirs[kind], precision="bfloat16")
    groups = policy.generate(tiny.prompts(3), n=4, key=KEY, sampling=FULL)
    scores = policy.score(items_of(groups))
    exact = frozen.score(items_of(groups))
    gaps = [abs(x - y) for a, b in zip(scores, exact, strict=True) for x, y in zip(a, b, strict=True)]
    assert 1e-5 < max(gaps)
    assert sum(gaps) / len(gaps) < 0.05
    metrics = policy.update(tiny.mixed_minibatch(policy), LOSS)
    assert metrics["nonfinite"] == 0.0
    assert metrics["grad_norm"] > 0
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in policy.model.parameters())


def test_unknown_precision_lists_the_known() -> None:
    with pytest.raises(ValueError, match="'fp16' is not known; use float32 or bfloat16"):
        TorchSettings(8, 8, precision="fp16")


def test_close_releases_the_model(tiny_dirs: dict[str, Path]) -> None:
    policy = tiny.policy(tiny_dirs["quick"])
    policy.close()
    assert not hasattr(policy, "model")


@KINDS
def test_common_prefixes_are_decoded_once_and_change_no_sample(frozen: TorchPolicy) -> None:
    rows: list[int] = []
    hook = frozen.model.register_forward_pre_hook(lambda _, __, kw: rows.append(len(kw["input_ids"])), with_kwargs=True)
    try:
        # At temperature 1e-4 all responses of a prompt agree: one row per prompt and token, however many responses.
        cold = frozen.generate(tiny.prompts(2), n=6, key=KEY, sampling=SamplingSettings(1e-4, 1.0, tiny.LIMIT))
        assert max(rows) == 2
        assert all(len({r.ids for r in g.responses}) == 1 for g in cold)
        rows.clear()
        warm = frozen.generate(tiny.prompts(2), n=6, key=KEY, sampling=FULL)
        assert rows[0] == 2
        assert 2 < max(rows) <= 12
    finally:
        hook.remove()
    # The definition, response by response: the same uniforms against a plain forward pass of the prefix.
    for g in warm:
        for i, r in enumerate(g.responses):
            u = uniforms(KEY, [g.prompt], 6, tiny.LIMIT)[i]
            for t, token in enumerate(r.ids):
                with torch.no_grad():
                    logits = frozen.model(torch.tensor([g.prompt_ids + r.ids[:t]])).logits[:, -1]
                assert int(draw(logits, torch.tensor(u[t : t + 1]), FULL)[0]) == token
