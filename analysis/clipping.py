"""Tables of kind "clipping" (table 9): how many own and grafted tokens the clip touched, from the metrics of joint runs.

Counts are of tokens in the loss denominators. Values are percent and unrounded; rounding is the last step before print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.collect import Match, model_of
from analysis.footer import SCALES, commits, golds, scale_note, stand_ins
from analysis.metrics import Step, count, read_steps
from analysis.page import Item, Line, Page, Part, Span, csv_number, csv_text, heading, number, receiver_head, todo_lists
from analysis.spec import RowSpec, only_known, read_rows, read_spec, reported_lines
from analysis.stats import mean_share, pooled_share, zero_share
from analysis.tables import match_row
from analysis.todo import Todo, progress, train_command, why_no_run
from experiments.run_record import RunRecord, UserError

# The words of the reported file.
SHARE, ZERO = "clipped_token_fraction", "steps_with_zero_peer_clipping"
OWN, PEER, BOTH = "self_generated", "grafted_peer", "both"
# (quantity, update, receiver, source)
Quantity = tuple[str, str, str, str]
CSV_COLUMNS = ("quantity", "update", "receiver", "source", "row", "aggregate", "value", "steps", "reported_value")


@dataclass(frozen=True)
class ClippingSpec:
    """``steps``: scale -> how many first steps enter (None: all); ``decimals`` by quantity; ``reported`` in percent."""

    name: str
    title: str
    caption: str
    pair: str
    receivers: tuple[str, str]
    steps: Mapping[str, int | None]
    decimals: Mapping[str, int]
    rows: tuple[RowSpec, ...]
    reported_file: str
    reported: Mapping[tuple[Quantity, str], float]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The lines of the table: own and grafted tokens of each receiver, then the share of steps over both."""
        a, b = self.receivers
        own, peer = [(SHARE, OWN, x, x) for x in (a, b)], [(SHARE, PEER, a, b), (SHARE, PEER, b, a)]
        return (*own, *peer, (ZERO, PEER, BOTH, BOTH))


@dataclass(frozen=True)
class Value:
    """Over ``steps`` steps that have tokens. ``pooled`` = tokens / tokens (no such thing for a share of steps)."""

    step_mean: float | None
    pooled: float | None
    steps: int


@dataclass(frozen=True)
class ClippingTable:
    """``values`` by (quantity, row slug); a row without a run has none. ``runs``: row slug -> its run directory."""

    spec: ClippingSpec
    scale: str
    values: Mapping[tuple[Quantity, str], Value]
    notes: tuple[str, ...]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[Todo, ...] = ()
    unfinished: tuple[Todo, ...] = ()
    unavailable: tuple[str, ...] = ()
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_spec(name: str, folder: Path) -> ClippingSpec:
    """Read and check a clipping table; the paper's values are in ``folder/../reported``."""
    path, given = read_spec(name, folder)
    given.pop("kind", None)
    only_known(given, ClippingSpec, str(path), derived=("name", "reported"))
    if len(given["receivers"]) != 2:
        raise UserError(f"{path}: a clipping table has two receivers, each the other's source; got {given['receivers']}")
    if set(given["decimals"]) != {SHARE, ZERO}:
        raise UserError(f"{path}: decimals are given for {SHARE} and {ZERO}, got {sorted(given['decimals'])}")
    steps = given["steps"]
    if set(steps) != set(SCALES) or any(n is not None and (type(n) is not int or n < 1) for n in steps.values()):
        raise UserError(f"{path}: steps give a number from 1, or null for all, for each of {', '.join(SCALES)}; got {steps}")
    rows, receivers = read_rows(given["rows"], str(path)), tuple(given["receivers"])
    reported = read_reported(folder.parent / "reported" / given["reported_file"])
    spec = ClippingSpec(
        **given | {"name": name, "pair": str(given["pair"]), "receivers": receivers, "rows": rows, "reported": reported}
    )
    needed = {(quantity, row.slug) for quantity in spec.quantities for row in rows}
    if needed != reported.keys():
        raise UserError(f"{path} and {spec.reported_file} do not list the same cells: {sorted(needed ^ reported.keys())}")
    return spec


def read_reported(path: Path) -> dict[tuple[Quantity, str], float]:
    """((quantity, update, receiver, source), row) -> the paper's value in percent."""
    values: dict[tuple[Quantity, str], float] = {}
    words = ("quantity", "update", "receiver", "source")
    for where, line in reported_lines(path, {*words, "peer_position", "value", "unit"}):
        quantity, update, receiver, source = (line[word] for word in words)
        key = ((quantity, update, receiver, source), line["peer_position"])
        if key in values or line["unit"] != "percent":
            raise UserError(
                f"{where}: {'a cell is given twice' if key in values else 'the unit is not percent'}; correct the file"
            )
        try:
            values[key] = float(line["value"])
        except ValueError as e:
            raise UserError(f"{where}: {e}") from e
    return values


def from_reported(spec: ClippingSpec) -> ClippingTable:
    """The paper's own values."""
    note = f"As printed in the paper (paper_tables/reported/{spec.reported_file}); nothing here was measured with this code."
    return ClippingTable(spec, "reported", {}, (note,))


def from_runs(spec: ClippingSpec, records: Sequence[RunRecord], *, scale: str, seed: int, methods: Path) -> ClippingTable:
    """The table of the given runs at one scale and training seed. ``methods``: folder with one YAML per method there is."""
    matches = {row.slug: match_row(records, row, spec.pair, spec.receivers[0], scale, seed) for row in spec.rows}
    done = {slug: m.done for slug, m in matches.items() if m.done}
    values: dict[tuple[Quantity, str], Value] = {}
    left_out = []
    for slug, record in done.items():
        tokens = token_counts(record, spec.receivers, spec.steps[scale])
        mine = measure(tokens, spec)
        values |= {(quantity, slug): value for quantity, value in mine.items()}
        steps = len(tokens[spec.receivers[0]])
        left_out.append(f"{slug} {steps - mine[spec.quantities[-1]].steps} of {steps}")
    reasons = {row.slug: _why(row, matches[row.slug], methods) for row in spec.rows if row.slug not in done}
    lacking = {
        why: [row for row in spec.rows if reasons.get(row.slug) == why] for why in ("missing", "unfinished", "unavailable")
    }
    command = {row.slug: train_command(row, pair=spec.pair, seed=seed, scale=scale) for row in lacking["missing"]}
    return ClippingTable(
        spec=spec,
        scale=scale,
        values=values,
        notes=_notes(spec, list(done.values()), left_out, scale=scale, seed=seed),
        stand_ins={m["stands_for"]: m["name"] for record in done.values() for m in record.config["recipe"]["models"]},
        missing=tuple(Todo(slug, spec.receivers, text) for slug, text in command.items()),
        unfinished=tuple(Todo(r.slug, spec.receivers, progress([matches[r.slug]])) for r in lacking["unfinished"]),
        unavailable=tuple(row.slug for row in lacking["unavailable"]),
        runs={slug: (str(record.path),) for slug, record in done.items()},
    )


def _why(row: RowSpec, found: Match, methods: Path) -> str:
    return "unfinished" if found.unfinished else why_no_run(row, methods)


def token_counts(record: RunRecord, receivers: Sequence[str], first: int | None) -> dict[str, np.ndarray]:
    """receiver -> int ``[steps, 4]``: own, clipped own, peer, clipped peer tokens of the ``first`` steps (None: of all)."""
    steps = read_steps(record.path)
    if first is not None and len(steps) < first:
        raise UserError(f"{record.path / 'metrics.jsonl'} holds steps 1 to {len(steps)}, the table needs 1 to {first}")
    out = {}
    for receiver in receivers:
        model = model_of(record, receiver)
        if model is None or record.config["cell"]["pair"] is None:
            raise UserError(f"{record.path} is no joint run with {receiver}; grafted tokens are in runs of both models only")
        out[receiver] = np.array([_tokens(step, model["name"], record.path) for step in steps[:first]], dtype=np.int64)
    return out


def _tokens(step: Step, model: str, run: Path) -> tuple[int, int, int, int]:
    row = step.models.get(model)
    if not isinstance(row, Mapping):
        raise UserError(f"{step.where}: no metrics of {model}")
    if not {"clipped_own_tokens", "clipped_peer_tokens"} <= row.keys():
        raise UserError(
            f"{step.where}: {model} has no clipped_own_tokens and clipped_peer_tokens. The run is of an earlier version, which wrote "
            f"the shares of single steps only; move {run} away and train it again."
        )
    keys = ("own_tokens", "clipped_own_tokens", "peer_tokens", "clipped_peer_tokens")
    own, clipped_own, peer, clipped_peer = (count(row, key, f"{step.where}: {model}") for key in keys)
    if clipped_own > own or clipped_peer > peer:
        raise UserError(f"{step.where}: {model} has more clipped tokens than tokens")
    return own, clipped_own, peer, clipped_peer


def measure(tokens: Mapping[str, np.ndarray], spec: ClippingSpec) -> dict[Quantity, Value]:
    """All quantities of one run, in percent; ``tokens`` as from ``token_counts``."""
    values = {}
    for quantity in spec.quantities:
        name, update, receiver, _ = quantity
        array = sum(tokens.values()) if receiver == BOTH else tokens[receiver]
        whole, part = (array[:, 0], array[:, 1]) if update == OWN else (array[:, 2], array[:, 3])
        steps = int((whole > 0).sum())
        if name == ZERO:
            values[quantity] = Value(_percent(zero_share(part, whole)), None, steps)
        else:
            values[quantity] = Value(_percent(mean_share(part, whole)), _percent(pooled_share(part, whole)), steps)
    return values


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _notes(spec: ClippingSpec, used: Sequence[RunRecord], left_out: Sequence[str], *, scale: str, seed: int) -> tuple[str, ...]:
    line = scale_note(scale, paper=True)
    if not used:
        return (line, f"No finished run of this table was found (scale {scale}, seed {seed}).")
    first = spec.steps[scale]
    return (
        line,
        *stand_ins([m for r in used for m in r.config["recipe"]["models"]], "Models"),
        "Clipped: the clipped term of the loss is strictly smaller than the unclipped one. Tokens: response tokens in the loss "
        f"denominators, of {'all steps' if first is None else f'steps 1 to {first}'} of one training run.",
        "pooled = sum of clipped tokens / sum of tokens over the steps. step mean = mean over steps of the share of each step, steps "
        "without tokens left out. The paper does not say which of the two it prints.",
        "Steps with zero peer clipping: steps in which no peer token of either model was clipped / steps with a peer token (under "
        f"'pooled' for lack of a second way). Steps without any peer token, left out: {'; '.join(left_out)}.",
        f"Training seed {seed}. Commits: {commits(used)}. — = no value.",
        *golds(used),
    )


def to_page(table: ClippingTable) -> Page:
    """Quantities as lines, positions of the peer minibatches as spans of columns."""
    spec = table.spec
    heads = ("paper",) if table.scale == "reported" else ("pooled", "step mean", "paper")
    spans = tuple(Span(row.label, heads) for row in spec.rows)
    lines: list[Line] = []
    for quantity in spec.quantities:
        if quantity[1:3] in ((OWN, spec.receivers[0]), (PEER, spec.receivers[0])):
            lines.append(Line("Clipped own tokens" if quantity[1] == OWN else "Clipped grafted tokens"))
        items = tuple(item for row in spec.rows for item in _items(table, quantity, row.slug))
        if quantity[0] == ZERO:
            lines.append(Line("Steps with zero peer clipping"))
        lines.append(Line("both models" if quantity[2] == BOTH else receiver_head(table.stand_ins, quantity[2]), items))
    return Page(
        name=spec.name,
        folder=table.scale,
        heading=heading(spec.name, spec.title, table.scale),
        title=spec.title,
        caption=spec.caption.strip(),
        parts=(Part("Percent", spans, tuple(lines)),),
        notes=table.notes,
        lists=todo_lists(table.missing, table.unfinished, table.unavailable),
    )


def _items(table: ClippingTable, quantity: Quantity, slug: str) -> tuple[Item, ...]:
    decimals = table.spec.decimals[quantity[0]]
    paper = Item(number(table.spec.reported[quantity, slug], decimals))
    if table.scale == "reported":
        return (paper,)
    value = table.values.get((quantity, slug), Value(None, None, 0))
    ours = (value.step_mean, None) if quantity[0] == ZERO else (value.pooled, value.step_mean)
    runs = table.runs.get(slug, ())
    return (*(Item(number(x, decimals), runs=() if x is None else runs) for x in ours), paper)


def to_csv(table: ClippingTable) -> str:
    """One line per quantity, row and aggregate; a share of steps is its own mean over steps. No value = empty field."""
    rows = []
    for quantity in table.spec.quantities:
        for row in table.spec.rows:
            value = table.values.get((quantity, row.slug))
            for aggregate in ("step_mean",) if quantity[0] == ZERO else ("pooled", "step_mean"):
                measured = csv_number(getattr(value, aggregate)) if value else ""
                steps = str(value.steps) if value else ""
                reported = csv_number(table.spec.reported[quantity, row.slug])
                rows.append([*quantity, row.slug, aggregate, measured, steps, reported])
    return csv_text(CSV_COLUMNS, rows)
