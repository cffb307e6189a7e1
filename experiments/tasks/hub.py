"""The file-based sets from the Hugging Face hub (``data.root=hub``). Needs a network and the optional package ``datasets``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.errors import UserError
from experiments.tasks.files import INTEGER_GOLDS, Item, to_item
from experiments.tasks.pinning import name_by_text

HUB = "hub"
BOX = re.compile(r"\\(?:boxed|fbox)\s*")


@dataclass(frozen=True)
class HubSet:
    """Where a set lies and which columns hold it. Without an ``answer`` column the gold is the last box of ``solution``.

    ``repairs``: texts that the copy has in place of others, from LaTeX read with its backslashes as escapes.
    """

    path: str
    split: str
    problem: str = "problem"
    answer: str | None = "answer"
    solution: str = "solution"
    configs: tuple[str | None, ...] = (None,)
    revision: str | None = None
    repairs: tuple[tuple[str, str], ...] = ()


SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
# A revision is given where the file of that revision is known to be the one behind the pins.
SETS: Mapping[str, HubSet] = {
    "math-train": HubSet("EleutherAI/hendrycks_math", "train", answer=None, configs=SUBJECTS),
    "math500": HubSet("HuggingFaceH4/MATH-500", "test", revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
    "aime2024": HubSet("HuggingFaceH4/aime_2024", "train"),
    "aime2025": HubSet(
        "math-ai/aime25",
        "test",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        repairs=(("\f", "\\f"), ("\t", "\\t")),
    ),
    "amc23": HubSet("math-ai/amc23", "test", problem="question"),
    "minerva": HubSet("math-ai/minervamath", "test", problem="question"),
}


def fetch_items(source: str) -> tuple[Item, ...]:
    """The set's rows under the pinned ids of their texts; rows that match no pin are named <set>/hub/<row>.

    UserError without the package, without a network, and for a copy with other columns.
    """
    hub = SETS[source]
    items = []
    for number, row in enumerate(_rows(source, hub)):
        problem, answer = row[hub.problem], last_box(row[hub.solution]) if hub.answer is None else row[hub.answer]
        for wrong, right in hub.repairs:
            problem = problem.replace(wrong, right)
        fields = {"id": f"{source}/hub/{number}", "problem": problem, "answer": answer}
        items.append(to_item(f"{hub.path}, row {number}", fields, integer=source in INTEGER_GOLDS))
    return name_by_text(source, items)


def _rows(source: str, hub: HubSet) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError as e:
        raise UserError(
            f"data.root=hub reads {source} with the package datasets, which is not installed: pip install datasets, "
            "or give a directory with the files (docs/data.md)"
        ) from e
    needed = {hub.problem, hub.answer or hub.solution}
    for config in hub.configs:
        try:
            loaded = datasets.load_dataset(hub.path, config, split=hub.split, revision=hub.revision)
        except Exception as e:  # the hub's clients raise many types, from refused connections to damaged caches
            raise UserError(
                f"{source} could not be loaded from the hub ({hub.path}): {type(e).__name__}: {e}. Without a network put the "
                "files into a directory and give data.root=<directory> (docs/data.md)."
            ) from e
        if not needed <= set(loaded.column_names):
            raise UserError(
                f"{hub.path} has the columns {', '.join(loaded.column_names)}; {', '.join(sorted(needed))} are needed. The "
                "copy on the hub has changed: use files (docs/data.md), or correct experiments/tasks/hub.py."
            )
        yield from loaded


def last_box(solution: str) -> str:
    """Contents of the last \\boxed or \\fbox, braces balanced; without braces, up to the end of the formula. Empty if none."""
    found = list(BOX.finditer(solution))
    if not found:
        return ""
    start = found[-1].end()
    if solution[start : start + 1] != "{":
        return re.split(r"[$\s]", solution[start:], maxsplit=1)[0]
    depth, escaped = 0, False
    for end in range(start, len(solution)):
        char = solution[end]
        depth += 0 if escaped else (char == "{") - (char == "}")
        escaped = char == "\\" and not escaped
        if depth == 0:
            return solution[start + 1 : end]
    return ""
