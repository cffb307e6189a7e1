"""One look for all figures: fonts, colours that colour-blind readers tell apart, markers that survive grey print, and the files.

Colours: Okabe and Ito (2008), without yellow. Colour is never the only mark: every series has its own marker or line style. Sizes
are for the page: ``SINGLE`` and ``DOUBLE`` are column widths in inches, no text is below 7 pt. Same data, same bytes: no dates, no
random ids.
"""

from __future__ import annotations

import io
import os
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

SINGLE, DOUBLE = 3.3, 6.9
DPI = 200
FONT = 7.0
LINE = 0.135  # inches per line of the foot
BLACK, BLUE, RED, GREEN, ORANGE, SKY, PURPLE, GREY = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#666666",
)  # fmt: skip

RC: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same glyphs everywhere
    "font.size": FONT,
    "axes.titlesize": 7.5,
    "axes.labelsize": FONT,
    "xtick.labelsize": FONT,
    "ytick.labelsize": FONT,
    "legend.fontsize": FONT,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.0,
    "figure.dpi": DPI,
    "pdf.fonttype": 42,  # TrueType, embedded: text stays text
    "svg.hashsalt": "graft",
}


@dataclass(frozen=True)
class Look:
    color: str
    marker: str
    line: str


# A method looks the same in every figure. No method is a star: that is the selected checkpoint.
LOOKS = {
    "grpo_n8": Look(BLACK, "o", "-"),
    "grpo_n16": Look(BLACK, "s", "-"),
    "grpo_n32": Look(BLACK, ">", "-"),
    "grpo_n8_dynamic_sampling": Look(GREY, "P", (0, (1, 1))),
    "hacpo": Look(ORANGE, "v", (0, (5, 1.5, 1, 1.5))),
    "sgt": Look(GREEN, "^", (0, (4, 1.5))),
    "graft": Look(RED, "D", "-"),
    "full": Look(RED, "D", "-"),
    "graft_stored": Look(BLUE, "X", (0, (2, 1))),
}
# For series that are no method (directions, kinds of tokens), and for rows without a look of their own.
SPARE = (
    Look(BLUE, "o", "-"), Look(RED, "s", (0, (4, 1.5))), Look(GREEN, "^", (0, (1, 1))), Look(PURPLE, "D", (0, (5, 1.5, 1, 1.5))),
    Look(ORANGE, "v", "-"), Look(SKY, "P", (0, (2, 1))),
)  # fmt: skip


def looks(slugs: Sequence[str]) -> dict[str, Look]:
    """Slug -> look; spare ones are dealt in order, those first that share neither colour nor marker and line with a method's."""
    methods = [LOOKS[slug] for slug in slugs if slug in LOOKS]
    order = sorted(SPARE, key=lambda s: any(s.color == m.color or (s.marker, s.line) == (m.marker, m.line) for m in methods))
    spare = iter(order * (1 + len(slugs) // len(order)))
    return {slug: LOOKS.get(slug) or next(spare) for slug in slugs}


def handle(look: Look, label: str, *, line: bool = False, filled: bool = True) -> Line2D:
    """An entry of a legend: legends are made of these, so that their order is the spec's and not that of drawing."""
    face = look.color if filled else "none"
    return Line2D(
        [],
        [],
        color=look.color,
        marker=look.marker,
        markersize=4.0,
        markerfacecolor=face,
        linestyle=look.line if line else "none",
        label=label,
    )


def empty(ax: Axes, text: str) -> None:
    """Say in a panel without data that it has none."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)
    ax.set_xticks([])


@contextmanager
def styled() -> Iterator[None]:
    """Within it, new figures have the house look. The defaults come first: a user's matplotlibrc changes nothing."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.use("Agg")
        matplotlib.rcParams.update(RC)
        yield


def new_figure(width: float, height: float, foot: Sequence[str]) -> Figure:
    """A figure whose axes take ``height`` inches, with the foot's lines under them; the axes are laid out when it is saved."""
    per_line = int(width * 72 / (FONT * 0.53))
    lines = [line for text in foot for line in textwrap.wrap(text, per_line)]
    below = LINE * len(lines) + (0.08 if lines else 0.0)
    figure = Figure(figsize=(width, round((height + below) * DPI) / DPI))
    share = below / (height + below)
    figure.set_layout_engine("constrained", rect=(0, share, 1, 1 - share))
    figure.text(0.012, share - 0.03 / (height + below), "\n".join(lines), va="top", ha="left", color="#333333", linespacing=1.25)
    return figure


def render(figure: Figure, suffix: str) -> bytes:
    """The file's bytes; the same figure gives the same bytes."""
    nothing = {"pdf": {"CreationDate": None, "Producer": None, "Creator": None}, "png": {"Software": None}, "svg": {"Date": None}}
    image = io.BytesIO()
    with warnings.catch_warnings():
        # A layout that did not fit and a letter that the font lacks are warnings to matplotlib; here they are a bad file.
        warnings.simplefilter("error", UserWarning)
        figure.savefig(image, format=suffix, dpi=DPI, metadata=nothing[suffix])
    return image.getvalue()


def write_bytes(path: Path, content: bytes) -> None:
    """Written aside, synced and renamed, as all files of a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
