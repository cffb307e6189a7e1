"""What picking the checkpoint brings, worked by hand on three small runs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.collect import open_runs
from analysis.selection_audit import audit, by_rule, to_csv, to_page
from analysis.writers import to_latex, to_markdown
from experiments.run_record import RunRecord, UserError

from .conftest import Runs, Verdict, share

QWEN, MODEL = ("qwen3-1.7b",), "tiny-qwen3"


def make(runs: Runs, verdict: Verdict, curve: dict[int, float], step: int, *, rule: str = "best", **kwargs: Any) -> RunRecord:
    """A finished GRPO run of one model with this validation curve (average, 0..1) that selected ``step`` by ``rule``."""
    deviations = {} if rule == "best" else {"training.selection": rule}
    deviations |= {"data.validation.source": "arith-validation"} if rule == "held_out" else {}
    extra = {"models": QWEN, "pair": None, "training": {"selection": rule}, "deviations": deviations} | kwargs
    record = runs.make("grpo", verdict, **extra)
    rows = [
        {"step": s, "model": MODEL, "benchmark": b, "pass@1": v} for s, v in curve.items() for b in ("arith-large", "average")
    ]
    (record.path / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (record.path / "selected.json").write_text(json.dumps({MODEL: {"step": step, "score": curve[step], "rule": rule}}))
    return record


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of these tests name their method in the cell alone."""
    monkeypatch.setattr(RunRecord, "trains", property(lambda self: self.config["cell"]["method"] != "base"))


CURVE = {5: 0.30, 10: 0.60, 15: 0.45, 20: 0.50}


def test_one_run_by_hand(runs: Runs):
    # evaluation: 2 of 4, then 3 of 4 on the first benchmark, 1 of 4 on the second: averages 37.5 and 50 -> 43.75 +- 8.838835
    make(runs, lambda m, b, run, i, sample: sample < (1 if b == "arith-large" else 2 + run), CURVE, 10)
    (one,) = audit(open_runs(runs.root))
    assert (one.selected_step, one.last_step, one.validations, one.rule) == (10, 20, 4, "best")
    # last third of 4 validations, rounded up: 2 -> (45 + 50) / 2 = 47.5
    assert (one.picked, one.last, one.last_third) == pytest.approx((60.0, 50.0, 47.5))
    assert (one.evaluated.mean, one.evaluated.n, one.evaluated.N) == (43.75, 2, 2)
    # promised 60 - 50 = 10; brought 43.75 - 50 = -6.25; regressed 60 - 43.75 = 16.25; -6.25 + 16.25 = 10
    assert one.differences == pytest.approx((10.0, -6.25, 16.25))


def test_means_over_runs_and_csv(runs: Runs):
    make(runs, share(2), CURVE, 10)
    # a second training seed: best is the last step; evaluated 75
    make(runs, share(3), {5: 0.4, 10: 0.7}, 10, cell={"seed": 1})
    found = audit(open_runs(runs.root))
    page = to_page(found, "cpu")
    (part,) = page.parts
    assert part.title == "Rule best (2 models of runs)"
    # seed 0: 10, 50 - 50 = 0, 60 - 50 = 10; seed 1: 0, 75 - 70 = 5, 70 - 75 = -5; means 5, 2.5, 2.5
    assert [item.strong for item in part.lines[-1].items][6:] == ["+5.00", "+2.50", "+2.50"]
    assert (
        "| grpo alone seed 1: tiny-qwen3 | 10/10 | 70.00 | 70.00 | 70.00 | 75.00 ± 0.00 | 2/2 | 0.00 | +5.00 | -5.00 |"
        in to_markdown(page)
    )
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [(x["seed"], x["receiver"], x["selected_step"], x["picked_minus_evaluated"]) for x in rows] == [
        ("0", "qwen3-1.7b", "10", "10.0"),
        ("1", "qwen3-1.7b", "10", "-5.0"),
    ]
    assert any("No method on record was run under more than one rule" in note for note in page.notes)


def test_rules_side_by_side(runs: Runs):
    make(runs, share(3), CURVE, 10)
    make(runs, share(2), CURVE, 20, rule="last")
    make(runs, share(1), CURVE, 15, rule="held_out")
    make(runs, share(1), CURVE, 10, cell={"seed": 7})  # one rule alone: not in this part
    found = audit(open_runs(runs.root))
    page = to_page(found, "cpu")
    assert [part.title for part in page.parts] == [
        "Rule last (1 models of runs)",
        "Rule best (2 models of runs)",
        "Rule held_out (1 models of runs)",
        "Evaluated under each rule",
    ]
    (line,) = page.parts[-1].lines
    # evaluated 50, 75, 25: best is 25 above last and 50 above held-out
    assert [i.strong for i in line.items] == ["50.00", "75.00", "25.00", "+25.00", "+50.00"]
    assert not any("No method on record" in note for note in page.notes)
    assert to_latex(page).count(r"\begin{tabular}") == 4


def test_short_evaluations_have_no_difference_and_no_mean(runs: Runs):
    record = make(runs, share(2), CURVE, 10)
    runs.write(record, MODEL, "arith-large", 1, runs.read(record, MODEL, "arith-large", 1)[:-1])
    make(runs, share(2), CURVE, 10, cell={"seed": 1})
    found = audit(open_runs(runs.root))
    assert found[0].differences == (pytest.approx(10.0), None, None)
    assert [i.strong for i in to_page(found, "cpu").parts[0].lines[-1].items][6:] == ["+10.00", "—", "—"]


def test_untrained_and_unfinished_runs_take_no_part(runs: Runs):
    make(runs, share(2), CURVE, 10)
    runs.make("base", share(4), models=QWEN, pair=None)
    make(runs, share(2), CURVE, 10, cell={"seed": 1}, done=False)
    assert len(audit(open_runs(runs.root))) == 1


def test_what_does_not_fit_is_named(runs: Runs, capsys):
    argv = ["selection-audit", "--root", str(runs.root.parent)]
    assert main(argv) == 2
    assert "no finished training run at scale=cpu" in capsys.readouterr().err
    record = make(runs, share(2), CURVE, 10)
    (record.path / "selected.json").write_text(json.dumps({MODEL: {"step": 11, "score": 0.6, "rule": "best"}}))
    assert main(argv) == 2
    assert "selected.json says step 11 of tiny-qwen3" in capsys.readouterr().err
    make(runs, share(2), CURVE, 10)
    make(runs, share(2), CURVE, 10, learning_rate=2)
    with pytest.raises(UserError, match="two finished runs of grpo alone seed 0 select by best"):
        by_rule(audit(open_runs(runs.root)))


def test_command_prints_and_writes(runs: Runs, tmp_path, capsys):
    make(runs, share(2), CURVE, 10)
    argv = ["selection-audit", "--root", str(runs.root.parent)]
    for style, text in (("term", "evaluated - last"), ("md", "### Rule best"), ("csv", "method,deviations,pair")):
        assert main([*argv, "--format", style, "--out", str(tmp_path)]) == 0
        assert text in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "cpu").iterdir()} == {f"selection_audit.{s}" for s in ("md", "tex", "csv")}
