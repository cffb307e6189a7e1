"""The wandb mirror: real offline runs read back from wandb's own file, a server's resumed run (made up), and failures."""

from __future__ import annotations

import json
import struct
import sys
import time
import types

import pytest

from experiments.files import JsonlWriter
from experiments.run_record import RunRecord
from experiments.tracking import STEP, NoTracker, bounded, open_tracker, run_id
from tests.experiments.smoke import TINY, kill_when, only_run, run


def make(root):
    cell = {"method": "graft", "pair": "1", "models": ["a"], "scale": "cpu", "seed": 0}
    return RunRecord.create(root, cell=cell, recipe={"seed": 0}, deviations={})


def row(step):
    return {"step": step, "models": {"a": {"reward_mean": step / 8}}, "exchange": []}


def write_rows(record, steps):
    writer = JsonlWriter(record.path / "metrics.jsonl", 0)
    for step in steps:
        writer.append(row(step))
    writer.close()


BLOCK, HEADER = 32768, struct.Struct("<IHB")


def datastore(file):
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes; parts of a record are first, middle, last."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        at += HEADER.size
        parts.append(data[at : at + length])
        at += length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def history(part):
    """(train/step, value of a metric) of every history row in an offline part, and the names that define_metric gave."""
    (file,) = part.glob("*.wandb")
    rows, defined = [], {}
    for record in datastore(file):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append(
                {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in record.history.item}
            )
        if kind == "metric":
            defined[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    return rows, defined


@pytest.fixture
def offline(monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.mark.slow
def test_offline_one_part_holds_the_history_of_all_attempts(tmp_path, offline):
    record = make(tmp_path)
    first = open_tracker("wandb", record)
    write_rows(record, range(1, 4))
    for step in range(1, 6):
        first.log(step, row(step))
    first.close()
    write_rows(record, range(1, 4))  # the checkpoint was after step 3: a restart truncates to it and repeats 4 and 5
    second = open_tracker("wandb", record)
    for step in range(4, 8):
        second.log(step, row(step))
    second.close()
    (part,) = (record.path / "wandb").glob("offline-run-*")
    assert part.name.endswith(run_id(record))
    rows, defined = history(part)
    assert [(r[STEP], r["a/reward_mean"]) for r in rows] == [(k, k / 8) for k in range(1, 8)]
    assert defined == {STEP: "", "*": STEP}


@pytest.mark.slow
def test_a_killed_run_ends_with_one_part_of_every_step(tmp_path, offline):
    args = ("method=graft", "pair=1", *TINY, "logger=wandb", "evaluate=false", f"runs_root={tmp_path}")
    killed = kill_when(args, lambda: any(len(f.read_bytes().splitlines()) >= 5 for f in tmp_path.glob("*/*/metrics.jsonl")))
    assert killed
    path = only_run(tmp_path)
    assert len(list((path / "wandb").glob("offline-run-*"))) == 1
    again = run("experiments.train", *args)
    assert again.returncode == 0, again.stderr
    assert "wandb" not in again.stderr  # neither could not start nor did not finish
    (part,) = (path / "wandb").glob("offline-run-*")
    assert [r[STEP] for r in history(part)[0]] == list(range(1, 8))


class FakeRun:
    offline = False

    def __init__(self, summary, fail_at=None):
        self.summary, self.fail_at, self.rows, self.defined, self.dir = summary, fail_at, [], [], "."

    def define_metric(self, *args, **how):
        self.defined.append((args, how))

    def log(self, values):
        if values[STEP] == self.fail_at:
            raise ConnectionError("server gone")
        self.rows.append(values[STEP])

    def finish(self):
        raise RuntimeError("cannot finish")


@pytest.fixture
def server(monkeypatch):
    """A module wandb whose run was at some step already."""

    def install(fake):
        calls = []
        module = types.SimpleNamespace(Settings=lambda **_: None, init=lambda **how: (calls.append(how), fake)[1])
        monkeypatch.setitem(sys.modules, "wandb", module)
        return calls

    return install


def test_online_rows_that_the_server_has_are_not_sent_again(tmp_path, server):
    record, fake = make(tmp_path), FakeRun({STEP: 4})
    calls = server(fake)
    write_rows(record, range(1, 7))  # the checkpoint is after step 6; steps 5 and 6 never reached the server
    tracker = open_tracker("wandb", record)
    for step in range(7, 9):
        tracker.log(step, row(step))
    assert fake.rows == [5, 6, 7, 8]
    assert (calls[0]["id"], calls[0]["resume"]) == (run_id(record), "allow")
    assert fake.defined == [((STEP,), {}), (("*",), {"step_metric": STEP})]


def test_online_repeated_steps_are_not_sent_again(tmp_path, server):
    record, fake = make(tmp_path), FakeRun({STEP: 5})
    server(fake)
    write_rows(record, range(1, 3))  # the checkpoint is after step 2, the server saw step 5
    tracker = open_tracker("wandb", record)
    for step in range(3, 8):
        tracker.log(step, row(step))
    assert fake.rows == [6, 7]


def test_failures_are_notes(tmp_path, server, capsys, monkeypatch):
    record, fake = make(tmp_path), FakeRun({}, fail_at=2)
    server(fake)
    tracker = open_tracker("wandb", record)
    for step in range(1, 5):
        tracker.log(step, row(step))
    tracker.close()
    said = capsys.readouterr().err
    assert fake.rows == [1]
    assert said.count("wandb stopped") == 1
    assert "did not finish cleanly" in said
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert isinstance(open_tracker("wandb", record), NoTracker)
    assert "could not start" in capsys.readouterr().err


def test_a_hanging_finish_is_left_behind():
    started = time.monotonic()
    assert bounded(lambda: time.sleep(30), 0.05) == "no answer within its time"
    assert time.monotonic() - started < 5
    assert bounded(lambda: None, 5) is None


def test_the_stored_id_wins(tmp_path):
    record = make(tmp_path)
    assert run_id(record) == record.config["fingerprint"][:16]
    (record.path / "wandb.json").write_text('{"id": "another"}')
    assert run_id(record) == "another"
