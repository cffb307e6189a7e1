"""Rows of a table's spec, written out: a row may stand for several by ``nest`` (every combination) and ``zip`` (side by side).

    {slug: "delta_{method.delta}", label: "delta = {method.delta}", method: graft, nest: {method.delta: [0.7, 0.9]}}
    {slug: "grpo_n{method.n}", label: "n = {method.n}", method: grpo, zip: {method.n: [16, 32], training.minibatch_prompts: [8, 16]}}

Values may be lists themselves, or any text; nothing in them is parsed. Standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.errors import UserError

SWEEPS = ("nest", "zip")


def expand(rows: Iterable[Any], where: str) -> list[Any]:
    """The rows with each sweep written out, in the order of its values (the last key of ``nest`` changes fastest).

    What is no mapping passes through: who reads the rows says what is wrong with it. UserError, beginning with ``where``, for
    sweeps that cannot be written out.
    """
    return [one for row in rows for one in (_expand_row(row, where) if isinstance(row, Mapping) else [row])]


def _expand_row(row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    if not any(kind in row for kind in SWEEPS):
        return [dict(row)]
    where = f"{where}, row {row.get('slug')!r}"
    plain = {k: v for k, v in row.items() if k not in SWEEPS}
    deviations = dict(row.get("deviations") or {})
    nested, zipped = (_values(row.get(kind) or {}, kind, where) for kind in SWEEPS)
    if twice := sorted((nested.keys() & zipped.keys()) | ((nested.keys() | zipped.keys()) & deviations.keys())):
        raise UserError(f"{where}: {', '.join(twice)} is given twice; a key is in one of deviations, nest and zip")
    if len({len(v) for v in zipped.values()}) > 1:
        lengths = ", ".join(f"{k} has {len(v)}" for k, v in zipped.items())
        raise UserError(f"{where}: zip needs equally many values of each key; {lengths}")
    made = []
    for combination in itertools.product(*nested.values()):
        for beside in zip(*zipped.values(), strict=True) if zipped else [()]:
            chosen = dict(zip([*nested, *zipped], [*combination, *beside], strict=True))
            names = {k: _fill(str(plain[k]), chosen) for k in ("slug", "label") if k in plain}
            made.append({**plain, **names, "deviations": {**deviations, **chosen}})
    slugs = [one.get("slug") for one in made]
    if len(set(slugs)) != len(slugs):
        raise UserError(
            f"{where}: its {len(made)} rows need different slugs; put a swept key into it, such as {{{next(iter(chosen))}}}"
        )
    return made


def _values(given: Any, kind: str, where: str) -> dict[str, list[Any]]:
    if not isinstance(given, Mapping) or any(not isinstance(v, list) or not v for v in given.values()):
        raise UserError(f"{where}: {kind} maps keys to lists of values, such as {{method.n: [16, 32]}}; got {given!r}")
    return {str(k): list(v) for k, v in given.items()}


def _fill(text: str, chosen: Mapping[str, Any]) -> str:
    """Replace {key} by its value; other braces stay."""
    for key, value in chosen.items():
        text = text.replace("{" + key + "}", str(value))
    return text
