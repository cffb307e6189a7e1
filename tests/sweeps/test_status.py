"""What `status`, `plan` and a waiting launch say."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from experiments.config import load_config
from experiments.errors import UserError
from experiments.paper_costs import Estimate
from experiments.progress import Display
from sweeps import plan, status
from sweeps.plan import Line, lacks
from sweeps.status import counts, duration, show, to_json, watch
from sweeps.survey import Standing
from tests.sweeps.made import made_record

RUNNING = Standing("run-a", "f" * 64, "running", 2, 30, 174, 5400.0, 0.25, 12.5, "GPU", "", "17_3", "/r/0.log")
FAILED = Standing("run-b", "e" * 64, "failed", 1, 3, 174, None, None, 0.5, "GPU", "ValueError: x", "17_4", "/r/1.log")


def printed(action) -> str:
    text = io.StringIO()
    action(Console(file=text, width=240))
    return text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (99.4, "99 s"), (100, "2 min"), (5400, "90 min"), (5999, "1 h 40"), (36300, "10 h 05")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts() -> None:
    assert counts([RUNNING, FAILED, RUNNING]) == "2 running, 1 failed"
    assert counts([]) == "no run"


def test_a_table_shows_how_far_and_why_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {k}\n" for k in range(9)) + "[red]ValueError[/red]: x\n")
    failed = Standing(**{**FAILED.__dict__, "log": str(log)})
    lines = printed(lambda console: show([RUNNING, failed], console)).splitlines()
    assert lines[1].split() == ["run-a", "running", "2", "30/174", "90", "min", "0.25", "12.50", "GPU", "17_3", "/r/0.log"]
    assert lines[2].split()[:4] == ["run-b", "failed", "1", "3/174"]
    assert "ValueError: x" in lines[2]
    assert "1 running, 1 failed" in lines
    # The last 5 lines of the failed run's log, as they are.
    assert lines[-5:] == ["line 5", "line 6", "line 7", "line 8", "[red]ValueError[/red]: x"]


def test_json_has_every_field_and_reads_back() -> None:
    assert json.loads(to_json([RUNNING, FAILED])) == [RUNNING.__dict__, FAILED.__dict__]


def test_a_waiting_launch_survives_a_scheduler_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued, no answer, running, done: a line for each change, and 0 only because all are done."""
    states = iter(["queued", "away", "running", "running", "done"])

    def look(_: object) -> list[Standing]:
        state = next(states)
        if state == "away":
            raise UserError("squeue: Unable to contact slurm controller")
        return [Standing("run-a", "f", state)]

    monkeypatch.setattr(status, "look", look)
    monkeypatch.setattr(status, "WATCH_S", 0.0)
    text = io.StringIO()
    assert watch([made_record(tmp_path)], Display(Console(file=text, width=240))) == 0
    said = [line.split(" ", 1)[1] for line in text.getvalue().splitlines()[:4]]
    assert said == ["run-a: queued", "squeue: Unable to contact slurm controller; asking again", "run-a: running", "run-a: done"]


def test_a_waiting_launch_ends_with_1_when_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "look", lambda _: [FAILED, Standing("run-a", "f", "done")])
    assert watch([made_record(tmp_path)], Display(Console(file=io.StringIO()))) == 1


def test_what_a_run_lacks(tmp_path: Path) -> None:
    from sweeps.cells import Request

    runs, _ = Request("table8", "smoke", (), (), ["grpo_n8"], [f"runs_root={tmp_path}"]).runs()
    run, options = next(iter(runs.values()))
    path = options.experiment_root / run.name
    assert lacks(path, run, Standing(run.name, run.fingerprint, "missing")) == "training, 10 of 10 evaluation files"
    assert lacks(path, run, Standing(run.name, run.fingerprint, "failed", step=2)).startswith("training from step 3, ")
    (path / "eval" / "m" / "b").mkdir(parents=True)
    (path / "selected.json").touch()
    (path / "eval" / "m" / "b" / "run0.jsonl").touch()
    assert lacks(path, run, Standing(run.name, run.fingerprint, "interrupted")) == "9 of 10 evaluation files"
    assert lacks(path, run, Standing(run.name, run.fingerprint, "done")) == ""


def test_a_plan_is_a_table_with_its_sources() -> None:
    cluster = load_config(["cluster=slurm"]).cluster
    line = Line(RUNNING, 4, Estimate(43.3, "paper, table 5"), "training from step 31, 10 of 10 evaluation files")
    text = printed(lambda console: plan.show([line], [], cluster, console)).splitlines()
    assert text[0].split() == ["#", "run", "state", "lacks", "GPUs", "GPU-h", "estimate", "from"]
    words = "1 run-a running training from step 31, 10 of 10 evaluation files 4 43.3 paper, table 5"
    assert " ".join(text[1].split()) == words
    assert text[2:] == ["1 runs: 1 running", "still to spend: 43.3 GPU-hours by estimate", "spent so far: 12.5 device-hours"]
    (read,) = json.loads(plan.to_json([line]))
    assert (read["name"], read["devices"], read["estimate_hours"], read["lacks"]) == ("run-a", 4, 43.3, line.lacks)


def test_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    """Rich would take them for markup: a folder would lose a part of its name."""
    cluster = load_config(["cluster=slurm"]).cluster
    failed = Standing(**{**FAILED.__dict__, "reason": "KeyError: [bold]", "log": str(tmp_path / "a[x]" / "0.log")})
    line = Line(failed, 4, Estimate(1.0, "paper"), "training")
    text = io.StringIO()
    Display(Console(file=text, width=240)).say("writing to /r [x]/[/y]")
    assert text.getvalue() == "writing to /r [x]/[/y]\n"
    shown = printed(lambda console: show([failed], console))
    assert shown.count("/a[x]/0.log") == 2
    assert "KeyError: [bold]" in shown
    assert "failed: KeyError: [bold]" in printed(lambda console: plan.show([line], [], cluster, console))
