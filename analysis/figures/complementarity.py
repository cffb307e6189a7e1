"""Figure 1: of the prompts that the receiver's whole group fails, the share that the peer solves, in independent runs of the pair.

Independent GRPO runs of one pair and seed see the same prompts in the same step, so their logs can be laid side by side; that they
do is checked by the prompts' ids. Solved: at least one correct response in the group. A step in which the receiver fails no prompt
has no share and takes no part in the mean, which is over steps: every step weighs the same, as in the paper's "mean over training".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.collect import model_of
from analysis.figures import style
from analysis.figures.common import HERE, PAPER, FigureData, Point, Query, as_printed, find, measured
from analysis.figures.spec import Block, FigureSpec
from analysis.page import receiver_head
from experiments.run_record import RunRecord, UserError

PANEL = "solved by the peer, percent"
MEAN = "mean over steps"
RULE = (
    "All-fail: no correct response in the receiver's group. Solved: at least one in the peer's. Steps without an all-fail prompt have "
    "no share. The mean is over steps, each with the same weight."
)
COLUMNS = ["model", "prompt_id", "index", "reward"]


@dataclass(frozen=True)
class StepShare:
    """One step of one direction: prompts that the receiver's group fails, and how many of them the peer solves."""

    step: int
    failed: int
    solved: int

    @property
    def percent(self) -> float | None:
        return 100 * self.solved / self.failed if self.failed else None


def from_runs(spec: FigureSpec, query: Query) -> FigureData:
    """Both directions of the pair; a direction needs both runs."""
    (block,), (row,) = spec.blocks, spec.rows
    found = find(spec, query)
    runs = {x: found.done.get((block.pair, row.slug, x)) for x in block.receivers}
    points: list[Point] = []
    lines = [RULE]
    lacking = " ; ".join(dict.fromkeys(found.todo.values()))
    solved = {} if lacking else {x: solved_by_step(r, x) for x, r in runs.items() if r is not None}
    for receiver in block.receivers:
        if lacking:
            points += [Point(PANEL, receiver, None, None, todo=lacking), Point(MEAN, receiver, None, None, todo=lacking)]
        else:
            shares = step_shares(solved[receiver], solved[block.peer(receiver)], [str(r.path) for r in runs.values() if r])
            mine, note = _points(receiver, shares, tuple(r.path.name for r in runs.values() if r))
            points += mine
            lines.append(note)
    points += _paper(spec, block)
    return measured(found, points, lines=lines)


def from_reported(spec: FigureSpec) -> FigureData:
    """The paper prints the means; its curves are only drawn."""
    (block,) = spec.blocks
    only = "The paper prints only the means over training."
    return as_printed(spec, _paper(spec, block), source="section 1, figure 1", lines=(only,), foot=(only,))


def _paper(spec: FigureSpec, block: Block) -> list[Point]:
    return [Point(MEAN, x, None, float(spec.reported["means"][x]), source=PAPER, runs=("claims.csv",)) for x in block.receivers]


def solved_by_step(record: RunRecord, receiver: str) -> list[dict[str, bool]]:
    """Per step, from 1: prompt id -> whether the model's group has a correct response. UserError for a log with a gap."""
    model = (model_of(record, receiver) or {})["name"]
    folder = record.path / "trajectories"
    files = sorted(folder.glob("step-*.parquet"))
    if not files:
        raise UserError(f"{folder} holds no step; figure 1 is made from the run's trajectory log")
    for number, file in enumerate(files, 1):
        if file.stem != f"step-{number:06d}":
            raise UserError(f"{folder}: step {number} is missing before {file.name}; restore the part or train the run again")
    return [_solved(file, model) for file in files]


def _solved(file: Path, model: str) -> dict[str, bool]:
    try:
        rows = pq.read_table(file, columns=COLUMNS).to_pylist()
    except (pa.ArrowException, OSError) as e:
        raise UserError(f"{file} cannot be read ({e}); restore the part or train the run again") from e
    solved: dict[str, bool] = {}
    seen: set[tuple[str, int]] = set()
    for row in rows:
        key = (row["prompt_id"], row["index"])
        if row["model"] != model or key in seen or row["reward"] not in (0.0, 1.0):
            what = f"a row of {row['model']}, prompt {key[0]}, response {key[1]}, reward {row['reward']}"
            raise UserError(f"{file}: {what}; expected one row of {model} per response, with reward 0 or 1")
        seen.add(key)
        solved[row["prompt_id"]] = solved.get(row["prompt_id"], False) or row["reward"] == 1.0
    return solved


def step_shares(
    receiver: Sequence[Mapping[str, bool]], peer: Sequence[Mapping[str, bool]], where: Sequence[str]
) -> list[StepShare]:
    """One direction, step by step. UserError unless both logs hold the same prompts in every step."""
    if len(receiver) != len(peer):
        raise UserError(f"{' and '.join(where)} hold different numbers of steps; figure 1 compares them step by step")
    shares = []
    for step, (mine, theirs) in enumerate(zip(receiver, peer, strict=True), 1):
        if odd := sorted(mine.keys() ^ theirs.keys()):
            raise UserError(
                f"{' and '.join(where)} do not hold the same prompts in step {step}: {len(odd)} are in one of them only, e.g. "
                f"{', '.join(odd[:3])}. Both runs need the same training set, seed and prompts per step."
            )
        failed = [prompt for prompt, solved in mine.items() if not solved]
        shares.append(StepShare(step, len(failed), sum(theirs[prompt] for prompt in failed)))
    return shares


def _points(receiver: str, shares: Sequence[StepShare], runs: tuple[str, ...]) -> tuple[list[Point], str]:
    none = "no all-fail prompt in this step"
    points = [Point(PANEL, receiver, s.step, s.percent, runs=runs, todo="" if s.failed else none) for s in shares]
    whole = [s.percent for s in shares if s.percent is not None]
    mean = float(np.mean(whole)) if whole else None
    points.append(Point(MEAN, receiver, None, mean, runs=runs, todo="" if whole else "no all-fail prompt in any step"))
    failed, solved = sum(s.failed for s in shares), sum(s.solved for s in shares)
    return points, f"{receiver}: {solved} of {failed} all-fail prompts solved by the peer, {len(whole)} of {len(shares)} steps."


def draw(data: FigureData) -> Figure:
    """Two curves with their dotted means; the paper's means are in the legend, and are lines of their own where nothing else is."""
    (block,) = data.spec.blocks
    looks = style.looks(block.receivers)
    means = {(p.source, p.series): p.y for p in data.points if p.panel == MEAN}
    figure = style.new_figure(style.SINGLE, 2.5, (*data.foot, *_without(data, block)))
    ax = figure.add_subplot()
    handles = []
    for receiver, look in looks.items():
        points = data.of(PANEL, receiver)
        paper, mean = means.get((PAPER, receiver)), means.get((HERE, receiver))
        label = f"{receiver_head(data.stand_ins, receiver)} fails, peer solves" + _means(mean, paper)
        handles.append(style.handle(look, label, line=True))
        marker = {"marker": look.marker, "markersize": 2.0}
        ax.plot([p.x for p in points], [p.y for p in points], color=look.color, linestyle=look.line, linewidth=0.8, **marker)
        dotted = paper if data.scale == "reported" else mean
        if dotted is not None:
            ax.axhline(dotted, color=look.color, linestyle=":", linewidth=1.3)
    ax.set(xlabel="step", ylabel="all-fail prompts\nthat the peer solves, %", ylim=(-3, 103))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if data.scale == "reported":
        ax.set_xticks([])
    elif not any(data.of(PANEL, x) for x in block.receivers):
        style.empty(ax, "no finished runs of both models")
    figure.legend(handles=handles, loc="outside upper left")
    return figure


def _means(here: float | None, paper: float | None) -> str:
    parts = [f"{x:.1f} %{who}" for x, who in ((here, ""), (paper, " in the paper")) if x is not None]
    return f"\n(mean {', '.join(parts)})" if parts else ""


def _without(data: FigureData, block: Block) -> tuple[str, ...]:
    """What the curves lack: whole directions, or single steps."""
    if data.scale == "reported" or all(data.of(PANEL, x) for x in block.receivers):
        steps = sum(p.panel == PANEL and p.y is None for p in data.points)
        return (f"Steps in which the receiver fails no prompt have no point: {steps}.",) if steps else ()
    return ("No curve: a direction needs finished GRPO runs of both models.",)
