"""As many responses as pass the floor, drawn from all that were transferred; w = min(s, 1), no floor."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graft.composition import changed
from graft.methods import METHODS
from graft.types import Minibatch
from tests.methods import graft_situations as at

METHOD, GRAFT = METHODS["random_admission"], METHODS["graft"]
SCORES = {"a00": 0.2, "a01": 0.5, "a02": 0.9, "a03": 1.3}


def test_differs_in_the_admission_alone() -> None:
    assert changed(METHOD, GRAFT) == {"admission"}
    assert METHOD.hyperparameters["delta"] == 0.8


@pytest.mark.parametrize(
    ("scores", "count"),
    [([0.79, 0.8, 0.81, 0.95, 1.3], 3), ([0.1, 0.8], 0), ([0.9, 1.1], 2), ([], 0)],  # .8 itself does not pass
)
def test_count_is_that_of_the_strict_floor(scores: list[float], count: int) -> None:
    for seed in range(5):
        got = METHOD.bound("admission")(scores, np.random.default_rng(seed))
        assert len(got) == len(scores)
        assert sum(a.weight is not None for a in got) == count
        assert all(a.weight in (None, min(s, 1.0)) for s, a in zip(scores, got))


def test_each_response_is_drawn_equally_often() -> None:
    # Two of four pass, so each is admitted in half of 400 steps: 200, with a spread of 10.
    seen: Counter[str] = Counter()
    for seed in range(400):
        got = METHOD.bound("admission")(list(SCORES.values()), np.random.default_rng(seed))
        seen.update(name for name, a in zip(SCORES, got, strict=True) if a.weight is not None)
    assert sum(seen.values()) == 800
    assert all(160 < seen[name] < 240 for name in SCORES)


def test_drawn_over_all_groups_of_a_receiver() -> None:
    # a gives p0 and p1; only p0's four pass. Some steps admit responses of p1, although none of p1 passes.
    counts = {"a": (1, 1, 0), "b": (0, 0, 3)}
    low = {f"a1{j}": 0.3 for j in range(4)}
    splits = Counter(
        sum(name.startswith("a1") for name in at.weights(at.moved(METHOD, counts, low, seed=seed), "b")) for seed in range(60)
    )
    assert sum(splits.values()) == 60
    assert set(splits) >= {1, 2, 3}
    assert all(at.direction(at.moved(METHOD, counts, low, seed=s), "a", "b")[5] == 4 for s in range(5))


def admitted(*names: str) -> int:
    """The first seed whose draw is ``names``."""
    return next(s for s in range(200) if tuple(at.weights(at.moved(METHOD, scores=SCORES, seed=s), "b")) == names)


def test_eq_10_of_a_low_draw() -> None:
    # Drawn: a00 (s = .2, the success) and a01 (s = .5). a = 1.5 and -.5 of the full group, on 7 and 9 tokens:
    # J = (.2*1.5*7 - .5*.5*9) / 16 = (2.1 - 2.25) / 16 = -.009375. The gate would have taken the two others.
    got = at.moved(METHOD, scores=SCORES, seed=admitted("a00", "a01"))
    minibatch = at.trained(got, METHOD, "b")[-1]
    assert minibatch.tokens == 16
    assert at.objective(METHOD, minibatch) == pytest.approx(-0.009375, abs=1e-6)
    assert got.report.reasons("b") == {"admitted": 2, "not drawn": 2}


def test_none_pass_none_are_admitted() -> None:
    got = at.moved(METHOD, scores={f"a0{j}": 0.8 * 0.99 for j in range(4)})
    assert at.weights(got, "b") == {}
    assert at.names(at.trained(got, METHOD, "b")) == [["b1"], ["b2"], ["b3"], ["b4"]]


def test_gradient_on_two_responses() -> None:
    # own a = 1, rho 1; peer a = 1.5, w = .2, rho 1.2, 1.3 (clipped). dL/dlogp = -w rho a / 3: -1/3, -.12, 0.
    ratios = [[1], [1.2, 1.3]]
    minibatch = Minibatch(0, (at.row(ratios[0], 1.0), at.row(ratios[1], 1.5, weight=0.2, peer=True)))
    x = at.loss_inputs(minibatch, ratios)
    got = at.flat(at.gradient(METHOD, minibatch, x))
    assert got == pytest.approx([-1 / 3, -0.12, 0], abs=1e-12)
    assert at.flat(at.slopes(METHOD, minibatch, x)) == pytest.approx(got, abs=1e-8)


def test_nothing_moves_without_a_way_back() -> None:
    assert at.moved(METHOD, {"a": (1,), "b": (0,)}).report.rows == ()
