"""Checks of the printed scores: averages, differences, repeats, grids, the divisor of the std, training runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, sqrt

from analysis.audit_check import Check, Comparison, against, at_most, unknown
from analysis.cells import EPSILON, Key, Value
from analysis.claim_spec import Claim
from analysis.paper import Reported
from analysis.spec import AVERAGE

BENCHMARKS = ("math500", "aime2024", "aime2025", "amc23", "minerva")
FULL_TABLES = ("table1", "table4", "table6", "table7", "table8")
RUN_TABLES = ("table1", "table6", "table7", "table8")  # five evaluation runs of one training run
RUNS, TRAININGS = 5, 3
# (pair, receiver) of the six blocks.
BLOCKS = (
    ("1", "smollm3-3b"), ("1", "qwen3-1.7b"), ("2", "octothinker-3b"), ("2", "qwen3-1.7b"), ("3", "smollm3-3b"), ("3", "octothinker-3b"),
)  # fmt: skip
# (a table's row) -> (the table and row that it repeats); the receiver is the same, of pair 1 where a table has no pair.
SAME_RUN = {
    **{("table6", row): ("table1", row) for row in ("grpo_n8", "graft")},
    **{("table5", row): ("table1", row) for row in ("grpo_n8", "grpo_n16", "grpo_n32", "hacpo", "sgt", "graft")},
    ("table5", "graft_stored"): ("table6", "graft_stored"),
    **{(table, row): ("table1", of) for table in ("table2", "table7", "table8") for row, of in (("full", "graft"), ("grpo_n8", "grpo_n8"))},
    **{(table, row): ("table1", row) for table in ("table2", "table8") for row in ("hacpo", "sgt")},
}  # fmt: skip
REFERENCE = {"table1": "grpo_n8", "table2": "full", "table4": "grpo_n8", "table6": "grpo_n8", "table7": "full", "table8": "full"}


def _rows(reported: Reported, table: str) -> Iterator[tuple[Key, dict[str, Value]]]:
    """(key of the average, column -> value) of every line of a table."""
    for key in reported.cells:
        if key.table == table and key.column == AVERAGE:
            columns = (*BENCHMARKS, AVERAGE, "delta")
            found = {c: reported.cells.get(Key(table, key.row, c, key.receiver, key.pair)) for c in columns}
            yield key, {c: v for c, v in found.items() if v}


def _place(key: Key) -> str:
    return " ".join(x for x in (key.row, key.receiver, f"pair {key.pair}" if key.pair else "") if x)


def averages(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """Each printed average is the unweighted mean of its five benchmarks. It was taken of unrounded ones: their rounding is granted."""
    checks = []
    for table in FULL_TABLES:
        found = []
        for key, row in _rows(reported, table):
            parts = [row[b] for b in BENCHMARKS]
            mean, slack = sum(v.mean for v in parts) / 5, sum(v.half_unit for v in parts) / 5
            found.append(against(_place(key), mean, row[AVERAGE].printed, slack=slack))
        checks.append(Check("averages", f"{table}: mean of the five benchmarks", tuple(found)))
    return checks


def differences(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """Each printed difference is that of the printed averages from the reference row."""
    checks = []
    for table, reference in REFERENCE.items():
        found = []
        for key, value in reported.cells.items():
            if key.table == table and key.column == "delta":
                ours = reported.cell(Key(table, key.row, AVERAGE, key.receiver, key.pair))
                base = reported.cell(Key(table, reference, AVERAGE, key.receiver, key.pair))
                found.append(against(_place(key), ours.mean - base.mean, value.printed))
        checks.append(Check("differences", f"{table}: average minus that of {reference}", tuple(found)))
    return checks


def repeats(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """A run that several tables print has the same mean and std in all of them."""
    found: dict[tuple[str, str], list[Comparison]] = {}
    for key, value in reported.cells.items():
        same = SAME_RUN.get((key.table, key.row))
        if same and not value.counted and key.column != "delta":
            first = reported.cell(Key(same[0], same[1], key.column, key.receiver, key.pair))
            place = f"{_place(key)} {key.column}"
            found.setdefault((key.table, same[0]), []).extend(_same(place, first, value))
    for key, value in reported.cells.items():
        first = reported.cells.get(Key("table7", key.row, key.column, key.receiver, key.pair))
        if first and key.table in ("table2", "table8") and key.column != "delta" and (key.table, key.row) not in SAME_RUN:
            found.setdefault((key.table, "table7"), []).extend(_same(f"{_place(key)} {key.column}", first, value))
    for key, value in reported.cells.items():
        others = [
            k for k in reported.cells if (k.table, k.row, k.column, k.receiver) == (key.table, key.row, key.column, key.receiver)
        ]
        if key.table in ("table4", "table6") and key.row == "grpo_n8" and others[0] != key:
            found.setdefault((key.table, "itself, the other pair"), []).extend(
                _same(_place(key), reported.cells[others[0]], value)
            )
    return [Check("repeats", f"{table} repeats {first}", tuple(c)) for (table, first), c in found.items()]


def _same(what: str, first: Value, again: Value) -> list[Comparison]:
    return [against(f"{what} {part}", getattr(first, part), f"{getattr(again, part):.2f}", digits=2) for part in ("mean", "std")]


def _step(column: str, runs: int) -> float:
    """Distance between two possible means of ``runs`` evaluation runs on a benchmark, in percent points, 8 samples an item."""
    items = {"math500": 500, "aime2024": 30, "aime2025": 30, "amc23": 40, "minerva": 272}[column]
    return 100 / (items * 8 * runs)


def grids(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """A mean of k correct of N responses is a multiple of 100 / N. Where that is wider than the print, not every number can occur.

    MATH500's 0.005 is no wider than the print, so it is left out; so is Minerva's over the 15 runs of table 4.
    """
    checks = []
    for table in FULL_TABLES:
        runs = RUNS * (TRAININGS if table == "table4" else 1)
        columns = [b for b in BENCHMARKS[1:] if not (table == "table4" and b == "minerva")]
        found = []
        for key, value in reported.cells.items():
            if key.table == table and key.column in columns:
                step = _step(key.column, runs)
                nearest = round(value.mean / step) * step
                # A training run's mean that was rounded before the three were averaged may move theirs by half a digit.
                slack = value.half_unit if table == "table4" else 0.0
                found.append(against(f"{_place(key)} {key.column}", nearest, value.printed, slack=slack))
        odd = {c.numbers.split()[-1] for c in found if abs(c.off) > 0.005 + EPSILON}
        remark = f"{', '.join(sorted(odd))} fit only as means of already rounded run means" if odd else ""
        checks.append(Check("possible means", f"{table}: means that {runs * 8} responses an item can give", tuple(found), remark))
    return checks


def divisor(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """Which divisor the std over five evaluation runs has: with 30 or 40 items few stds are possible at all (necessary conditions)."""
    cells = {
        (key.column, value.printed, f"{value.std:.2f}"): value
        for key, value in reported.cells.items()
        if key.table in RUN_TABLES and key.column in ("aime2024", "aime2025", "amc23")
    }
    fits = {d: [c for c, v in cells.items() if possible_std(v, _step(c[0], 1), d)] for d in (RUNS - 1, RUNS)}
    sample, population = (len(fits[d]) for d in (RUNS - 1, RUNS))
    comparisons = (against("n - 1", sample, str(len(cells)), digits=0),)
    remark = f"with n as divisor only {population} of the {len(cells)} distinct cells are possible"
    average = unknown("std of the averages", "its values per evaluation run are not printed")
    return [
        Check("std", "AIME and AMC stds that five runs can give with n - 1 as divisor", comparisons, remark),
        Check("std", "std of the average over the five benchmarks", (average,)),
    ]


def possible_std(value: Value, step: float, divisor: int) -> bool:
    """Whether five whole numbers of correct responses can have this mean and std (divisor 4 or 5), to the printed digits.

    With counts k_i, S = sum k, Q = sum k^2: std^2 = step^2 (5 Q - S^2) / (5 divisor). S follows from the mean; 5 Q - S^2 must be a whole
    number in the printed std's range, give a whole Q, and Q must be even exactly if S is (k^2 and k are). Necessary, not sufficient.
    """
    centre = value.mean * RUNS / step
    sums = [s for s in range(floor(centre) - 1, ceil(centre) + 2) if abs(s * step / RUNS - value.mean) <= value.half_unit + 1e-6]
    low, high = ((max(0.0, value.std + d) / step) ** 2 * RUNS * divisor for d in (-0.005 - 1e-6, 0.005 + 1e-6))
    return any(
        (spread + s * s) % RUNS == 0 and ((spread + s * s) // RUNS - s) % 2 == 0
        for s in sums
        for spread in range(ceil(low), floor(high) + 1)
    )


def first_runs(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """Table 1 can be one of table 4's three runs: one of n values lies within (n - 1) / sqrt(n) sample stds of their mean."""
    found = []
    for pair, receiver in BLOCKS:
        for row in ("grpo_n8", "graft"):
            for column in (*BENCHMARKS, AVERAGE):
                one = reported.cell(Key("table1", row, column, receiver, pair))
                all_ = reported.cell(Key("table4", row, column, receiver, pair))
                factor = (TRAININGS - 1) / sqrt(TRAININGS)
                slack = one.half_unit + all_.half_unit + factor * 0.005
                what = f"{row} {receiver} pair {pair} {column}"
                found.append(at_most(what, abs(one.mean - all_.mean), factor * all_.std, slack))
    return [Check("training runs", "table 1 can be one of the three runs of table 4", tuple(found))]


def gains_over_runs(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """The gain over GRPO that table 1 prints, beside that of the three training runs, block by block."""
    found, above = [], 0
    for pair, receiver in BLOCKS:
        one, all_ = (reported.cell(Key(t, "graft", AVERAGE, receiver, pair)) for t in ("table1", "table4"))
        gain, three = (reported.cell(Key(t, "graft", "delta", receiver, pair)) for t in ("table1", "table4"))
        above += one.mean > all_.mean
        found.append(against(f"pair {pair} {receiver}", three.mean, gain.printed, digits=2))
    remark = f"GRAFT's first run, the one in table 1, is above its three-run mean in {above} of {len(BLOCKS)} blocks"
    return [Check("training runs", "gain over GRPO on three runs is that of table 1", tuple(found), remark)]


def markers(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """Daggers and bold of table 1: the rule is not among the transcribed facts, and four marks are unreadable."""
    return [Check("markers", "daggers and bold of table 1", (unknown("rule", "the caption's rule is not in paper_tables"),))]


BUILDERS = (averages, differences, repeats, grids, divisor, first_runs, gains_over_runs, markers)
