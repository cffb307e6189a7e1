"""Prompt sets that come as JSONL files: MATH train and the paper's five benchmarks. docs/data.md says which files go where.

The texts are never part of this project; only counts are pinned here.
"""

from __future__ import annotations

from pathlib import Path

from experiments.errors import UserError
from experiments.files import iter_jsonl
from graft.types import Prompt

ITEMS = {"math-train": 7500, "math500": 500, "aime2024": 30, "aime2025": 30, "amc23": 40, "minerva": 272}


def file_name(source: str) -> str:
    return f"{source.replace('-', '_')}.jsonl"


def read_prompts(source: str, root: str | None) -> tuple[Prompt, ...]:
    """Prompts of ``<root>/<source>.jsonl`` with fields id, problem, answer. Items without an answer cannot be verified and are left out.

    UserError when the root or the file is missing, a field is absent, or the number of rows is not the pinned one.
    """
    if root is None:
        raise UserError(
            f"data set {source} is read from a local file: give data.root=<directory with {file_name(source)}> (docs/data.md)"
        )
    path = Path(root) / file_name(source)
    if not path.is_file():
        raise UserError(
            f"{path} does not exist. Put the {ITEMS[source]} items of {source} there (docs/data.md), or correct data.root."
        )
    rows = list(iter_jsonl(path))
    if len(rows) != ITEMS[source]:
        raise UserError(
            f"{path} has {len(rows)} items; {source} of the paper has {ITEMS[source]}. Another edition gives other numbers."
        )
    prompts = []
    for number, row in enumerate(rows, 1):
        missing = [k for k in ("id", "problem", "answer") if k not in row]
        if missing:
            raise UserError(f"{path}:{number}: no field {', '.join(missing)}; each line needs id, problem and answer")
        if str(row["answer"]).strip():
            prompts.append(Prompt(str(row["id"]), row["problem"], str(row["answer"])))
    return tuple(prompts)
