"""The finished runs behind one or several tables, with their evaluation rows read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.collect import Match, evaluation_frame, model_of, require_comparable
from analysis.schema import empty_frame
from experiments.run_record import RunRecord


@dataclass(frozen=True)
class Evidence:
    """Finished runs, all evaluated alike, with their evaluation rows: all, and split by (directory, model)."""

    used: tuple[RunRecord, ...]
    frame: pd.DataFrame
    by_model: Mapping[tuple[str, str], pd.DataFrame]

    def rows_of(self, record: RunRecord, receiver: str) -> pd.DataFrame:
        """The rows of the run's model that stands for the receiver."""
        return self.by_model.get((str(record.path), model_of(record, receiver)["name"]), empty_frame())


def gather(matches: Iterable[Match]) -> Evidence:
    """The finished runs among the matches, each once. UserError if they were not evaluated alike."""
    used = tuple({m.done.path: m.done for m in matches if m.done}.values())
    require_comparable(used)
    frame = evaluation_frame(used)
    # Split once: at paper scale a search through the whole frame for every cell takes minutes.
    return Evidence(used, frame, dict(iter(frame.groupby(["directory", "model"]))))
