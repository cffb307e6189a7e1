"""Table specs (paper_tables/specs) and the values the paper printed (paper_tables/reported), as checked frozen data."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from experiments.run_record import UserError


@dataclass(frozen=True)
class RowSpec:
    """One row: which runs stand behind it and where it is printed. ``compare``: takes part in the ranking.

    ``optional``: not in the paper, shown only if its runs exist. ``seed``: the training seed of the row's runs, where it is
    always the same (nothing is trained), whatever seed the table is asked for.
    """

    slug: str
    group: str
    label: str
    method: str
    parts: tuple[str, ...]
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
class TableSpec:
    """A table: rows x receivers of one pair. ``reported`` maps (row slug, receiver) to the paper's values."""

    name: str
    title: str
    caption: str
    pair: str
    receivers: tuple[str, ...]
    reference: str
    decimals: int
    parts: Mapping[str, str]
    groups: Mapping[str, str]
    rows: tuple[RowSpec, ...]
    reported_file: str
    reported: Mapping[tuple[str, str], Reported]


def _only_known(given: Mapping[str, Any], cls: type, where: str, derived: tuple[str, ...] = ()) -> None:
    known = {f.name for f in fields(cls)} - set(derived)
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING} - set(derived)
    if unknown := sorted(given.keys() - known):
        raise UserError(f"{where}: unknown keys {unknown}; known are {sorted(known)}")
    if absent := sorted(required - given.keys()):
        raise UserError(f"{where}: keys {absent} are not given")


def _row(given: Any, where: str) -> RowSpec:
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: a row is a mapping, got {given!r}")
    where = f"{where}, row {given.get('slug')!r}"
    _only_known(given, RowSpec, where)
    return RowSpec(**{**given, "parts": tuple(given["parts"])})


def read_reported(path: Path) -> dict[tuple[str, str], Reported]:
    """(variant, receiver) -> reported values. A row that the paper prints in two parts must say the same in both."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; the spec names it as the file of the paper's values")
    values: dict[tuple[str, str], Reported] = {}
    with open(path, encoding="utf-8", newline="") as f:
        for number, row in enumerate(csv.DictReader(f), 2):
            key = (row["variant"], row["receiver"])
            try:
                value = Reported(float(row["mean"]), float(row["std"]), float(row["delta"]) if row["delta"] else None)
            except ValueError as e:
                raise UserError(f"{path}:{number}: {e}") from e
            if values.setdefault(key, value) != value:
                raise UserError(f"{path}:{number}: {key[0]} for {key[1]} differs from an earlier line; correct the file")
    return values


def load_spec(name: str, folder: Path) -> TableSpec:
    """Read and check ``folder/<name>.yaml``; the paper's values are in ``folder/../reported``."""
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
    _only_known(given, TableSpec, str(path), derived=("name", "reported"))
    spec = TableSpec(
        **{
            **given,
            "name": name,
            "pair": str(given["pair"]),
            "receivers": tuple(given["receivers"]),
            "rows": tuple(_row(row, str(path)) for row in given["rows"]),
            "reported": read_reported(folder.parent / "reported" / given["reported_file"]),
        }
    )
    _check(spec, path)
    return spec


def _check(spec: TableSpec, path: Path) -> None:
    slugs = [row.slug for row in spec.rows]
    if len(set(slugs)) != len(slugs):
        raise UserError(f"{path}: a row slug is given twice")
    if spec.reference not in slugs:
        raise UserError(f"{path}: the reference {spec.reference!r} is not among the rows")
    for row in spec.rows:
        if row.group not in spec.groups or not row.parts or not set(row.parts) <= spec.parts.keys():
            raise UserError(f"{path}: row {row.slug!r} has a group or part that the spec does not name")
    needed = {(row.slug, receiver) for row in spec.rows if not row.optional for receiver in spec.receivers}
    if needed != spec.reported.keys():
        odd = sorted(needed ^ spec.reported.keys())
        raise UserError(f"{path} and {spec.reported_file} do not list the same cells: {odd}")
