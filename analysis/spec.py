"""Table specs (paper_tables/specs) and the values the paper printed (paper_tables/reported), as checked frozen data."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from experiments.rows import expand
from experiments.run_record import UserError

PASS_AT_1 = "pass@1"  # the kind of a table whose spec names none
AVERAGE = "average"
# The reported files call the average over the benchmarks "avg"; files of averages alone have no such column.
REPORTED_AVERAGE = "avg"


@dataclass(frozen=True)
class RowSpec:
    """One row: which runs stand behind it and where it is printed. ``compare``: takes part in the ranking.

    ``parts`` () means every part. ``optional``: not in the paper, shown only if its runs exist. ``seed``: the training seed of
    the row's runs, where it is always the same (nothing is trained), whatever seed the table is asked for.
    """

    slug: str
    label: str
    method: str
    group: str = ""
    parts: tuple[str, ...] = ()
    deviations: Mapping[str, Any] = field(default_factory=dict)
    compare: bool = True
    optional: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Reported:
    """Mean, std and difference from the reference as the paper printed them, in percent points."""

    mean: float
    std: float
    delta: float | None


@dataclass(frozen=True)
class Marks:
    """Signs behind the values of one row: ``above`` maps each to the rows that a value must exceed in print, weakest first.

    Only a value that is bold in its place gets one, and only the strongest that holds. ``note`` says the rule to the reader.
    """

    row: str
    above: Mapping[str, tuple[str, ...]]
    note: str


@dataclass(frozen=True)
class TableSpec:
    """A table: rows x receivers of one pair x columns (benchmark slugs of the paper, and the average; slug -> printed head).

    ``reported`` maps (row slug, receiver, column) to the paper's values; it is empty if there is no ``reported_file``.
    """

    name: str
    title: str
    caption: str
    pair: str
    receivers: tuple[str, ...]
    reference: str
    decimals: int
    columns: Mapping[str, str]
    parts: Mapping[str, str]
    groups: Mapping[str, str]
    rows: tuple[RowSpec, ...]
    reported_file: str | None = None
    reported: Mapping[tuple[str, str, str], Reported] = field(default_factory=dict)
    marks: Marks | None = None


def only_known(given: Mapping[str, Any], cls: type, where: str, derived: tuple[str, ...] = ()) -> None:
    """UserError unless the keys are fields of the dataclass and none without a default is absent; ``derived`` are not given."""
    known = {f.name for f in fields(cls)} - set(derived)
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING} - set(derived)
    if unknown := sorted(given.keys() - known):
        raise UserError(f"{where}: unknown keys {unknown}; known are {sorted(known)}")
    if absent := sorted(required - given.keys()):
        raise UserError(f"{where}: keys {absent} are not given")


def read_rows(given: Any, where: str) -> tuple[RowSpec, ...]:
    """The rows of a spec, each checked; slugs are unique."""
    rows = []
    for row in expand(given, where):
        if not isinstance(row, Mapping):
            raise UserError(f"{where}: a row is a mapping, got {row!r}")
        only_known(row, RowSpec, f"{where}, row {row.get('slug')!r}")
        rows.append(RowSpec(**{**row, "parts": tuple(row.get("parts") or ())}))
    slugs = [row.slug for row in rows]
    if len(set(slugs)) != len(slugs):
        raise UserError(f"{where}: a row slug is given twice")
    return tuple(rows)


def reported_lines(path: Path, columns: set[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """("file:line", row) of a file of the paper's values; UserError if it is absent or lacks one of the columns."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; the spec names it as the file of the paper's values")
    with open(path, encoding="utf-8", newline="") as f:
        reader = csv.DictReader(f)
        if absent := sorted(columns - set(reader.fieldnames or ())):
            raise UserError(f"{path}:1: no column {', '.join(absent)}")
        for number, row in enumerate(reader, 2):
            yield f"{path}:{number}", row


def read_reported(path: Path) -> dict[tuple[str, str, str], Reported]:
    """(variant, receiver, column) -> reported values. A row that the paper prints in two parts must say the same in both."""
    values: dict[tuple[str, str, str], Reported] = {}
    for where, row in reported_lines(path, {"variant", "receiver", "mean", "std", "delta"}):
        benchmark = row.get("benchmark", REPORTED_AVERAGE)
        key = (row["variant"], row["receiver"], AVERAGE if benchmark == REPORTED_AVERAGE else benchmark)
        try:
            value = Reported(float(row["mean"]), float(row["std"]), float(row["delta"]) if row["delta"] else None)
        except ValueError as e:
            raise UserError(f"{where}: {e}") from e
        if values.setdefault(key, value) != value:
            raise UserError(f"{where}: {', '.join(key)} differs from an earlier line; correct the file")
    return values


def read_spec(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """(file, content) of ``folder/<name>.yaml``; UserError lists the known tables."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        raise UserError(f"no table {name!r} in {folder}; there are: {', '.join(known) or 'none'}")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as e:
        raise UserError(f"{path}: not YAML: {e}") from e
    if not isinstance(given, Mapping):
        raise UserError(f"{path}: a table spec is a mapping")
    return path, dict(given)


def load_spec(name: str, folder: Path) -> TableSpec:
    """Read and check a table of pass@1; the paper's values are in ``folder/../reported``."""
    path, given = read_spec(name, folder)
    if (kind := given.pop("kind", PASS_AT_1)) != PASS_AT_1:
        raise UserError(f"{name} is a table of kind {kind}; this asks for one of {PASS_AT_1}")
    file = given.get("reported_file")
    return make_spec(name, path, given, read_reported(folder.parent / "reported" / file) if file else {})


def make_spec(name: str, path: Path, given: Mapping[str, Any], reported: Mapping[tuple[str, str, str], Reported]) -> TableSpec:
    """A checked TableSpec of the keys in ``given``; ``path`` is named in errors."""
    only_known(given, TableSpec, str(path), derived=("name", "reported"))
    spec = TableSpec(
        **{
            **given,
            "name": name,
            "pair": str(given["pair"]),
            "receivers": tuple(given["receivers"]),
            "rows": read_rows(given["rows"], str(path)),
            "reported": reported,
            "marks": _read_marks(given.get("marks"), str(path)),
        }
    )
    _check(spec, path)
    return spec


def _read_marks(given: Any, where: str) -> Marks | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: marks is a mapping, got {given!r}")
    only_known(given, Marks, f"{where}, marks")
    return Marks(given["row"], {mark: tuple(rows) for mark, rows in given["above"].items()}, given["note"].strip())


def _check(spec: TableSpec, path: Path) -> None:
    if spec.reference not in [row.slug for row in spec.rows]:
        raise UserError(f"{path}: the reference {spec.reference!r} is not among the rows")
    if not isinstance(spec.columns, Mapping) or AVERAGE not in spec.columns:
        raise UserError(
            f"{path}: columns map slugs to heads and have {AVERAGE!r} among them; the difference is that of the average"
        )
    if spec.marks:
        named = {spec.marks.row, *(slug for slugs in spec.marks.above.values() for slug in slugs)}
        if unknown := sorted(named - {row.slug for row in spec.rows}):
            raise UserError(f"{path}: marks name rows that the table does not have: {', '.join(unknown)}")
    for row in spec.rows:
        if row.group not in spec.groups or not set(row.parts) <= spec.parts.keys():
            raise UserError(f"{path}: row {row.slug!r} has a group or part that the spec does not name")
    needed = {(row.slug, x, c) for row in spec.rows if not row.optional for x in spec.receivers for c in spec.columns}
    if spec.reported_file and needed != spec.reported.keys():
        odd = sorted(needed ^ spec.reported.keys())
        raise UserError(f"{path} and {spec.reported_file} do not list the same cells: {odd}")
