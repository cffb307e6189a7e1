"""The kinds of table there are, and a table of any kind as a page and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import clipping, compute, figures, layout, pairs, stability, tables
from analysis.page import Page
from analysis.spec import PASS_AT_1, load_spec, read_spec
from analysis.writers import write_all
from experiments.run_record import RunRecord, UserError

# kind -> (load spec, the paper's values, ours, page, csv)
KINDS: dict[str, tuple[Callable[..., Any], ...]] = {
    PASS_AT_1: (load_spec, tables.from_reported, tables.from_runs, layout.to_page, layout.to_csv),
    "pairs": (pairs.load_spec, pairs.from_reported, pairs.from_runs, layout.pairs_page, layout.pairs_csv),
    "stability": (pairs.load_spec, pairs.from_reported, stability.from_runs, layout.pairs_page, layout.pairs_csv),
    "compute": (compute.load_spec, compute.from_reported, compute.from_runs, compute.to_page, compute.to_csv),
    "clipping": (clipping.load_spec, clipping.from_reported, clipping.from_runs, clipping.to_page, clipping.to_csv),
}


@dataclass(frozen=True)
class Asked:
    """``specs``: folder of the table specs; ``methods``: folder with one YAML per method there is."""

    scale: str
    seed: int
    specs: Path
    methods: Path


def kind_of(name: str, specs: Path) -> str:
    """The spec's ``kind`` (none: pass@1), whether it is known here or not."""
    return str(read_spec(name, specs)[1].get("kind", PASS_AT_1))


def build_any(
    name: str, records: Callable[[], Sequence[RunRecord]] | None, asked: Asked, out: Path | None
) -> tuple[Page, str, list[Path]]:
    """A table or figure as page and CSV, and the files written under ``out`` (None: none)."""
    if kind_of(name, asked.specs) not in figures.FIGURES:
        page, csv = build_table(name, records, asked)
        return page, csv, write_all(page, csv, out) if out else []
    query = None if records is None else figures.Query(records(), asked.scale, asked.seed, asked.methods)
    data = figures.build(figures.load_spec(name, asked.specs), query)
    return figures.to_page(data), figures.to_csv(data), figures.write_figure(data, out) if out else []


def build_table(name: str, records: Callable[[], Sequence[RunRecord]] | None, asked: Asked) -> tuple[Page, str]:
    """The page of a table and its CSV, of the runs that ``records`` gives, or of the paper's own values without it."""
    kind = kind_of(name, asked.specs)
    if kind not in KINDS:
        raise UserError(f"{name}: kind {kind!r} is not known; known are {', '.join((*KINDS, *figures.FIGURES))}")
    load, from_reported, from_runs, to_page, to_csv = KINDS[kind]
    spec = load(name, asked.specs)
    if records is None:
        table = from_reported(spec)
    else:
        table = from_runs(spec, records(), scale=asked.scale, seed=asked.seed, methods=asked.methods)
    return to_page(table), to_csv(table)
