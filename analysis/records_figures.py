"""Numbers that the paper's text reads off its figures, from the data of our own figures, as cells for the claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from analysis import figures
from analysis.cells import Key, Value
from analysis.figures.common import HERE, FigureData, Query, panel_of
from analysis.figures.complementarity import MEAN
from analysis.figures.spec import FigureSpec
from analysis.figures.stored import COST

STORED, LIVE = "graft_stored", "graft"


def figure_cells(name: str, kind: str, query: Query, specs: Path) -> dict[Key, Value]:
    """The cells of a figure; none for a figure of which the text says no number."""
    if kind not in READERS:
        return {}
    spec = figures.load_spec(name, specs)
    return READERS[kind](spec, figures.build(spec, query))


def solved_by_peer(spec: FigureSpec, data: FigureData) -> dict[Key, Value]:
    """Figure 1: share of the receiver's all-fail prompts that the peer solves, mean over the steps, in percent."""
    (block,), (row,) = spec.blocks, spec.rows
    means = [p for p in data.points if p.panel == MEAN and p.source == HERE and p.y is not None]
    return {
        Key(spec.name, row.slug, "solved_by_peer", str(p.series), block.pair): Value(p.y, counted=True, runs=p.runs)
        for p in means
    }


def compute_saved(spec: FigureSpec, data: FigureData) -> dict[Key, Value]:
    """Figure 3b: by how many percent a stored peer costs less up to the selected checkpoint than the model's share of a live one."""
    found = {}
    hours = {(p.x, p.series): p for p in data.points if p.panel == COST and p.source == HERE and p.y}
    for block in spec.blocks:
        for receiver in block.receivers:
            stored, live = (hours.get((panel_of(block.pair, receiver), slug)) for slug in (STORED, LIVE))
            if stored and live:
                saved = 100 * (1 - stored.y / live.y)
                key = Key(spec.name, STORED, "compute_saved", receiver, block.pair)
                found[key] = Value(saved, counted=True, runs=(*stored.runs, *live.runs))
    return found


def least_margin(spec: FigureSpec, data: FigureData) -> dict[Key, Value]:
    """Figure 4: GRAFT's validation minus the best baseline's, the least after the first quarter of the steps, in points.

    A panel without a curve of each row has none: a margin over the baselines that happen to be there is another number.
    """
    found = {}
    slugs = [row.slug for row in spec.rows]
    ours = next(row.slug for row in spec.rows if row.method == LIVE)
    for block in spec.blocks:
        for receiver in block.receivers:
            mine = [p for p in data.points if p.panel == panel_of(block.pair, receiver) and p.y is not None]
            curves = {slug: {p.x: p.y for p in mine if p.series == slug} for slug in slugs}
            steps = set.intersection(*(set(c) for c in curves.values()))
            late = [s for s in steps if s >= max(steps) / 4] if steps else []
            if late:
                margins = [curves[ours][s] - max(curves[slug][s] for slug in slugs if slug != ours) for s in late]
                runs = tuple(dict.fromkeys(run for p in mine for run in p.runs))
                key = Key(spec.name, LIVE, "least_margin_after_first_quarter", receiver, block.pair)
                found[key] = Value(min(margins), counted=True, runs=runs)
    return found


READERS: Mapping[str, Callable[[FigureSpec, FigureData], dict[Key, Value]]] = {
    "complementarity": solved_by_peer,
    "stored_gain": compute_saved,
    "curves": least_margin,
}
