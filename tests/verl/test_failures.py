"""What becomes of a model when a process under it fails. Two ranks: the one that lives must not be waited for for ever."""

from __future__ import annotations

import time

import pytest

from graft.methods import METHODS
from graft.policies.base import EngineFailure
from graft.types import Minibatch
from tests.verl.test_update_parity import rows

pytestmark = pytest.mark.verl


def test_a_dead_rank_ends_the_step_at_once_and_says_so(opened) -> None:
    import ray

    (policy,) = opened(["quick"], samples=False, gpus=2).values()
    minibatch, loss = Minibatch(0, rows(policy.codec)), METHODS["grpo"].loss()
    policy.update(minibatch, loss)
    ray.kill(policy.actors()[1])
    started = time.monotonic()
    with pytest.raises(EngineFailure, match=r"train_rows of quick: .*died"):
        policy.update(minibatch, loss)
    assert time.monotonic() - started < 60
    assert policy.session.broken


def test_a_checkpoint_of_another_number_of_gpus_is_refused(opened, tmp_path) -> None:
    (two,) = opened(["quick"], samples=False, gpus=2).values()
    two.save(tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        f"{what}.rank-{rank}-of-2.safetensors" for what in ("optimiser", "weights") for rank in (0, 1)
    ]
    (one,) = opened(["quick"], samples=False, gpus=1).values()
    with pytest.raises(ValueError, match=r"was saved on 2 GPUs and this run has 1 for quick; resume with the same policy\.gpus"):
        one.load(tmp_path)


def test_an_error_of_the_code_is_no_failure_of_the_machine(opened) -> None:
    import ray

    (policy,) = opened(["quick"], samples=False).values()
    with pytest.raises(ray.exceptions.RayTaskError, match="out of range"):
        policy.score([((10**6,), (3,))])  # no such token
    assert not policy.session.broken
    assert len(policy.score([((3,), (4,))])) == 1  # and the model goes on
