"""Invented problems in the shape of the file-based sets, with their own pins and overlay: no test needs the real texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.tasks import corrections, pinning
from experiments.tasks.files import ITEMS, file_name, to_item

Row = dict[str, Any]
OVERLAY = {
    "name": "corrected",
    "version": 3,
    "items": {
        "minerva/1": {"answer": "2 \\times 10^{3}", "kind": "notation", "reason": "a toy"},
        "math-train/3": {"answer": "13", "kind": "missing", "reason": "a toy"},
        "math-train/2": {"any_of": ["7", "8"], "kind": "alternatives", "reason": "a toy"},
    },
}


def rows_of(source: str) -> list[Row]:
    """Four toy items; the last gold of math-train is missing."""
    rows = [
        {"id": f"{source}/{i}", "problem": f"Toy {source}: what is ${i} + {10 * i}$ caf\u00e9 cups?", "answer": str(11 * i)}
        for i in range(4)
    ]
    if source == "minerva":
        rows[1]["answer"] = "2e3"
    if source == "math-train":
        rows[3]["answer"] = ""
    return rows


def write_jsonl(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overlay: Mapping[str, Any] = OVERLAY) -> Path:
    """Point pins and overlay at the toys and write the files of all sets; returns their root."""
    monkeypatch.setattr(pinning, "FOLDER", tmp_path / "pins")
    monkeypatch.setattr(corrections, "FOLDER", tmp_path / "golds")
    (tmp_path / "pins").mkdir()
    (tmp_path / "golds").mkdir()
    (tmp_path / "golds" / "corrected.json").write_text(json.dumps(overlay))
    root = tmp_path / "data"
    for source in ITEMS:
        items = [to_item("toy", row) for row in rows_of(source)]
        (tmp_path / "pins" / f"{source}.txt").write_text(pinning.format_pins(source, items))
        write_jsonl(root / file_name(source), rows_of(source))
    return root
