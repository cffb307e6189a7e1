"""The same weights and the same minibatch: the torch policy and verl's FSDP2 engine must do the same step, on one rank and on two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graft.losses import MinibatchLoss
from graft.methods import METHODS
from graft.policies.torch_policy import TorchPolicy
from graft.types import Minibatch, Sequence
from tests.graft import tiny

pytestmark = pytest.mark.verl
# Plain gradient descent: after the step the weights show the gradient itself. (AdamW divides by its root, which turns rounding
# of a gradient near 0 into a step of full size.)
RATE = 0.5
SGD = (
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.override_optimizer_config=null",
)
RANKS = (1, 2)


def rows(codec) -> tuple[Sequence, ...]:
    """Eleven rows, two prompts, own and peer, of 1 to 9 tokens, on and off policy, with weights, a unanimous group, a reference."""
    prompts = [codec.encode("How many apples? "), codec.encode("7 + 5 = ")]
    texts = ["12.", "The answer is 12.", "8", "Ben has 8 cards.", "3 oranges", "12", "The cards", "7", "apples", "is 12", "0"]
    made = []
    for i, text in enumerate(texts):
        ids = codec.encode(text)[:9]
        old = tuple(-2.0 - 0.35 * ((i + t) % 5) for t in range(len(ids)))
        peer = i in (3, 6, 7, 10)
        made.append(
            Sequence(
                f"q{i % 2}",
                "b" if peer else "a",
                "a",
                prompts[i % 2],
                ids,
                old,
                (0.9, -1.1, 0.4, 2.474867, -0.353552)[i % 5],
                weight=(1.0, 0.5, 2.0)[i % 3] if peer else 1.0,
                source_mean_logprob=-2.2,
                unanimous=(-1, 0, 1)[i % 3],
                ref_logprobs=tuple(x - 0.2 for x in old),
            )
        )
    return tuple(made)


def losses() -> dict[str, MinibatchLoss]:
    names = ("grpo", "graft", "hacpo", "sgt", "graft_which_luffy_update", "gspo", "rl_zvp", "dr_grpo")
    return {name: METHODS[name].loss() for name in names}


class Pair:
    """One model on both engines with the same weights, both set back before each comparison."""

    def __init__(self, torch_policy: TorchPolicy, verl_policy, folder: Path):
        self.torch, self.verl, self.folder = torch_policy, verl_policy, folder
        for name, policy in (("torch", self.torch), ("verl", self.verl)):
            (folder / name).mkdir(parents=True)
            policy.save(folder / name)

    def reset(self) -> None:
        self.torch.load(self.folder / "torch")
        self.verl.load(self.folder / "verl")

    def weights(self, folder: Path) -> tuple[dict, dict]:
        """Both engines' parameters by name; verl's go through its Hugging Face export."""
        folder.mkdir()
        self.verl.export(folder)
        exported = TorchPolicy("x", folder, self.torch.settings, tiny.OPTIMISER)
        return dict(self.torch.model.named_parameters()), dict(exported.model.named_parameters())


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"ranks{ranks}")
def pair(request: pytest.FixtureRequest, opened, served_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    optimiser = replace(tiny.OPTIMISER, learning_rate=RATE, weight_decay=0.0)
    (verl,) = opened(
        ["quick"],
        samples=False,
        optimiser=optimiser,
        gpus=request.param,
        overrides=(*opened_overrides(), *SGD),
    ).values()
    reference = tiny.policy(served_dirs["quick"], "a")
    reference._optimiser = torch.optim.SGD(reference.model.parameters(), lr=RATE)
    return Pair(reference, verl, tmp_path_factory.mktemp("pair"))


def opened_overrides() -> tuple[str, ...]:
    from tests.verl.cpu import OVERRIDES

    return OVERRIDES


def close(a: float, b: float) -> bool:
    """Within 1e-6, relative above 1."""
    return abs(a - b) <= 1e-6 * max(1.0, abs(b))


@pytest.mark.parametrize("rows_per_gpu", [None, 1, 3, 4], ids=lambda r: "by-tokens" if r is None else f"micro{r}")
@pytest.mark.parametrize("method", sorted(losses()))
def test_the_same_step(pair: Pair, method: str, rows_per_gpu: int | None, tmp_path: Path) -> None:
    loss, minibatch = losses()[method], Minibatch(1, rows(pair.torch.codec))
    pair.reset()
    pair.verl.settings = replace(
        pair.verl.settings, rows_per_gpu=rows_per_gpu or 2, tokens_per_gpu=80 if rows_per_gpu is None else None
    )
    mine, theirs = pair.torch.update(minibatch, loss), pair.verl.update(minibatch, loss)
    assert close(theirs["loss"], mine["loss"])
    assert close(theirs["grad_norm"], mine["grad_norm"])
    assert mine["grad_norm"] > 1e-4  # dr_grpo divides by the response limit
    assert set(theirs) == set(mine)
    for name in set(mine) - {"loss", "grad_norm"}:
        assert close(theirs[name], mine[name]), name
    a, b = pair.weights(tmp_path / "exported")
    assert a.keys() == b.keys()
    assert max(float((a[k] - b[k]).abs().max()) for k in a) <= 1e-6


def test_the_step_moved_the_weights(pair: Pair, tmp_path: Path) -> None:
    """The control of the comparison above: without the step the weights are farther apart than what it allows."""
    pair.reset()
    pair.torch.update(Minibatch(1, rows(pair.torch.codec)), losses()["graft"])
    a, b = pair.weights(tmp_path / "exported")
    assert max(float((a[k] - b[k]).abs().max()) for k in a) > 1e-3


def test_scores_agree_in_any_order(pair: Pair) -> None:
    pair.reset()
    items = [(s.prompt_ids, s.response_ids) for s in rows(pair.torch.codec)]
    mine, theirs = pair.torch.score(items), pair.verl.score(items)
    assert [len(x) for x in theirs] == [len(r) for _, r in items]
    assert max(abs(x - y) for a, b in zip(mine, theirs, strict=True) for x, y in zip(a, b, strict=True)) <= 1e-5
    assert pair.verl.score(items[::-1])[::-1] == [pytest.approx(x, abs=1e-5) for x in theirs]
    assert pair.verl.score([]) == []
    with pytest.raises(ValueError, match="empty response"):
        pair.verl.score([((1, 2), ())])


def test_a_minibatch_that_says_nothing_is_a_step_without_change(pair: Pair) -> None:
    pair.reset()
    before = pair.verl.weights_sha256()
    assert before == pair.torch.weights_sha256()
    silent = Minibatch(0, tuple(replace(s, advantage=0.0) for s in rows(pair.torch.codec)))
    done = pair.verl.update(silent, losses()["graft"])
    assert (done["computed_sequences"], done["sequences"], done["loss"], done["grad_norm"]) == (0, 11, 0.0, 0.0)
    assert pair.verl.weights_sha256() == before


def test_a_gradient_that_is_not_finite_takes_no_step_and_is_reported(pair: Pair) -> None:
    pair.reset()
    before = pair.verl.weights_sha256()
    broken = MinibatchLoss(*(infinite,) * 2, losses()["graft"].aggregation)
    done = pair.verl.update(Minibatch(0, rows(pair.torch.codec)), broken)
    assert (done["nonfinite"], done["grad_norm"]) == (1.0, 0.0)
    assert pair.verl.weights_sha256() == before
    assert pair.verl.update(Minibatch(0, rows(pair.torch.codec)), losses()["graft"])["nonfinite"] == 0.0  # it goes on


def infinite(inputs):
    """A loss whose gradient overflows."""
    return inputs.logprobs * inputs.mask * float("inf"), {}
