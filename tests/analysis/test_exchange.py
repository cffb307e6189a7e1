"""Who taught whom, by hand, and the runs in which nothing was exchanged."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.exchange import load, to_csv
from experiments.run_record import UserError

from .conftest import Runs, share

S, Q = "tiny-smollm3", "tiny-qwen3"
NONE = {S: (1, 0, 0, 0), Q: (1, 0, 0, 0)}


def row(source: str, receiver: str, counts: tuple[int, ...], weight: float | None, **reasons: int) -> dict:
    keys = ("candidates", "m", "selected", "used", "offered", "admitted")
    reasons = {k.replace("_", " "): v for k, v in reasons.items()}
    return {
        "source": source,
        "receiver": receiver,
        **dict(zip(keys, counts, strict=True)),
        "weight_mean": weight,
        "reasons": reasons,
    }


EXCHANGE = [
    [row(S, Q, (3, 2, 2, 2, 16, 10), 0.9, admitted=10, below_delta=6), row(Q, S, (2, 2, 3, 3, 24, 0), None, below_delta=24)],
    [row(S, Q, (1, 1, 1, 1, 8, 2), 0.6, admitted=2, empty=6), row(Q, S, (1, 1, 1, 1, 8, 0), None, below_delta=8)],
]


def test_sums_by_hand(runs: Runs, capsys):
    record = runs.make("graft", share(1))
    runs.metrics(record, [NONE, NONE], EXCHANGE)
    assert main(["exchange", "--run", str(record.path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    columns = "source,receiver,steps,candidates,m,selected,used,offered,admitted,weight_mean,reason,responses"
    assert list(rows[0]) == columns.split(",")
    totals = {(r["source"], r["receiver"]): list(r.values())[2:10] for r in rows if not r["reason"]}
    # smollm3 -> qwen3: 3 + 1, 2 + 1, 2 + 1, 2 + 1, 16 + 8, 10 + 2; weights (10 x 0.9 + 2 x 0.6) / 12 = 0.85
    assert totals[S, Q] == ["2", "4", "3", "3", "3", "24", "12", "0.85"]
    # nothing was admitted the other way: no mean weight
    assert totals[Q, S] == ["2", "3", "3", "4", "4", "32", "0", ""]
    reasons = {(r["source"], r["reason"]): r["responses"] for r in rows if r["reason"]}
    assert reasons == {(S, "admitted"): "12", (S, "below delta"): "6", (S, "empty"): "6", (Q, "below delta"): "32"}


def test_terminal_and_markdown(runs: Runs, capsys):
    record = runs.make("graft", share(1))
    runs.metrics(record, [NONE, NONE], EXCHANGE)
    assert main(["exchange", "--run", str(record.path), "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert "| tiny-smollm3 -> tiny-qwen3 | 4 | 3 | 3 | 3 | 24 | 12 | 0.850 |" in text
    # columns: qwen3 -> smollm3, smollm3 -> qwen3; 6 of 24 = 25 %
    assert "| below delta | 32 (100.0 %) | 6 (25.0 %) |" in text
    assert main(["exchange", "--run", str(record.path)]) == 0
    assert "Sums over 2 steps" in capsys.readouterr().out


def test_steps_in_which_nothing_was_offered(runs: Runs, capsys):
    record = runs.make("graft", share(1))
    runs.metrics(record, [NONE], [[row(S, Q, (0, 0, 0, 0, 0, 0), None), row(Q, S, (1, 0, 0, 0, 0, 0), None)]])
    _, directions, steps = load(record.path)
    assert steps == 1
    assert to_csv(directions).splitlines()[1:] == [f"{Q},{S},1,1,0,0,0,0,0,,,", f"{S},{Q},1,0,0,0,0,0,0,,,"]
    assert main(["exchange", "--run", str(record.path)]) == 0
    assert "tiny-qwen3 -> tiny-smollm3" in capsys.readouterr().out


def test_runs_without_exchange_are_refused(runs: Runs, tmp_path: Path, capsys):
    joint = runs.make("graft", share(1))
    with pytest.raises(UserError, match=r"has no metrics\.jsonl"):
        load(joint.path)
    runs.metrics(joint, [NONE])
    with pytest.raises(UserError, match="holds no exchange row in 1 steps"):
        load(joint.path)
    alone = runs.make("grpo", share(1), models=("qwen3-1.7b",), pair=None)
    assert main(["exchange", "--run", str(alone.path)]) == 2
    assert "grpo trained tiny-qwen3 alone; nothing was exchanged" in capsys.readouterr().err
    assert main(["exchange", "--run", str(tmp_path / "nowhere")]) == 2
    assert "is not a run directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("source"), r"metrics\.jsonl:2: an exchange row names its source"),
        (lambda r: r.update(offered="8"), r"metrics\.jsonl:2: offered is '8', expected a count"),
        (lambda r: r.pop("used"), r"metrics\.jsonl:2: used is None"),
        (lambda r: r.update(weight_mean=None), r"metrics\.jsonl:2: weight_mean is None with 2 admitted"),
        (lambda r: r.update(reasons=None), r"metrics\.jsonl:2: reasons is None"),
        (lambda r: r.update(reasons={"admitted": -1}), r"metrics\.jsonl:2: admitted is -1"),
    ],
)
def test_bad_rows_are_refused_with_file_and_line(runs: Runs, change, message: str):
    record = runs.make("graft", share(1))
    exchange = json.loads(json.dumps(EXCHANGE))
    change(exchange[1][0])
    runs.metrics(record, [NONE, NONE], exchange)
    with pytest.raises(UserError, match=message):
        load(record.path)
