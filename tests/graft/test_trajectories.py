"""The trajectory log: what a row says, what a reader sees, and that a torn, missing, changed or unlisted part is named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from graft import trajectories
from graft.exchange_report import TransferRow
from graft.retokenize import Sender
from graft.trajectories import BrokenLog, Facts
from graft.types import Group, Prompt, Response, SamplingSettings, Verdict

FACTS = Facts(7, SamplingSettings(0.9, 0.95, 44), {"a": Sender("f00d", frozenset({3, 1}))})
OLD = [n for n in trajectories.SCHEMA.names[: trajectories.SCHEMA.get_field_index("correct")]]


def groups(step: int) -> dict[str, tuple[Group, ...]]:
    right = Response((5, 6, 0), (-0.5, -1.25, -0.125), f"x{step}", "eos", 1.0, Verdict(True, "3", "equal"))
    wrong = Response((5,), (-2.0,), "y\ud800", "length", 0.0, Verdict(False, None, "boxed missing"))
    return {"a": (Group(Prompt(f"p{step}", "q", "3"), "a", (1,), (right, wrong)),)}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        trajectories.append(tmp_path / "log", step, groups(step), FACTS)
    return tmp_path / "log"


def test_a_row_says_everything(log: Path) -> None:
    right, wrong = trajectories.read(log, 2).to_pylist()
    assert right == {
        **{"step": 2, "model": "a", "prompt_id": "p2", "index": 0, "text": "x2", "ids": [5, 6, 0], "finish_reason": "eos"},
        **{"logprobs": [-0.5, -1.25, -0.125], "reward": 1.0, "extracted": "3", "how": "equal", "correct": True},
        **{"mean_logprob": None, "seed": 7, "policy_step": 1, "temperature": 0.9, "top_p": 0.95, "max_response_tokens": 44},
    }
    assert (wrong["correct"], wrong["how"], wrong["text"]) == (False, "boxed missing", "y\\ud800")
    assert trajectories.senders(trajectories.read(log, 1)) == {"a": Sender("f00d", frozenset({1, 3}))}


def test_the_directory_is_data_to_pandas_and_pyarrow(log: Path) -> None:
    # The manifest lies in it and must not be taken for a part.
    frame = pd.read_parquet(log)
    assert len(frame) == ds.dataset(log).count_rows() == 6
    assert sorted(frame["policy_step"].unique()) == [0, 1, 2]


def test_a_whole_log_has_no_problems_and_equal_runs_are_equal_bytes(log: Path, tmp_path: Path) -> None:
    assert trajectories.problems(log) == []
    assert trajectories.steps(log) == (1, 2, 3)
    for step in (1, 2, 3):
        trajectories.append(tmp_path / "again", step, groups(step), FACTS)
    assert {f.name: f.read_bytes() for f in log.iterdir()} == {f.name: f.read_bytes() for f in (tmp_path / "again").iterdir()}
    entry = trajectories.manifest(log)["step-000003.parquet"]
    assert entry["rows"] == 2
    assert entry["bytes"] == (log / "step-000003.parquet").stat().st_size


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (tear, r"step-000003.parquet is torn or was changed: it holds \d+ bytes instead of \d+"),
        (change, "step-000003.parquet is torn or was changed: it holds other bytes"),
        (Path.unlink, "step-000003.parquet is missing, although the manifest lists it with 2 rows"),
    ],
)
def test_a_harmed_part_is_named(log: Path, harm, says: str) -> None:
    harm(log / "step-000003.parquet")
    with pytest.raises(BrokenLog, match=says):
        trajectories.read(log, 3)
    (problem,) = trajectories.problems(log)
    assert "step-000003.parquet" in problem
    assert trajectories.read(log, 2).num_rows == 2


def test_a_part_without_its_entry_is_named_and_written_again(log: Path) -> None:
    listed = trajectories.manifest(log)
    whole = (log / trajectories.MANIFEST).read_bytes()
    trajectories._write_manifest(log, {k: v for k, v in listed.items() if "3" not in k})  # killed between part and manifest
    assert trajectories.problems(log) == [
        f"{log / 'step-000003.parquet'} is not in the manifest: its writer was stopped before the step was complete"
    ]
    trajectories.drop_after(log, 2)
    assert [f.name for f in sorted(log.glob("*.parquet"))] == ["step-000001.parquet", "step-000002.parquet"]
    trajectories.append(log, 3, groups(3), FACTS)
    assert (log / trajectories.MANIFEST).read_bytes() == whole


def test_what_comes_after_a_checkpoint_is_dropped(log: Path) -> None:
    (log / "step-000004.tmp").write_bytes(b"half")
    trajectories.drop_after(log, 1)
    assert sorted(f.name for f in log.iterdir()) == [trajectories.MANIFEST, "step-000001.parquet"]
    assert trajectories.steps(log) == (1,)
    trajectories.drop_after(log, 0)
    assert list(log.iterdir()) == []
    trajectories.drop_after(log / "never was", 0)


def test_sync_reaches_what_was_written_since_and_its_names(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(trajectories.os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    trajectories.sync(log, 1)
    assert sorted(synced) == sorted(["step-000002.parquet", "step-000003.parquet", trajectories.MANIFEST, "log"])
    trajectories.sync(log / "never was", 0)


def test_a_step_that_was_not_logged_says_what_was(log: Path) -> None:
    with pytest.raises(FileNotFoundError, match="step 4 was not logged; the log holds steps 1 to 3"):
        trajectories.read(log, 4)
    (log / "step-000002.parquet").unlink()
    (log / trajectories.MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match="steps 1 to 3 without 2"):
        trajectories.read(log, 2)
    assert trajectories.problems(log) == [f"{log / 'step-000002.parquet'} is missing"]


def test_logs_of_the_first_format_are_read(tmp_path: Path) -> None:
    trajectories.append(tmp_path / "new", 1, groups(1), FACTS)
    old = trajectories.read(tmp_path / "new", 1).select(OLD).replace_schema_metadata(None)
    (tmp_path / "old").mkdir()
    pq.write_table(old, tmp_path / "old" / "step-000001.parquet", compression="zstd")
    row = trajectories.read(tmp_path / "old", 1).to_pylist()[0]
    assert (row["text"], row["reward"], row["policy_step"], row["temperature"]) == ("x1", 1.0, None, None)
    assert trajectories.senders(trajectories.read(tmp_path / "old", 1)) == {}
    assert trajectories.problems(tmp_path / "old") == []
    tear(tmp_path / "old" / "step-000001.parquet")
    with pytest.raises(BrokenLog, match=r"step-000001.parquet is torn or no Parquet file"):
        trajectories.read(tmp_path / "old", 1)


def test_other_parquet_is_no_log(tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": [1]}), tmp_path / "step-000001.parquet")
    with pytest.raises(BrokenLog, match="has no column model"):
        trajectories.read(tmp_path, 1)
    (tmp_path / trajectories.MANIFEST).write_text("{")
    with pytest.raises(BrokenLog, match="is not a manifest"):
        trajectories.steps(tmp_path)


def test_transfers_keep_score_weight_and_reason(tmp_path: Path) -> None:
    row = TransferRow("p", "a", "b", 3, 1.0, 2.5, 0.9, None, "below delta")
    trajectories.append_transfers(tmp_path, 5, [row, replace(row, score=None, reason="empty")])
    first, second = pq.read_table(trajectories.part(tmp_path, 5)).to_pylist()
    assert first == {
        **{"step": 5, "prompt_id": "p", "source": "a", "receiver": "b", "index": 3, "reward": 1.0},
        **{"advantage": 2.5, "score": 0.9, "weight": None, "reason": "below delta"},
    }
    assert (second["score"], second["reason"]) == (None, "empty")
    assert trajectories.manifest(tmp_path)["step-000005.parquet"]["rows"] == 2
