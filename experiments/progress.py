"""What a person sees while runs go on: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY_S = 5.0


def summary(metrics: Mapping[str, Any]) -> str:
    """One line: pass rate and all-fail share per model, groups exchanged per direction."""
    models = "  ".join(
        f"{m}: pass {v['reward_mean']:.2f} all-fail {v['all_fail_share']:.2f}" for m, v in metrics["models"].items()
    )
    moved = " ".join(f"{d['source']}->{d['receiver']} {d['used']}" for d in metrics["exchange"])
    return models + (f"  exchanged: {moved}" if moved else "")


class Display:
    """Shows the steps of several runs. Use as a context manager."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.progress = Progress(
            TextColumn("{task.fields[label]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._tasks: dict[str, Any] = {}
        self._started: dict[str, tuple[float, int]] = {}
        self._printed: dict[str, float] = {}

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def update(self, label: str, done: int, total: int, note: str = "") -> None:
        """Show that ``label`` has finished ``done`` of ``total``."""
        now = time.monotonic()
        first_time, first_done = self._started.setdefault(label, (now, done))
        if self.console.is_terminal:
            if label not in self._tasks:
                self._tasks[label] = self.progress.add_task("", total=total, label=label, note=note, completed=done)
            self.progress.update(self._tasks[label], completed=done, total=total, note=note)
        elif done >= total or now - self._printed.get(label, -PLAIN_EVERY_S) >= PLAIN_EVERY_S:
            self._printed[label] = now
            rate = (now - first_time) / (done - first_done) if done > first_done else None
            eta = f"ETA {rate * (total - done):.0f} s" if rate is not None else "ETA -"
            self.console.print(f"{label} {done}/{total} {eta}  {note}", soft_wrap=True, highlight=False, markup=False)

    def say(self, text: str) -> None:
        # No markup: the brackets of a folder's name or of an error message are its own.
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)
