"""``python -m analysis trajectories``: groups, responses by filter, what a receiver was given and why; errors name the part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis import trajectories as shown
from analysis.__main__ import main
from experiments.run_record import RunRecord
from graft import trajectories
from graft.exchange_report import TransferRow
from graft.types import Group, Prompt, Response, SamplingSettings, Verdict

FACTS = trajectories.Facts(0, SamplingSettings(1.0, 1.0, 9))


def group(model: str, prompt: str, wins: int, step: int) -> Group:
    made = tuple(
        Response((5, 6, 0)[: j + 2], (-0.5, -1.5, -1.0)[: j + 2], f"{model} says {prompt} {step} {j}", "eos", float(j < wins),
                 Verdict(j < wins, "3", "equal" if j < wins else "different"))
        for j in range(2)
    )  # fmt: skip
    return Group(Prompt(prompt, "q", "3"), model, (1,), made)


def record(root: Path, models: list[str], **recipe: Any) -> RunRecord:
    cell = {"method": "graft", "pair": "1", "models": models, "scale": "cpu", "seed": 0}
    full = {"models": [{"name": m} for m in models], "method": {"name": "graft"}} | recipe
    made = RunRecord.create(root, cell=cell, recipe=full, deviations={})
    exchange = [{"source": "b", "receiver": "a", "candidates": 1, "m": 1, "selected": 1, "used": 1, "offered": 2, "admitted": 1}]
    steps = [{"step": k, "models": {m: {} for m in models}, "exchange": exchange} for k in (1, 2)]
    (made.path / "metrics.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    return made


def offered(step: int) -> list[TransferRow]:
    if step == 2:
        return []
    return [
        TransferRow("p1", "b", "a", 0, 1.0, 0.707, 0.91, 0.91, "admitted"),
        TransferRow("p1", "b", "a", 1, 0.0, -0.707, 0.4, None, "below delta"),
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A joint run of a and b: in step 1, a fails p1 and b solves it once; in step 2 nothing moves."""
    made = record(tmp_path, ["a", "b"])
    for step in (1, 2):
        groups = {m: (group(m, "p1", 0 if m == "a" else 1, step), group(m, "p2", 2, step)) for m in "ab"}
        trajectories.append(made.path / "trajectories", step, groups, FACTS)
        trajectories.append_transfers(made.path / "transfers", step, offered(step))
    return made.path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main(["trajectories", *map(str, arguments)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_groups_with_successes_tokens_and_log_prob(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Tokens 2 and 3: mean 2.5. Log-probs -.5 -1.5 -.5 -1.5 -1: mean -1.
    assert said(capsys, run) == [
        "step model prompt correct tokens log-prob",
        *(f"{k} {m} {p} {w}/2 2.5 -1.000" for k in (1, 2) for m in "ab" for p, w in (("p1", 0 if m == "a" else 1), ("p2", 2))),
        "8 groups",
    ]
    assert said(capsys, run, "--step", 2, "--model", "b")[1:] == ["2 b p1 1/2 2.5 -1.000", "2 b p2 2/2 2.5 -1.000", "2 groups"]
    assert said(capsys, run, "--limit", 1)[1:] == ["1 a p1 0/2 2.5 -1.000", "8 groups, the first 1 shown (--limit)"]


def test_responses_by_prompt_and_reward(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, run, "--prompt", "p1", "--reward", 1, "--step", 1) == [
        "step 1 b p1 #0 reward 1 (equal, extracted '3'), eos, log-prob -1.000",
        "b says p1 1 0",
        "1 responses",
    ]
    assert said(capsys, run, "--reward", 0, "--model", "a")[-1] == "4 responses"


def test_what_a_receiver_was_given_and_why(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, run, "--receiver", "a", "--step", 1)
    assert lines == [
        "step 1, a: 2 prompts, 1 without a success",
        "from b: candidates 1, m 1, selected 1, used 1, offered 2, admitted 1",
        "",
        "p1: a 0/2 correct; of b 1 of 2 offered",
        "# reward advantage s w why text",
        "0 1 0.707 0.910 0.910 admitted b says p1 1 0",
        "1 0 -0.707 0.400 - below delta b says p1 1 1",
    ]
    assert said(capsys, run, "--receiver", "b", "--step", 1)[-1].startswith("it was offered nothing")


def test_a_stored_peers_texts_come_from_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = record(tmp_path / "runs", ["a"])
    donor = tmp_path / "elsewhere"
    trajectories.append(donor, 1, {"b": (group("b", "p1", 1, 1),)}, FACTS)
    trajectories.append(made.path / "trajectories", 1, {"a": (group("a", "p1", 0, 1),)}, FACTS)
    trajectories.append_transfers(made.path / "transfers", 1, offered(1))
    noted = {"path": str(donor), "match": "step", "model": "b"}
    (made.path / "donor.json").write_text(json.dumps(noted))
    assert said(capsys, made.path, "--receiver", "a", "--step", 1)[-1].endswith("below delta b says p1 1 1")
    (made.path / "donor.json").write_text(json.dumps(noted | {"match": "prompt"}))
    assert said(capsys, made.path, "--receiver", "a", "--step", 1)[-1].endswith("below delta (not in a log here)")


def test_mistakes_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = run / "trajectories" / "step-000002.parquet"
    torn.write_bytes(torn.read_bytes()[:-8])
    for arguments, says in (
        ((), "step-000002.parquet is torn or was changed"),
        (("--step", 3), "has no step 3; it has steps 1 to 2"),
        (("--receiver", "a"), "--receiver needs --step"),
        (("--receiver", "c", "--step", 1), "trained a, b, not c"),
    ):
        assert main(["trajectories", str(run), *map(str, arguments)]) == 2
        assert says in capsys.readouterr().err
    (run / "trajectories" / "_manifest.json").unlink()
    assert main(["trajectories", str(run)]) == 2
    assert "is torn or no Parquet file" in capsys.readouterr().err


def test_the_manifests_name_is_the_logs() -> None:
    # analysis imports nothing of graft, so it has the name a second time.
    assert trajectories.MANIFEST == shown.MANIFEST
