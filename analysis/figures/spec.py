"""Figure specs (paper_tables/specs/figure*.yaml) as checked frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.spec import RowSpec, only_known, read_rows, read_spec
from experiments.run_record import UserError


@dataclass(frozen=True)
class Block:
    """One pair of models; each is the other's peer."""

    pair: str
    receivers: tuple[str, str]

    def peer(self, receiver: str) -> str:
        """The other model."""
        a, b = self.receivers
        return b if receiver == a else a


@dataclass(frozen=True)
class FigureSpec:
    """``blocks``: the pairs shown. ``reference``: the row that others are compared with, where the kind has one. ``groups``: headings.

    ``reported``: numbers of the paper's text that no file of paper_tables/reported tabulates; what they are is the kind's to say.
    ``folder``: where the spec lies.
    """

    name: str
    kind: str
    title: str
    caption: str
    blocks: tuple[Block, ...]
    rows: tuple[RowSpec, ...]
    folder: Path
    reference: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    reported: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reported_folder(self) -> Path:
        """The paper's values."""
        return self.folder.parent / "reported"

    @property
    def labels(self) -> dict[str, str]:
        """Row slug -> printed label."""
        return {row.slug: row.label for row in self.rows}


def load_spec(name: str, folder: Path) -> FigureSpec:
    """Read and check ``folder/<name>.yaml``: ``pair`` with its two ``receivers``, or ``pairs`` that map to them."""
    path, given = read_spec(name, folder)
    blocks = _blocks(given, path)
    content = {key: value for key, value in given.items() if key not in ("pair", "pairs", "receivers")}
    only_known(content, FigureSpec, str(path), derived=("name", "blocks", "folder"))
    rows = read_rows(content["rows"], str(path))
    spec = FigureSpec(**content | {"name": name, "blocks": blocks, "rows": rows, "folder": folder})
    if spec.reference and spec.reference not in spec.labels:
        raise UserError(f"{path}: the reference {spec.reference!r} is not among the rows")
    if unknown := [row.slug for row in rows if row.group and row.group not in spec.groups]:
        raise UserError(f"{path}: rows {', '.join(unknown)} have a group that the spec does not name")
    return spec


def _blocks(given: Mapping[str, Any], path: Path) -> tuple[Block, ...]:
    if ("pair" in given) == ("pairs" in given) or ("pair" in given) != ("receivers" in given):
        raise UserError(f"{path}: give either pair and receivers, or pairs with their receivers")
    by_pair = given["pairs"] if "pairs" in given else {given["pair"]: given["receivers"]}
    if not isinstance(by_pair, Mapping):
        raise UserError(f"{path}: pairs map each pair to its two receivers")
    if odd := [str(pair) for pair, models in by_pair.items() if not isinstance(models, list) or len(set(models)) != 2]:
        raise UserError(f"{path}: pair {', '.join(odd)} needs two different receivers")
    return tuple(Block(str(pair), (models[0], models[1])) for pair, models in by_pair.items())
