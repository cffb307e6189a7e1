"""paper_tables/claims.yaml as checked frozen data: claims, each a list of typed checks on cells. Data only; nothing is executed.

An expression is a number, a cell, or one operation of ``cells.OPERATIONS`` on expressions:
    {table: table1, row: graft, receiver: smollm3-3b, column: average, pair: 1}     a cell (pair 1 unless said)
    {difference: [a, b]}                                                            an operation
    {each: blocks, of: expression}                                                  one expression per binding of a set, in a list
    {with: {row: wo_floor}, of: expression}                                         an expression with a binding
    {use: gain}                                                                     the expression that ``terms`` names
A set lists bindings (row, receiver, pair, column), which fill what a cell leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from analysis.cells import OPERATIONS, Constant, Expression, Key, Leaf, Operation, keys
from experiments.run_record import UserError

# kind of check -> the keys that stand beside it. Their meaning: docs/claims.md and ``claim_checks``.
KINDS: dict[str, tuple[str, ...]] = {
    "equals": ("printed",),
    "positive": (),
    "negative": (),
    "descending": (),
    "count_positive": ("printed",),
    "count_negative": ("printed",),
    "lowest": ("is",),
    "highest": ("is",),
    "level": (),
    "near": ("to", "within"),
    "zero": (),
    "given": (),
    "reachable": (),
    "unchecked": (),
}
SINGLE = ("equals", "near")  # kinds on one number
CELL = tuple(f.name for f in fields(Key))
Bindings = dict[str, str]


@dataclass(frozen=True)
class Check:
    """``items``: (label, expression); the label says which binding it is of. The other fields belong to some kinds only."""

    kind: str
    items: tuple[tuple[str, Expression], ...]
    what: str = ""
    printed: str = ""
    winner: str = ""
    to: float = 0.0
    within: float = 0.0
    reason: str = ""

    @property
    def keys(self) -> list[Key]:
        """All cells, each once."""
        return list(dict.fromkeys(key for _, expression in self.items for key in keys(expression)))


@dataclass(frozen=True)
class Claim:
    """``checks`` make the verdict. ``beside``: what a reader should know besides, never part of the verdict.

    ``needs``: the tables that the checks stand on. ``reading``: how the words were read where they leave it open.
    """

    id: str
    text: str
    source: str
    needs: tuple[str, ...]
    checks: tuple[Check, ...]
    beside: tuple[Check, ...] = ()
    reading: str = ""


class _Reader:
    """Turns YAML values into expressions, with the file's sets and terms at hand; a UserError says where and what."""

    def __init__(self, sets: Mapping[str, Any], terms: Mapping[str, Any], where: str):
        self.sets, self.terms, self.where = sets, terms, where

    def error(self, what: str) -> UserError:
        return UserError(f"{self.where}: {what}")

    def expression(self, given: Any, bindings: Bindings) -> Expression:
        """One expression; a UserError names what is wrong with it."""
        if isinstance(given, int | float) and not isinstance(given, bool):
            return Constant(float(given))
        if not isinstance(given, Mapping) or not given:
            raise self.error(f"an expression is a number, a cell or one operation, got {given!r}")
        if "table" in given:
            return self.cell(given, bindings)
        if "with" in given:
            return self.expression(given.get("of"), bindings | self.bound(given))
        if len(given) > 1:
            raise self.error(f"an expression has one operation, got {sorted(given)}")
        ((name, arguments),) = given.items()
        if name == "use":
            if arguments not in self.terms:
                raise self.error(f"no term {arguments!r}; there are {', '.join(self.terms)}")
            return self.expression(self.terms[arguments], bindings)
        if name not in OPERATIONS:
            raise self.error(f"no operation {name!r}; there are {', '.join(OPERATIONS)}, and 'each' in lists")
        found = tuple(expression for _, expression in self.items(arguments, bindings))
        wanted = OPERATIONS[name][1]
        if wanted not in (None, len(found)) or not found:
            raise self.error(f"{name} is of {wanted or 'one or more'} expressions, got {len(found)}")
        return Operation(name, found)

    def cell(self, given: Mapping[str, Any], bindings: Bindings) -> Leaf:
        """A cell, with what it leaves open taken from the bindings."""
        if unknown := sorted(given.keys() - set(CELL)):
            raise self.error(f"a cell has {', '.join(CELL)}; got {unknown}")
        whole = bindings | {name: str(value) for name, value in given.items()}
        if absent := {"row", "column"} - whole.keys():
            raise self.error(f"the cell {dict(given)} has no {', '.join(sorted(absent))}, and no set gives it one")
        return Leaf(Key(**whole))

    def bound(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The bindings of a ``with``."""
        binding = given["with"]
        if set(given) != {"with", "of"} or not isinstance(binding, Mapping) or not binding or not set(binding) <= set(CELL):
            raise self.error(f"a binding gives some of {', '.join(CELL)}, and 'with' has an 'of'; got {dict(given)}")
        return {name: str(value) for name, value in binding.items()}

    def items(self, given: Any, bindings: Bindings, label: str = "") -> list[tuple[str, Expression]]:
        """A list of expressions with labels; ``each`` is spread out, a single expression is a list of one."""
        if isinstance(given, list):
            return [item for one in given for item in self.items(one, bindings, label)]
        if isinstance(given, Mapping) and "with" in given:
            return self.items(given.get("of"), bindings | self.bound(given), label)
        if not (isinstance(given, Mapping) and "each" in given):
            return [(label, self.expression(given, bindings))]
        if set(given) != {"each", "of"} or given["each"] not in self.sets:
            raise self.error(f"'each' names one of the sets {', '.join(self.sets)} and has an 'of', got {dict(given)}")
        found = []
        for one in self.sets[given["each"]]:
            bound = self.bound({"with": one, "of": None})
            words = " ".join(f"pair {v}" if k == "pair" else v for k, v in bound.items())
            found += self.items(given["of"], bindings | bound, f"{label} {words}".strip())
        return found

    def check(self, given: Any) -> Check:
        """One check."""
        kinds = [k for k in KINDS if isinstance(given, Mapping) and k in given]
        if len(kinds) != 1:
            raise self.error(f"a check has one of {', '.join(KINDS)}; got {given!r}")
        (kind,) = kinds
        needed = {kind, *KINDS[kind]}
        if set(given) - {"what"} != needed:
            raise self.error(
                f"a check {kind!r} has the keys {', '.join(sorted(needed))} and may have 'what'; got {sorted(given)}"
            )
        what = str(given.get("what", ""))
        if kind == "unchecked":
            return Check(kind, (), what, reason=str(given[kind]))
        items = tuple(self.items(given[kind], {}))
        if not items or (kind in SINGLE and len(items) != 1) or (kind == "descending" and len(items) < 2):
            raise self.error(f"a check {kind!r} got {len(items)} expressions")
        check = Check(
            kind, items, what, str(given.get("printed", "")), str(given.get("is", "")),
            float(given.get("to", 0)), float(given.get("within", 0)),
        )  # fmt: skip
        self.refuse(check, given)
        return check

    def refuse(self, check: Check, given: Mapping[str, Any]) -> None:
        """UserError for what has the right keys and still no meaning."""
        if "printed" in KINDS[check.kind]:
            # YAML would make 2.10 of "2.10": the digits say how precise the claim is.
            if not isinstance(given["printed"], str):
                raise self.error(f"'printed' is a text in quotes, with the digits that were printed; got {given['printed']!r}")
            try:
                float(check.printed)
            except ValueError as e:
                raise self.error(f"'printed' is no number: {check.printed!r}") from e
        if check.winner and check.winner not in [label for label, _ in check.items]:
            raise self.error(f"'is' names one of {[label for label, _ in check.items]}, got {check.winner!r}")
        if check.kind == "given" and not all(isinstance(e, Leaf) for _, e in check.items):
            raise self.error("'given' lists cells")
        if check.kind == "reachable":
            for _, e in check.items:
                if not (isinstance(e, Operation) and e.name == "difference" and all(isinstance(a, Leaf) for a in e.arguments)):
                    raise self.error("'reachable' lists differences of a cell of one run and one of several")


def load_claims(path: Path) -> tuple[Claim, ...]:
    """Read and check the file; ids are unique and ``needs`` are exactly the tables that the checks name."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise UserError(f"{path} cannot be read: {e}") from e
    if not isinstance(given, Mapping) or set(given) != {"sets", "terms", "claims"}:
        raise UserError(f"{path}: the file has the keys sets, terms, claims")
    claims = [_claim(one, _Reader(given["sets"], given["terms"], str(path)), path) for one in given["claims"]]
    ids = [claim.id for claim in claims]
    if len(set(ids)) != len(ids):
        raise UserError(f"{path}: an id is given twice")
    return tuple(claims)


def _claim(given: Any, reader: _Reader, path: Path) -> Claim:
    required, optional = {"id", "text", "source", "needs", "checks"}, {"beside", "reading"}
    if not isinstance(given, Mapping) or not required <= given.keys() <= required | optional:
        raise UserError(
            f"{path}: a claim has {', '.join(sorted(required))} and may have {', '.join(sorted(optional))}; got {given!r}"
        )
    reader.where = f"{path}, {given['id']}"
    checks = tuple(map(reader.check, given["checks"]))
    beside = tuple(map(reader.check, given.get("beside", ())))
    tables = sorted({key.table for check in checks for key in check.keys})
    if sorted(given["needs"]) != tables or not checks:
        raise reader.error(f"needs {given['needs']}, while the checks are on {tables}")
    return Claim(given["id"], given["text"], given["source"], tuple(given["needs"]), checks, beside, given.get("reading", ""))
