"""``python -m analysis trajectories <run>``: the rollout groups of a run, their responses, and what one receiver was given and why.

... <run> [--step 3] [--model tiny-qwen3] [--prompt ID]     groups; with --prompt or --reward the responses themselves
... <run> --receiver tiny-qwen3 --step 3                    every peer response that it was offered in that step
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.metrics import read_steps
from experiments.files import read_json
from experiments.run_record import RunRecord, UserError

Row = Mapping[str, Any]
TEXT = 100  # characters of a response that a line shows
MANIFEST = "_manifest.json"


@dataclass(frozen=True)
class Wanted:
    """Filters; None lets everything pass."""

    step: int | None = None
    model: str | None = None
    prompt: str | None = None
    reward: float | None = None

    def fits(self, row: Row) -> bool:
        pairs = ((self.model, row["model"]), (self.prompt, row["prompt_id"]), (self.reward, row["reward"]))
        return all(wanted is None or wanted == value for wanted, value in pairs)


@dataclass(frozen=True)
class GroupLine:
    """One rollout group: successes of n, mean length in tokens and mean log-prob per token (None where the log has no tokens)."""

    step: int
    model: str
    prompt: str
    successes: int
    n: int
    tokens: float | None
    logprob: float | None


def parts(folder: Path, step: int | None) -> list[Path]:
    """The parts of a log, or of one step; UserError where there are none."""
    files = sorted(folder.glob("step-*.parquet"))
    if step is not None:
        chosen = [f for f in files if int(f.stem.removeprefix("step-")) == step]
        if files and not chosen:
            numbers = [int(f.stem.removeprefix("step-")) for f in files]
            raise UserError(f"{folder} has no step {step}; it has steps {min(numbers)} to {max(numbers)}")
        files = chosen
    if not files:
        raise UserError(f"{folder} holds no step-*.parquet; give the directory of a run that trained")
    return files


def rows(file: Path) -> list[Row]:
    """All rows of a part; UserError names one that is torn or, by the log's manifest, changed."""
    manifest = file.parent / MANIFEST
    listed = read_json(manifest)["parts"].get(file.name) if manifest.exists() else None
    size = file.stat().st_size
    if listed is not None and listed["bytes"] != size:
        raise UserError(f"{file} is torn or was changed: it has {size} bytes, the manifest lists {listed['bytes']}")
    try:
        found: list[Row] = pq.ParquetFile(file).read().to_pylist()
    except pa.ArrowInvalid as e:
        raise UserError(f"{file} is torn or no Parquet file ({str(e).splitlines()[0]})") from e
    return found


def groups(part_rows: Sequence[Row]) -> Iterator[GroupLine]:
    """The groups of one part, in logged order."""
    by_group: dict[tuple[str, str], list[Row]] = {}
    for row in part_rows:
        by_group.setdefault((row["model"], row["prompt_id"]), []).append(row)
    for (model, prompt), mine in by_group.items():
        tokens = [len(r["ids"]) for r in mine if r["ids"]]
        logprobs = [x for r in mine for x in r["logprobs"] or ()]
        yield GroupLine(
            step=mine[0]["step"],
            model=model,
            prompt=prompt,
            successes=sum((r["reward"] or 0) > 0 for r in mine),
            n=len(mine),
            tokens=sum(tokens) / len(tokens) if tokens else None,
            logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        )


def print_groups(folder: Path, wanted: Wanted, limit: int, console: Console) -> None:
    table = Table(box=None, header_style="bold")
    for head in ("step", "model", "prompt", "correct", "tokens", "log-prob"):
        table.add_column(head, justify="left" if head in ("model", "prompt") else "right", no_wrap=True)
    shown = count = 0
    for file in parts(folder, wanted.step):
        for g in groups(rows(file)):
            if not wanted.fits({"model": g.model, "prompt_id": g.prompt, "reward": None}):
                continue
            count += 1
            if shown < limit:
                shown += 1
                table.add_row(str(g.step), g.model, g.prompt, f"{g.successes}/{g.n}", _number(g.tokens, 1), _number(g.logprob, 3))
    console.print(table)
    console.print(f"{count} groups" + (f", the first {shown} shown (--limit)" if shown < count else ""), highlight=False)


def print_responses(folder: Path, wanted: Wanted, limit: int, console: Console) -> None:
    fitting = [row for file in parts(folder, wanted.step) for row in rows(file) if wanted.fits(row)]
    for row in fitting[:limit]:
        mean = _number(sum(row["logprobs"]) / len(row["logprobs"]), 3) if row["logprobs"] else "-"
        head = f"step {row['step']}  {row['model']}  {row['prompt_id']}  #{row['index']}"
        facts = (
            f"reward {row['reward']:g} ({row['how']}, extracted {row['extracted']!r}), {row['finish_reason']}, log-prob {mean}"
        )
        console.print(Text(f"{head}  {facts}", style="bold"), soft_wrap=True)
        console.print(Text(row["text"]), soft_wrap=True)
    more = f", the first {limit} shown (--limit)" if len(fitting) > limit else ""
    console.print(f"{len(fitting)} responses" + more, highlight=False)


def source_texts(record: RunRecord, offered: Sequence[Row], step: int) -> dict[tuple[str, str, int], str]:
    """(source, prompt, index) -> text, from the run's own log and, for a stored peer matched by step, the donor's."""
    folders = [record.path / "trajectories"]
    donor = record.path / "donor.json"
    if donor.is_file() and (noted := read_json(donor))["match"] == "step":
        folders.append(Path(noted["path"]))
    sources = {r["source"] for r in offered}
    texts = {}
    for folder in folders:
        file = folder / f"step-{step:06d}.parquet"
        for row in rows(file) if file.is_file() else ():
            if row["model"] in sources:
                texts[row["model"], row["prompt_id"], row["index"]] = row["text"]
    return texts


def print_given(record: RunRecord, receiver: str, step: int, console: Console) -> None:
    """What one receiver was offered in one step: per prompt its own group, the source's, and what became of each response."""
    models = [m["name"] for m in record.config["recipe"]["models"]]
    if receiver not in models:
        raise UserError(f"{record.path} trained {', '.join(models)}, not {receiver}")
    metrics = next((s for s in read_steps(record.path) if s.step == step), None)
    (file,) = parts(record.path / "transfers", step)
    offered = [r for r in rows(file) if r["receiver"] == receiver]
    own = {g.prompt: g for g in groups(rows(*parts(record.path / "trajectories", step))) if g.model == receiver}
    failed = sum(g.successes == 0 for g in own.values())
    console.print(f"step {step}, {receiver}: {len(own)} prompts, {failed} without a success", highlight=False)
    for row in metrics.exchange if metrics else ():
        if row["receiver"] == receiver:
            counts = ", ".join(f"{k} {row[k]}" for k in ("candidates", "m", "selected", "used", "offered", "admitted"))
            console.print(f"from {row['source']}: {counts}", highlight=False)
    texts = source_texts(record, offered, step)
    for source, prompt in dict.fromkeys((r["source"], r["prompt_id"]) for r in offered):
        mine = [r for r in offered if (r["source"], r["prompt_id"]) == (source, prompt)]
        right = sum(r["reward"] > 0 for r in mine)
        has = f"{own[prompt].successes}/{own[prompt].n}" if prompt in own else "-"
        console.print(Text(f"\n{prompt}: {receiver} {has} correct; of {source} {right} of {len(mine)} offered", style="bold"))
        console.print(_offered(mine, texts))
    if not offered:
        console.print("it was offered nothing: no prompt was selected in its direction (docs/metrics.md: candidates, m)")


def _offered(mine: Sequence[Row], texts: Mapping[tuple[str, str, int], str]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for head in ("#", "reward", "advantage", "s", "w"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True)
    table.add_column("text", overflow="fold")
    for r in mine:
        text = " ".join(texts.get((r["source"], r["prompt_id"], r["index"]), "(not in a log here)").split())
        cut = text[:TEXT] + ("…" if len(text) > TEXT else "")
        numbers = (_number(r["advantage"], 3), _number(r["score"], 3), _number(r["weight"], 3))
        table.add_row(str(r["index"]), f"{r['reward']:g}", *numbers, r["reason"], Text(cut))
    return table


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def main(argv: Sequence[str]) -> int:
    """The command; UserError is the caller's to print."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis trajectories", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--step", type=int)
    parser.add_argument("--model", help="only groups of this model")
    parser.add_argument("--prompt", help="only this prompt id; prints the responses")
    parser.add_argument("--reward", type=float, help="only responses with this reward; prints them")
    parser.add_argument("--receiver", help="what this model was offered in --step")
    parser.add_argument("--limit", type=int, default=50, help="lines at most (default: 50)")
    args = parser.parse_args(argv)
    console = Console(width=None if Console().is_terminal else 200, markup=False)
    record = RunRecord.open(args.run)
    if args.receiver is not None:
        if args.step is None:
            raise UserError("--receiver needs --step: what it was offered in which step?")
        print_given(record, args.receiver, args.step, console)
        return 0
    wanted = Wanted(args.step, args.model, args.prompt, args.reward)
    show = print_responses if args.prompt is not None or args.reward is not None else print_groups
    show(record.path / "trajectories", wanted, args.limit, console)
    return 0
