"""``python -m analysis quality --run <run directory>``: what stands beside pass@1 in the evaluation rows of one run.

pass@k, the majority vote, and how responses went wrong without being wrong answers: cut off, no box, not parsed, timed out. Each
value is a mean over the evaluation runs with their sample std, from whole evaluation runs only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.collect import eval_file, runs_asked
from analysis.page import DASH, Item, Line, Page, Part, Span, csv_number, csv_text, number
from analysis.schema import check_row
from analysis.stats import aggregate, majority, mean_and_std, pass_at_k, run_means
from analysis.terminal import print_page
from analysis.writers import to_markdown
from experiments.run_record import RunRecord, UserError, read_jsonl

KS = (1, 2, 4, 8)
AVERAGE = "average"
# Verdicts that are no judgement of an answer; the words are the verifier's (docs/metrics.md).
FAILURES = ("boxed missing", "parse error", "too large", "timeout", "worker died")
UNKNOWN = "unknown"  # finish reason of rows whose source did not say it
CSV_COLUMNS = ("model", "benchmark", "metric", "mean", "std", "n", "N")
Row = Mapping[str, Any]
# One benchmark of one model: metric -> values [whole evaluation runs], None where the rows do not say it.
Values = dict[str, np.ndarray | None]


@dataclass(frozen=True)
class Quality:
    """One model's metrics on one benchmark (or their average), from ``n`` whole of ``N`` evaluation runs asked for."""

    model: str
    benchmark: str
    values: Values
    n: int
    N: int

    def mean_std(self, metric: str) -> tuple[float | None, float | None]:
        """None, None where there is nothing to average."""
        values = self.values.get(metric)
        return (None, None) if values is None or not len(values) else mean_and_std(values)


def read_run(record: RunRecord, model: str, benchmark: Row, run: int) -> list[Row] | None:
    """The rows of one evaluation run, sorted by item and sample; None unless every row that the recipe asks for is there once."""
    file = eval_file(record, model, benchmark["name"], run)
    samples = record.config["recipe"]["evaluation"]["samples"]
    try:
        rows = read_jsonl(file)
    except ValueError as e:
        raise UserError(str(e)) from e
    for number_, row in enumerate(rows, 1):
        check_row(row, file=file, number=number_, benchmark=benchmark["name"], run=run, samples=samples)
    keys = {(str(row["item"]), row["sample"]) for row in rows}
    if len(keys) != len(rows):
        raise UserError(f"{file}: {len(rows) - len(keys)} rows are doubled; delete this file and evaluate the run again")
    if len(rows) != benchmark["items"] * samples or len({item for item, _ in keys}) != benchmark["items"]:
        return None
    return sorted(rows, key=lambda row: (str(row["item"]), row["sample"]))


def measure(runs: Sequence[Sequence[Row]], samples: int) -> Values:
    """Metrics of whole evaluation runs, each a list of items x samples rows."""

    def array(read: Callable[[Row], Any], dtype: type) -> np.ndarray:
        """[runs, items, samples]"""
        return np.array([[read(row) for row in rows] for rows in runs], dtype=dtype).reshape(len(runs), -1, samples)

    rows = [row for run in runs for row in run]
    correct = array(lambda r: r["correct"], bool)
    values: Values = {f"pass@{k}": pass_at_k(correct, k) for k in KS if k <= samples}
    has_answers = all("extracted" in r for r in rows)
    values[f"maj@{samples}"] = majority(array(lambda r: r["extracted"], object), correct) if has_answers else None
    ends_known = all(r["finish_reason"] != UNKNOWN for r in rows)
    values["cut off"] = run_means(array(lambda r: r["finish_reason"] == "length", float)) if ends_known else None
    lengths_known = all(r["tokens"] >= 0 for r in rows)
    values["tokens"] = run_means(array(lambda r: r["tokens"], float)) if lengths_known else None
    reasons_known = all(r.get("how") is not None for r in rows)
    for how in FAILURES:
        values[how] = run_means(array(lambda r, how=how: r["how"] == how, float)) if reasons_known else None
    return values


def load(run: Path) -> tuple[RunRecord, list[Quality]]:
    """Every model and benchmark of a run directory, each model's average last. UserError if there is no evaluation row at all."""
    record = RunRecord.open(run)
    evaluation, asked = record.config["recipe"]["evaluation"], runs_asked(record)
    found: list[Quality] = []
    for model in (m["name"] for m in record.config["recipe"]["models"]):
        mine = []
        whole = set(range(asked))
        for benchmark in evaluation["benchmarks"]:
            # Measured run by run: the responses of all of them at once would fill the memory at paper scale.
            reads = ((r, read_run(record, model, benchmark, r)) for r in range(asked))
            values = {r: measure([rows], evaluation["samples"]) for r, rows in reads if rows is not None}
            whole &= values.keys()
            mine.append((benchmark["name"], values))
        found += [Quality(model, name, _stack(values, sorted(values)), len(values), asked) for name, values in mine]
        # An evaluation run that is short on one benchmark is short for the average.
        per_benchmark = [_stack(values, sorted(whole)) for _, values in mine]
        found.append(Quality(model, AVERAGE, _average(per_benchmark), len(whole), asked))
    if not any(q.n for q in found):
        raise UserError(f"{run} has no whole evaluation run; evaluate it: python -m experiments.evaluate run={run}")
    return record, found


def _stack(by_run: Mapping[int, Values], runs: Sequence[int]) -> Values:
    """Values of single runs as values over ``runs``; a metric that one of them does not have is None."""
    if not runs:
        return {}
    metrics = by_run[runs[0]]
    columns = {m: [by_run[r][m] for r in runs] for m in metrics}
    return {m: None if any(v is None for v in column) else np.concatenate(column) for m, column in columns.items()}


def _average(per_benchmark: Sequence[Values]) -> Values:
    """Unweighted over benchmarks, run by run."""
    metrics = per_benchmark[0] if per_benchmark else {}
    columns = {m: [values.get(m) for values in per_benchmark] for m in metrics}
    return {m: None if any(v is None for v in column) else aggregate(np.stack(column)) for m, column in columns.items()}


def to_page(record: RunRecord, found: Sequence[Quality]) -> Page:
    """One part per model: benchmarks down, metrics across, shares in percent."""
    samples = record.config["recipe"]["evaluation"]["samples"]
    metrics = tuple(dict.fromkeys(m for q in found for m in q.values))
    parts = []
    for model in dict.fromkeys(q.model for q in found):
        lines = [Line(q.benchmark, (*(_item(q, m) for m in metrics), Item(f"{q.n}/{q.N}"))) for q in found if q.model == model]
        parts.append(Part(model, (Span("", (*metrics, "n/N")),), tuple(lines)))
    title = f"Answers of {record.path.name}"
    return Page(
        name="quality",
        folder=record.config["cell"]["scale"],
        heading=title,
        title=title,
        caption=f"Evaluation rows of {record.path}, {samples} samples per item; percent, except tokens (mean per response).",
        parts=tuple(parts),
        notes=(
            "pass@k: unbiased estimate 1 - C(n-c, k) / C(n, k) per item, then the mean over items. "
            f"maj@{samples}: majority over the extracted answers as texts; a tie counts the share of the tied answers that are correct; "
            "a response without an answer does not vote.",
            "cut off: responses that reached the length limit. boxed missing, parse error, too large, timeout, worker died: shares of all "
            "responses by the verifier's reason; none of them is a judgement of the answer, and each counts as not correct.",
            "± is the sample std (n-1) over whole evaluation runs of one checkpoint; n/N = whole / asked for. "
            f"{DASH} = no value, or the rows do not say it (imported ones may not).",
        ),
    )


def _item(quality: Quality, metric: str) -> Item:
    mean, std = quality.mean_std(metric)
    if mean is None:
        return Item(DASH)
    factor = 1 if metric == "tokens" else 100
    return Item(number(factor * mean, 2), f" ± {number(None if std is None else factor * std, 2)}")


def to_csv(found: Sequence[Quality]) -> str:
    """One line per model, benchmark and metric; shares in percent as on the page."""
    rows = []
    for q in found:
        for metric in q.values:
            factor = 1 if metric == "tokens" else 100
            both = (None if v is None else factor * v for v in q.mean_std(metric))
            rows.append((q.model, q.benchmark, metric, *map(csv_number, both), str(q.n), str(q.N)))
    return csv_text(CSV_COLUMNS, rows)


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    parser = argparse.ArgumentParser(prog="python -m analysis quality", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a run directory with evaluation rows")
    parser.add_argument("--format", choices=["term", "md", "csv"], default="term", help="what is printed (default: term)")
    args = parser.parse_args(argv)
    record, found = load(args.run)
    if args.format == "csv":
        sys.stdout.write(to_csv(found))
    elif args.format == "md":
        sys.stdout.write(to_markdown(to_page(record, found)))
    else:
        print_page(to_page(record, found))
    return 0
