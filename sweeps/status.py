"""Where runs stand, as a table for people and as JSON for scripts; and the table that follows them to their end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.errors import UserError
from experiments.progress import Display
from experiments.run_record import RunRecord
from sweeps.survey import Standing, clock, last_lines, survey, track

WATCH_S = 2.0
COLOURS = {"done": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow"}


def look(records: Sequence[RunRecord]) -> list[Standing]:
    """The standing of each run, now."""
    if not records:
        return []
    return survey(records, track(records[0].path.parent))


def to_json(standings: Sequence[Standing]) -> str:
    return json.dumps([asdict(s) for s in standings], indent=1)


def counts(standings: Sequence[Standing]) -> str:
    """``2 done, 1 running``."""
    seen = [s.state for s in standings]
    return ", ".join(f"{seen.count(state)} {state}" for state in dict.fromkeys(seen)) or "no run"


def duration(seconds: float | None) -> str:
    """``-``, ``42 s``, ``7 min``, ``3 h 05``."""
    if seconds is None:
        return "-"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d}"


def table(standings: Sequence[Standing]) -> Table:
    """One line a run; the reason and the log of a run that needs a person."""
    made = Table(box=None, header_style="bold")
    for head, side in (
        ("run", "left"),
        ("state", "left"),
        ("try", "right"),
        ("step", "right"),
        ("ETA", "right"),
        ("pass", "right"),
    ):
        made.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
    made.add_column("hours", justify="right", no_wrap=True)
    made.add_column("job", no_wrap=True)
    made.add_column("reason, log", overflow="fold")
    for s in standings:
        step = f"{s.step}/{s.steps}" if s.steps else "-"
        told = (
            [s.reason, s.log]
            if s.state in ("failed", "interrupted")
            else [s.reason, s.log]
            if s.state == "running"
            else [s.reason]
        )
        made.add_row(
            s.name,
            Text(s.state, style=COLOURS.get(s.state, "")),
            str(s.attempt or "-"),
            step,
            duration(s.eta_s),
            "-" if s.pass_rate is None else f"{s.pass_rate:.2f}",
            f"{s.hours:.2f} {s.device}",
            s.job or "-",
            Text("  ".join(t for t in told if t)),
        )
    return made


def show(standings: Sequence[Standing], console: Console, *, lines: int = 5) -> None:
    """The table, and the last lines of each failed run's log."""
    console.print(table(standings))
    console.print(counts(standings), highlight=False)
    for s in standings:
        if s.state == "failed":
            console.print(f"\n{s.name} failed; the last lines of {s.log}:", highlight=False, soft_wrap=True, markup=False)
            console.print(Text(last_lines(Path(s.log), lines)))


def watch(records: Sequence[RunRecord], display: Display) -> int:
    """Follow runs until none is in hand: a live table on a terminal, a line for each change elsewhere. 0 if all are done, else 1.

    A scheduler that does not answer for a while (a restart) is asked again; Ctrl-C leaves the jobs alone.
    """
    seen: dict[str, str] = {}
    standings: list[Standing] = []
    try:
        with Live(console=display.console, auto_refresh=False, transient=True) as live:
            while True:
                try:
                    standings = look(records)
                except UserError as e:
                    display.say(f"{clock()} {e}; asking again")
                    time.sleep(WATCH_S * 5)
                    continue
                if display.console.is_terminal:
                    live.update(table(standings), refresh=True)
                else:
                    for s in standings:
                        if seen.get(s.name) != s.state:
                            display.say(f"{clock()} {s.name}: {s.state}" + (f" ({s.reason})" if s.reason else ""))
                        seen[s.name] = s.state
                if not any(s.in_hand for s in standings):
                    break
                time.sleep(WATCH_S)
    except KeyboardInterrupt:
        display.say("no longer watching; the jobs go on. `make status` shows them, `make cancel` stops them.")
        return 130
    show(standings, display.console)
    return 0 if all(s.state == "done" for s in standings) else 1
