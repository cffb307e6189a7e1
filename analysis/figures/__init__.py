"""Figures of the paper and three of our own: run records or printed numbers -> points -> PDF, PNG and CSV.

``FIGURES``: the kinds that a spec can name. A figure's module makes ``FigureData`` and draws it; ``build`` and ``write_figure`` are
what the command calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from analysis.figures import ablation, clipping_order, complementarity, curves, exchange_dynamics, score_cost, stored, style
from analysis.figures.common import FigureData, Query, to_csv, to_page
from analysis.figures.spec import FigureSpec, load_spec
from analysis.writers import write_atomic
from experiments.run_record import UserError

__all__ = ["FIGURES", "Query", "build", "load_spec", "to_csv", "to_page", "to_png", "write_figure"]


@dataclass(frozen=True)
class Kind:
    """``from_reported`` None: the paper prints no number of it."""

    from_runs: Callable[[FigureSpec, Query], FigureData]
    from_reported: Callable[[FigureSpec], FigureData] | None
    draw: Callable[[FigureData], Figure]


FIGURES: dict[str, Kind] = {
    "complementarity": Kind(complementarity.from_runs, complementarity.from_reported, complementarity.draw),
    "pair_score_cost": Kind(score_cost.pair_from_runs, score_cost.pair_from_reported, score_cost.draw_pair),
    "model_score_cost": Kind(score_cost.each_from_runs, score_cost.each_from_reported, score_cost.draw_each),
    "stored_gain": Kind(stored.from_runs, stored.from_reported, stored.draw),
    "curves": Kind(curves.from_runs, None, curves.draw_figure),
    "ablation_deltas": Kind(ablation.from_runs, ablation.from_reported, ablation.draw),
    "exchange_dynamics": Kind(exchange_dynamics.from_runs, None, exchange_dynamics.draw),
    "clipping_by_order": Kind(clipping_order.from_runs, clipping_order.from_reported, clipping_order.draw),
}


def build(spec: FigureSpec, query: Query | None) -> FigureData:
    """The data of a figure; ``query`` None: from the paper's printed numbers."""
    kind = FIGURES[spec.kind]
    if query is not None:
        return kind.from_runs(spec, query)
    if kind.from_reported is None:
        raise UserError(f"{spec.name}: the paper prints no number of this figure; leave out --source")
    return kind.from_reported(spec)


def to_png(data: FigureData) -> bytes:
    """The picture alone, as ``write_figure`` writes it."""
    with style.styled():
        return style.render(FIGURES[data.spec.kind].draw(data), "png")


def write_figure(data: FigureData, out: Path) -> list[Path]:
    """``out/<scale>/<name>.{pdf,png,csv}``; the paper's own values go to ``out/reported/``."""
    folder = out / data.scale
    paths = []
    with style.styled():
        for suffix in ("pdf", "png"):
            # Drawn anew for each format: laying a figure out for one changes it for the next by rounding.
            path = folder / f"{data.spec.name}.{suffix}"
            style.write_bytes(path, style.render(FIGURES[data.spec.kind].draw(data), suffix))
            paths.append(path)
    write_atomic(folder / f"{data.spec.name}.csv", to_csv(data))
    return [*paths, folder / f"{data.spec.name}.csv"]
