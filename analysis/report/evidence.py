"""Where a number's evidence stands in the page: one entry per run directory, one per set of several, one per file of the paper's values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from analysis.report.gather import Content, Shown

# Run directories, or files of the paper's values, as a number names them.
Names = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """``single``: name -> anchor of its own entry. ``sets``: several names -> anchor. ``used_by``: name -> what shows a number of it.

    Tables call a run by its path, figures by the last part of it. All runs are of one folder, so here it is the last part.
    """

    single: Mapping[str, str]
    sets: Mapping[Names, str]
    used_by: Mapping[str, tuple[str, ...]]

    def href(self, names: Sequence[str]) -> str:
        """The link of a number that rests on these; "" for none."""
        known = short(names)
        if not known:
            return ""
        return "#" + (self.single[known[0]] if len(known) == 1 else self.sets[known])


def short(names: Sequence[str]) -> Names:
    """The last part of each, each once."""
    return tuple(dict.fromkeys(Path(name).name for name in names))


def collect(content: Content) -> Evidence:
    """The anchors of everything that some number of the page names, and of every run of the scale."""
    single = {run.path.name: anchor("run", run.path.name) for run in content.runs}
    sets: dict[Names, str] = {}
    used_by: dict[str, dict[str, None]] = {}
    for user, named in _named(content):
        names = short(named)
        for name in names:
            single.setdefault(name, anchor("file", name))
            used_by.setdefault(name, {})[user] = None
        if len(names) > 1:
            sets.setdefault(names, f"set-{len(sets) + 1}")
    return Evidence(single, sets, {name: tuple(users) for name, users in used_by.items()})


def anchor(kind: str, name: str) -> str:
    """An id that needs no escaping in a link."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"


def _named(content: Content) -> Iterable[tuple[str, Names]]:
    """(id of the table, figure or claim, what one of its numbers rests on), in the order of the page."""
    for shown in (*content.tables, *content.figures):
        yield from ((shown.outcome.name, names) for names in _items(shown))
    for judged in content.claims:
        yield claim_anchor(judged.claim.id), claim_runs(judged.findings)


def _items(shown: Shown) -> Iterable[Names]:
    parts = shown.page.parts if shown.page else ()
    return (item.runs for part in parts for line in part.lines for item in line.items if item.runs)


def claim_anchor(claim: str) -> str:
    return anchor("claim", claim)


def claim_runs(findings: Sequence) -> Names:
    """All runs behind a claim, each once."""
    return tuple(dict.fromkeys(run for f in findings for run in f.runs))


def file_href(path: Path, page: Path) -> str:
    """A relative link from the folder of the page to a file or folder. By the names as given: a browser resolves ``..`` by name, too."""
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(page))
    return quote(Path(relative).as_posix())
