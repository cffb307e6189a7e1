"""Which logged group a stored peer gives for which step, by hand; and what a log that does not fit is told."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import pytest

from graft import trajectories
from graft.stored import Log, LogMismatch, LogPeer, response_of
from graft.trajectories import Facts
from graft.types import Group, Prompt, Response, SamplingSettings

N = 2
FACTS = Facts(0, SamplingSettings(1.0, 1.0, 9))


def write(directory: Path, batches: Seq[Seq[str]], *, n: int = N, models: Seq[str] = ("b",), first: int = 1) -> Log:
    """A log whose step k answers ``batches[k - 1]``; response j of prompt q in step k reads "qkj"."""
    for step, ids in enumerate(batches, first):
        groups = {
            m: tuple(
                Group(
                    Prompt(q, "q", "1"),
                    m,
                    (1,),
                    tuple(Response((9, j), (-1.0, -2.0), f"{q}{step}{j}", "eos", float(j)) for j in range(n)),
                )
                for q in ids
            )
            for m in models
        }
        trajectories.append(directory, step, groups, FACTS)
    return Log.of(directory)


def prompts(ids: Seq[str]) -> list[Prompt]:
    return [Prompt(q, "question", "1") for q in ids]


def texts(groups: Seq[Group]) -> list[str]:
    return [r.text for g in groups for r in g.responses]


SCHEDULE = (("x", "y"), ("z", "x"), ("y", "z"))


def test_by_step(tmp_path: Path) -> None:
    log = write(tmp_path, SCHEDULE, models=("a", "b"))
    peer = LogPeer(log, "b", N, "step", SCHEDULE)
    peer.check(logprobs=True)
    got = peer.groups(2, prompts(SCHEDULE[1]))
    assert texts(got) == ["z20", "z21", "x20", "x21"]
    assert [(g.model, g.prompt.message, g.rewards) for g in got] == [("b", "question", (0.0, 1.0))] * 2
    assert got[0].responses[1].logprobs == (-1.0, -2.0)
    assert got[0].responses[1].ids == (9, 1)
    assert log.models() == ("a", "b")
    assert log.sampling() == FACTS.sampling


def test_by_prompt_takes_the_kth_occurrence(tmp_path: Path) -> None:
    # The log met them in another order and in other steps: x in 1 and 3, y in 1 and 2, z in 2 and 3.
    peer = LogPeer(write(tmp_path, (("y", "x"), ("y", "z"), ("x", "z"))), "b", N, "prompt", SCHEDULE)
    peer.check(logprobs=True)
    assert texts(peer.groups(1, prompts(SCHEDULE[0]))) == ["x10", "x11", "y10", "y11"]
    assert texts(peer.groups(2, prompts(SCHEDULE[1]))) == ["z20", "z21", "x30", "x31"]
    assert texts(peer.groups(3, prompts(SCHEDULE[2]))) == ["y20", "y21", "z30", "z31"]


def test_by_prompt_needs_as_many_occurrences(tmp_path: Path) -> None:
    peer = LogPeer(write(tmp_path, (("x", "y"), ("z",))), "b", N, "prompt", SCHEDULE)
    with pytest.raises(LogMismatch, match=r"holds prompt 'x' 1 times, and the run needs it for the 2. time in step 2"):
        peer.check(logprobs=True)


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        (
            (("x", "y"), ("x", "z"), ("y", "z")),
            r"step 2 .* position 0 is 'x' in the log and 'z' in the run \(2 of 2 prompts are in both\)",
        ),
        ((("x", "y"), ("z", "w"), ("y", "z")), r"step 2 .* position 1 is 'w' in the log and 'x' in the run \(1 of 2"),
        ((("x", "y"), ("z",), ("y", "z")), "step 2 .* position 1 is None in the log and 'x' in the run"),
        ((("x", "y"), ("z", "x", "w"), ("y", "z")), "step 2 .* position 2 is 'w' in the log and None in the run"),
        (SCHEDULE[:2], "has no step 3: it holds steps 1 to 2, and the run has 3 steps"),
    ],
)
def test_another_order_is_told_at_its_first_step(tmp_path: Path, batches: Seq[Seq[str]], says: str) -> None:
    peer = LogPeer(write(tmp_path, batches), "b", N, "step", SCHEDULE)
    with pytest.raises(LogMismatch, match=says):
        peer.check(logprobs=True)


def test_a_missing_step_and_a_torn_last_part_are_told(tmp_path: Path) -> None:
    log = write(tmp_path, SCHEDULE)
    torn = tmp_path / "step-000003.parquet"
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(trajectories.BrokenLog, match=r"step-000003.parquet is torn"):
        LogPeer(log, "b", N, "step", SCHEDULE).check(logprobs=True)
    # A run that ends before it does not need it.
    LogPeer(log, "b", N, "step", SCHEDULE[:2]).check(logprobs=True)
    (tmp_path / "step-000002.parquet").unlink()
    with pytest.raises(trajectories.BrokenLog, match=r"step-000002.parquet is missing"):
        LogPeer(log, "b", N, "step", SCHEDULE).check(logprobs=True)


def test_group_sizes(tmp_path: Path) -> None:
    peer = LogPeer(write(tmp_path, SCHEDULE, n=3), "b", N, "step", SCHEDULE)
    with pytest.raises(LogMismatch, match=r"step 1 .*must have n = 2 responses, and prompt 'x' 3, 'y' 3 there"):
        peer.check(logprobs=True)
    with pytest.raises(LogMismatch, match="holds 3 responses to prompt 'x', not 2"):
        peer.groups(1, prompts(SCHEDULE[0]))


def test_an_empty_directory_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogMismatch, match="holds no trajectory log"):
        Log.of(tmp_path)


def test_without_ids_the_mean_of_the_log_probs_is_kept() -> None:
    row = {"text": "t", "ids": None, "logprobs": [-1.0, -2.0, -6.0], "mean_logprob": None, "finish_reason": None, "reward": None}
    got = response_of(row)
    assert (got.ids, got.logprobs, got.mean_logprob, got.finish_reason) == ((), (), -3.0, "length")
    assert response_of(row | {"logprobs": None, "mean_logprob": -0.25}).mean_logprob == -0.25
    assert response_of(row | {"logprobs": None}).mean_logprob is None
