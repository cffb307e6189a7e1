"""``python -m analysis selection-audit --scale cpu``: how much of each score comes from picking the best checkpoint on the benchmarks.

The paper validates every five steps on the five benchmarks themselves and reports the best checkpoint. A maximum over noisy
validations is too high; a fresh evaluation of the checkpoint that it picked is not. Per run and model, in percent points:

    picked - last            = what the validation curve promises: validated at the selected step minus validated at the last step
    evaluated - last         = what picking brought: evaluation runs of the selected checkpoint minus validated at the last step
    picked - evaluated       = regression to the mean: what the promise loses on independent samples

The first is the sum of the other two. Validation samples as evaluation does, from other seeds, and which step is the last is fixed
in advance: over many runs its validation is an unbiased score of the last checkpoint. Of one run it is not (where the last step was
picked, its noise was upward), so the means over runs are what to read. Where the same method was run under several rules (last, best,
held_out), their evaluations stand side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.collect import Match, open_runs
from analysis.evidence import gather
from analysis.figures.curves import curve_points
from analysis.footer import SCALES, commits, scale_note
from analysis.page import DASH, Item, Line, Page, Part, Span, csv_number, csv_text, number
from analysis.spec import AVERAGE
from analysis.stats import mean_and_std
from analysis.tables import Cell, measure_cell
from analysis.terminal import print_page
from analysis.writers import to_markdown, write_all
from experiments.files import read_json
from experiments.run_record import RunRecord, UserError

RULES = ("last", "best", "held_out")
# Keys in which runs under different rules differ, and which are therefore no difference between methods.
RULE_KEYS = ("training.selection", "data.validation")
DIFFERENCES = ("picked - last", "evaluated - last", "picked - evaluated")
CSV_COLUMNS = (
    *("method", "deviations", "pair", "seed", "receiver", "model", "rule", "validations", "selected_step", "last_step"),
    *("picked", "last", "last_third", "evaluated", "std", "n", "N"),
    *(name.replace(" - ", "_minus_") for name in DIFFERENCES),
    "run",
)


@dataclass(frozen=True)
class Audited:
    """One model of one run. Scores are averages over the benchmarks in percent, unrounded.

    ``picked``, ``last``, ``last_third``: validated at the selected step, at the last step, and on average over the last third of the
    validations (rounded up). ``evaluated``: over the evaluation runs of the selected checkpoint, without a mean if none is whole.
    """

    record: RunRecord
    model: str
    receiver: str
    rule: str
    validations: int
    selected_step: int
    last_step: int
    picked: float
    last: float
    last_third: float
    evaluated: Cell

    @property
    def method(self) -> str:
        """What was run but for the rule: method and its deviations, pair, seed."""
        cell = self.record.config["cell"]
        deviations = json.dumps(self.deviations, sort_keys=True) if self.deviations else ""
        pair = f"pair {cell['pair']}" if cell["pair"] is not None else "alone"
        return " ".join(x for x in (cell["method"], deviations, pair, f"seed {cell['seed']}") if x)

    @property
    def deviations(self) -> Mapping[str, object]:
        """The run's deviations but for the rule."""
        return {k: v for k, v in self.record.config["deviations"].items() if not k.startswith(RULE_KEYS)}

    @property
    def differences(self) -> tuple[float | None, float | None, float | None]:
        """In the order of ``DIFFERENCES``; None without a whole evaluation."""
        mean = self.evaluated.mean if self.evaluated.state == "whole" else None
        if mean is None:
            return self.picked - self.last, None, None
        return self.picked - self.last, mean - self.last, self.picked - mean


def audit(records: Sequence[RunRecord]) -> list[Audited]:
    """Every model of the finished training runs among the records, by method, pair, seed, model, then rule."""
    trained = [r for r in records if r.done and r.trains]
    evidence = gather(Match(r, ()) for r in trained)
    found = []
    for record in trained:
        selected = read_json(record.path / "selected.json")
        for model in record.config["recipe"]["models"]:
            cell = measure_cell(record, evidence.rows_of(record, model["stands_for"]), model["stands_for"], AVERAGE)
            found.append(_audited(record, model, selected[model["name"]], cell))
    return sorted(found, key=lambda a: (a.method, a.model, RULES.index(a.rule)))


def _audited(record: RunRecord, model: Mapping[str, str], selected: Mapping[str, object], cell: Cell) -> Audited:
    steps, values = curve_points(record, model["stands_for"])
    curve = dict(sorted(zip(steps, (100 * v for v in values), strict=True)))
    step = selected["step"]
    if step not in curve:
        raise UserError(f"{record.path}: selected.json says step {step} of {model['name']}, which validation.jsonl does not have")
    scores = list(curve.values())
    third = -(-len(scores) // 3)
    return Audited(
        record=record,
        model=model["name"],
        receiver=model["stands_for"],
        rule=str(selected["rule"]),
        validations=len(scores),
        selected_step=int(step),
        last_step=max(curve),
        picked=curve[step],
        last=scores[-1],
        last_third=float(np.mean(scores[-third:])),
        evaluated=cell,
    )


def by_rule(found: Sequence[Audited]) -> dict[tuple[str, str], dict[str, Audited]]:
    """(method, model) -> rule -> run, where more than one rule was run. UserError for two runs of one method under one rule."""
    groups: dict[tuple[str, str], dict[str, Audited]] = {}
    for one in found:
        mine = groups.setdefault((one.method, one.model), {})
        if one.rule in mine:
            raise UserError(
                f"two finished runs of {one.method} select by {one.rule}: {mine[one.rule].record.path} and {one.record.path}. "
                "Move the one that is not wanted to another experiment's folder."
            )
        mine[one.rule] = one
    return {key: rules for key, rules in groups.items() if len(rules) > 1}


def to_page(found: Sequence[Audited], scale: str) -> Page:
    """The runs, with the means of the differences under each rule; then the rules side by side."""
    parts = [_runs_part(rule, [a for a in found if a.rule == rule]) for rule in RULES if any(a.rule == rule for a in found)]
    rules = by_rule(found)
    if rules:
        parts.append(_rules_part(rules))
    used = list({a.record.path: a.record for a in found}.values())
    title = "What picking the checkpoint brings"
    return Page(
        name="selection_audit",
        folder=scale,
        heading=f"{title} (scale {scale})",
        title=title,
        caption="Averages over the benchmarks in percent; each model of each finished run.",
        parts=tuple(parts),
        notes=(
            scale_note(scale, paper=False),
            "picked, last, last third: validated at the selected step, at the last step, and the mean over the last third of the "
            "validations. evaluated: mean ± sample std (n-1) over the evaluation runs of the selected checkpoint, independent of the "
            "validation that picked it. n/N = evaluation runs complete / asked for.",
            "picked - last is what the validation curve promises; it is the sum of evaluated - last (what picking brought) and "
            "picked - evaluated (regression to the mean). Read the means: in a single run they share the noise of its validations.",
            "The benchmarks that the paper reports are those that rule best picks on. Rule held_out picks on prompts of no benchmark; "
            "rule last picks nothing."
            + ("" if rules else " No method on record was run under more than one rule, so they cannot stand side by side; "
               "run one again with scale.training.selection=last or held_out."),
            f"Commits: {commits(used)}. {DASH} = no value.",
        ),
    )  # fmt: skip


def _runs_part(rule: str, found: Sequence[Audited]) -> Part:
    lines = []
    for one in found:
        steps = Item(f"{one.selected_step}/{one.last_step}")
        scores = [Item(number(v, 2)) for v in (one.picked, one.last, one.last_third)]
        cell = one.evaluated
        spread = Item(number(cell.mean, 2), "" if cell.mean is None else f" ± {number(cell.std, 2)}")
        differences = [Item(number(v, 2, sign=True)) for v in one.differences]
        lines.append(Line(f"{one.method}: {one.model}", (steps, *scores, spread, Item(f"{cell.n}/{cell.N}"), *differences)))
    blank = tuple(Item("") for _ in range(6))
    lines.append(
        Line("mean", (*blank, *(Item(number(_mean([a.differences[k] for a in found]), 2, sign=True)) for k in range(3))))
    )
    heads = ("step", "picked", "last", "last third", "evaluated", "n/N", *DIFFERENCES)
    return Part(f"Rule {rule} ({len(found)} models of runs)", (Span("", heads),), tuple(lines))


def _mean(values: Sequence[float | None]) -> float | None:
    """None unless every value is there: a mean over fewer runs is another mean."""
    whole = [v for v in values if v is not None]
    return mean_and_std(np.array(whole))[0] if whole and len(whole) == len(values) else None


def _rules_part(rules: Mapping[tuple[str, str], Mapping[str, Audited]]) -> Part:
    """Evaluated scores under each rule, and how far the best is above the others."""
    lines = []
    for (method, model), mine in rules.items():
        means = {rule: a.evaluated.mean if a.evaluated.state == "whole" else None for rule, a in mine.items()}
        items = [
            Item(number(mine[r].evaluated.mean, 2), f" ± {number(mine[r].evaluated.std, 2)}")
            if means.get(r) is not None
            else Item(DASH)
            for r in RULES
        ]
        best = means.get("best")
        above = [None if best is None or means.get(r) is None else best - means[r] for r in ("last", "held_out")]
        lines.append(Line(f"{method}: {model}", (*items, *(Item(number(v, 2, sign=True)) for v in above))))
    return Part("Evaluated under each rule", (Span("", (*RULES, "best - last", "best - held_out")),), tuple(lines))


def to_csv(found: Sequence[Audited]) -> str:
    """One line per run and model, in percent points."""
    rows = []
    for a in found:
        cell = a.record.config["cell"]
        deviations = json.dumps(a.deviations, sort_keys=True) if a.deviations else ""
        head = (cell["method"], deviations, cell["pair"] or "", str(cell["seed"]), a.receiver, a.model, a.rule)
        steps = (str(a.validations), str(a.selected_step), str(a.last_step))
        scores = map(csv_number, (a.picked, a.last, a.last_third, a.evaluated.mean, a.evaluated.std))
        counts = (str(a.evaluated.n), str(a.evaluated.N))
        rows.append((*head, *steps, *scores, *counts, *map(csv_number, a.differences), a.record.path.name))
    return csv_text(CSV_COLUMNS, rows)


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    parser = argparse.ArgumentParser(prog="python -m analysis selection-audit", description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", choices=sorted(SCALES), default="cpu")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the runs under --root (default: paper)")
    parser.add_argument("--format", choices=["term", "md", "csv"], default="term", help="what is printed (default: term)")
    parser.add_argument("--out", type=Path, help="also write OUT/<scale>/selection_audit.{md,tex,csv}")
    args = parser.parse_args(argv)
    root = args.root / args.experiment
    found = audit([r for r in open_runs(root) if r.config["cell"]["scale"] == args.scale])
    if not found:
        raise UserError(f"no finished training run at scale={args.scale} under {root}; see --root, --experiment and --scale")
    page, csv = to_page(found, args.scale), to_csv(found)
    written = write_all(page, csv, args.out) if args.out else []
    if args.format == "term":
        print_page(page)
    else:
        sys.stdout.write(csv if args.format == "csv" else to_markdown(page))
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    return 0
