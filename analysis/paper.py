"""The paper's own numbers (paper_tables/reported) as a source of cells."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from analysis.cells import Comparison, Key, Value
from analysis.clipping import BOTH, ZERO
from analysis.spec import AVERAGE, REPORTED_AVERAGE
from experiments.run_record import UserError

EVALUATION = "5 evaluation runs of one checkpoint"
TRAINING = "3 training runs, each the mean of its evaluation runs"
SETTING = "value"  # the column of a setting


@dataclass(frozen=True)
class Layout:
    """How the lines of a file become cells: which columns name row, receiver and pair ("" for none: pair 1), and the values.

    ``single``: file column -> column of a cell, a number without a spread. ``scores``: mean and std columns; the cell's column is
    the line's benchmark, or the average in a file without benchmarks.
    """

    table: str
    file: str
    row: str
    receiver: str = ""
    pair: str = ""
    scores: tuple[str, str] | None = None
    single: Mapping[str, str] = field(default_factory=dict)
    replicates: tuple[int, str] = (5, EVALUATION)


SCORES = ("mean", "std")
DELTA = {"delta": "delta"}
LAYOUTS = (
    Layout("table1", "table1_main.csv", "method", "updated_policy", "pair", SCORES),
    Layout("table1", "table1_delta.csv", "method", "updated_policy", "pair", single={"delta_vs_grpo_n8": "delta"}),
    Layout("table2", "table2_ablations.csv", "variant", "receiver", "", SCORES, DELTA),
    Layout("table3", "table3_hyperparameters.csv", "name", single={"value": SETTING}),
    Layout("table4", "table4_stability.csv", "method", "updated_policy", "pair", SCORES, DELTA, (3, TRAINING)),
    Layout(
        "table5", "table5_compute.csv", "method", "model", "", ("avg_mean", "avg_std"),
        {"best_ckpt_gpu_h": "best_gpu_h", "full_run_gpu_h": "full_gpu_h"},
    ),
    Layout("table6", "table6_stored.csv", "method", "updated_policy", "pair", SCORES, DELTA),
    Layout("table7", "table7_ablation_full.csv", "variant", "receiver", "pair", SCORES, DELTA),
    Layout("table8", "table8_hybrid.csv", "variant", "receiver", "pair", SCORES, DELTA),
    Layout("table9", "table9_clipping.csv", "peer_position", "receiver", single={"value": ""}),
    Layout("setup", "setup_values.csv", "name", single={"value": SETTING}),
)  # fmt: skip
PAIR_COSTS = {"both_best_ckpt_gpu_h": "best_gpu_h", "both_full_run_gpu_h": "full_gpu_h"}


@dataclass(frozen=True)
class Reported:
    """The printed numbers. What they lack was not printed as a number (or only drawn in a figure)."""

    cells: Mapping[Key, Value]
    name: str = "the paper's printed numbers"
    comparison: Comparison = "printed"
    complete: bool = True

    def cell(self, key: Key) -> Value | None:
        """A model trained alone has no pair in the files and stands in every one; a setting has neither pair nor receiver."""
        for pair in (key.pair, ""):
            found = self.cells.get(Key(key.table, key.row, key.column, key.receiver, pair))
            if found:
                return found
        return None


def load_reported(folder: Path) -> Reported:
    """All files of ``LAYOUTS`` in ``folder``. UserError for a file, column or number that is not there or two values of one cell."""
    cells: dict[Key, Value] = {}
    for layout in LAYOUTS:
        for where, line in read_lines(folder / layout.file):
            try:
                found = dict(_cells(layout, line))
            except KeyError as e:
                raise UserError(f"{where}: no column {e}") from e
            except ValueError as e:
                raise UserError(f"{where}: {e}") from e
            for key, value in found.items():
                if (known := cells.setdefault(key, value)) != value:
                    raise UserError(f"{where}: {key} is {value.mean} here and {known.mean} in an earlier line; correct the file")
    return Reported(cells)


def read_lines(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """("file:line", row) of a CSV with a header; UserError if it cannot be read."""
    try:
        with open(path, encoding="utf-8", newline="") as f:
            for number, row in enumerate(csv.DictReader(f), 2):
                if None in row or None in row.values():
                    raise UserError(f"{path}:{number}: more or fewer fields than the header has")
                yield f"{path}:{number}", row
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path} cannot be read: {e}") from e


def _cells(layout: Layout, line: Mapping[str, str]) -> Iterator[tuple[Key, Value]]:
    row, receiver = line[layout.row], line[layout.receiver] if layout.receiver else ""
    pair = line[layout.pair] if layout.pair else ("1" if layout.receiver else "")
    benchmark = line.get("benchmark", REPORTED_AVERAGE)
    if layout.scores:
        mean, std = (line[column] for column in layout.scores)
        n, noise = layout.replicates
        column = AVERAGE if benchmark == REPORTED_AVERAGE else benchmark
        # GRPO trains a model alone: its run is printed in several pairs.
        origin = f"{layout.table} {row} {receiver} {column}" if row.startswith("grpo") else ""
        value = Value(float(mean), float(std), n, noise, half_unit=half_unit(mean), runs=(layout.file,), origin=origin)
        yield Key(layout.table, row, column, receiver, pair), value
    for file_column, column in layout.single.items():
        if layout.table == "table9":
            column = ZERO if line["quantity"] == ZERO else line["update"]
        if (value := _single(line[file_column], layout)) is not None:
            yield Key(layout.table, row, column, receiver, pair), value
    if layout.table == "table5":
        for file_column, column in PAIR_COSTS.items():
            yield Key(layout.table, row, column, BOTH, pair), _single(line[file_column], layout)


def _single(text: str, layout: Layout) -> Value | None:
    """A number printed without a spread; None for an empty field, and for a setting that is a word.

    The difference of two scores has noise that was not printed; everything else without a spread is counted.
    """
    setting = SETTING in layout.single.values()
    try:
        number = float(text) if text else None
    except ValueError:
        if setting:
            return None
        raise
    if number is None:
        return None
    # A whole number is a count (7,500 problems) and not a rounded one.
    half = half_unit(text) if "." in text else 0.0
    return Value(number, counted="delta" not in layout.single.values(), half_unit=half, runs=(layout.file,))


def half_unit(printed: str) -> float:
    """Half of the last printed digit: 0.005 for "2.10", 0.5 for "84". ValueError if the text is no number."""
    mantissa, _, exponent = printed.strip().lower().partition("e")
    float(printed)
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
