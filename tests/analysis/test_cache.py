"""The cache of evaluation rows: what it must not change, what it must notice, and what it must survive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from analysis import cache
from analysis.collect import evaluation_frame, open_runs
from benchmarks.collect import generate, main as bench
from experiments.run_record import RunRecord, UserError

from .conftest import Runs, share

MODEL, BENCHMARK = "tiny-qwen3", "arith-heldout"
PROJECT = Path(__file__).resolve().parents[2]


def age(root: Path) -> None:
    """Files as if written a minute ago: rows of a file that may still change are not kept."""
    for file in root.glob("*/eval/*/*/*.jsonl"):
        before = time.time_ns() - 60 * 10**9
        os.utime(file, ns=(before, before))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Which files each call of ``read_files`` read, by name of model, benchmark and run."""
    seen: list[list[str]] = []
    real = cache.read_files

    def spy(files):
        seen.append(["/".join(file.path.parts[-3:]) for file in files])
        return real(files)

    monkeypatch.setattr(cache, "read_files", spy)
    return seen


@pytest.fixture
def record(runs: Runs) -> RunRecord:
    record = runs.make("graft", share(1))
    age(runs.root)
    return record


def equal(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    return a.equals(b) and list(a.dtypes) == list(b.dtypes)


def test_second_time_reads_no_file_and_gives_the_same(runs: Runs, record: RunRecord, read):
    first = evaluation_frame([record])
    assert [len(names) for names in read] == [2 * 2 * 2]
    assert equal(evaluation_frame([record]), first)
    assert len(read) == 1
    assert [p.name for p in (runs.root / ".cache").iterdir()] == [f"{record.path.name}.parquet"]
    assert not [p for p in record.path.rglob("*") if "parquet" in p.name]
    assert [r.path for r in open_runs(runs.root)] == [record.path]


def test_a_changed_file_costs_reading_that_file(runs: Runs, record: RunRecord, read):
    before = evaluation_frame([record])
    read.clear()
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    rows[2]["correct"] = not rows[2]["correct"]
    file = runs.write(record, MODEL, BENCHMARK, 1, rows[::-1])
    os.utime(file, ns=(time.time_ns() - 30 * 10**9,) * 2)
    after = evaluation_frame([record])
    assert read == [[f"{MODEL}/{BENCHMARK}/run1.jsonl"]]
    changed = before["correct"] != after["correct"]
    assert changed.sum() == 1
    where = before[changed].iloc[0]
    assert (where["model"], where["benchmark"], where["run"], where["item"], where["sample"]) == (
        MODEL,
        BENCHMARK,
        1,
        "item-0",
        2,
    )
    assert equal(after.drop(columns="correct"), before.drop(columns="correct"))
    assert equal(evaluation_frame([record]), after)
    assert len(read) == 1


def test_a_change_that_keeps_the_size_is_noticed_by_its_time(runs: Runs, record: RunRecord):
    before = evaluation_frame([record])
    file = runs.file(record, MODEL, BENCHMARK, 0)
    size = file.stat().st_size
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"tokens": 7', '"tokens": 8', 1), encoding="utf-8")
    assert file.stat().st_size == size
    assert (evaluation_frame([record])["tokens"] != before["tokens"]).sum() == 1


def test_a_removed_and_an_added_file(runs: Runs, record: RunRecord, read):
    file = runs.file(record, MODEL, BENCHMARK, 0)
    content, stat = file.read_bytes(), file.stat()
    whole = evaluation_frame([record])
    read.clear()
    file.unlink()
    less = evaluation_frame([record])
    assert len(less) == len(whole) - 8
    assert read == [[]]
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_mtime_ns - 10**9,) * 2)
    read.clear()
    assert equal(evaluation_frame([record]), whole)
    assert read == [[f"{MODEL}/{BENCHMARK}/run0.jsonl"]]


def test_another_version_recipe_or_damage_is_no_cache(runs: Runs, record: RunRecord, read, monkeypatch: pytest.MonkeyPatch):
    first = evaluation_frame([record])
    file = runs.root / ".cache" / f"{record.path.name}.parquet"
    monkeypatch.setattr(cache, "VERSION", "another")
    evaluation_frame([record])
    assert len(read) == 2
    evaluation_frame([record])
    assert len(read) == 2
    other = RunRecord(record.path, {**record.config, "fingerprint": "f" * 64})
    evaluation_frame([other])
    assert len(read) == 3
    for damage in (b"", b"PAR1", file.read_bytes()[:-20]):
        file.write_bytes(damage)
        assert equal(evaluation_frame([record]), first)
    assert len(read) == 6


def test_young_files_are_not_kept(runs: Runs, read):
    record = runs.make("graft", share(1))
    now = time.time_ns() + 10**9  # as if written just after the clock was read
    for file in record.path.glob("eval/*/*/*.jsonl"):
        os.utime(file, ns=(now, now))
    evaluation_frame([record])
    evaluation_frame([record])
    assert [len(names) for names in read] == [8, 8]


def test_a_root_that_cannot_be_written_works_without(runs: Runs, record: RunRecord, read, monkeypatch: pytest.MonkeyPatch):
    first = evaluation_frame([record])
    (runs.root / ".cache" / f"{record.path.name}.parquet").unlink()
    (runs.root / ".cache").rmdir()

    def read_only(self, *args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    assert equal(evaluation_frame([record]), first)
    assert equal(evaluation_frame([record]), first)
    assert [len(names) for names in read] == [8, 8, 8]
    assert not (runs.root / ".cache").exists()


def test_bad_rows_are_named_every_time_and_never_kept(runs: Runs, record: RunRecord):
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    rows[3]["correct"] = None
    runs.write(record, MODEL, BENCHMARK, 1, rows)
    age(runs.root)
    for _ in range(2):
        with pytest.raises(UserError, match=r"run1\.jsonl:4: correct is None"):
            evaluation_frame([record])


def test_caches_of_deleted_runs_go(runs: Runs, record: RunRecord):
    evaluation_frame([record])
    record.path.rename(runs.root.parent / "elsewhere")
    second = runs.make("grpo", share(1))
    age(runs.root)
    evaluation_frame([second])
    assert [p.name for p in (runs.root / ".cache").iterdir()] == [f"{second.path.name}.parquet"]


@pytest.mark.slow
def test_processes_that_write_at_once_leave_a_whole_cache(runs: Runs, record: RunRecord, read):
    # Two "versions" that take turns: every call finds the other's cache, reads all files and writes.
    code = (
        "import sys; from pathlib import Path; from analysis import cache; from analysis.collect import *\n"
        "for k in range(20):\n"
        "    cache.VERSION = str(k % 2); assert len(evaluation_frame(open_runs(Path(sys.argv[1])))) == 48"
    )
    command = [sys.executable, "-c", code, str(runs.root)]
    workers = [subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(w.wait(timeout=120), w.stderr.read()) for w in workers] == [(0, b"")] * 3
    assert [p.suffix for p in (runs.root / ".cache").iterdir()] == [".parquet"]
    evaluation_frame([record])
    evaluation_frame([record])
    assert len(read) == 1


@pytest.mark.slow
def test_seventy_thousand_rows_in_the_time_for_ten_times_as_many(tmp_path: Path):
    """The goal is 700,000 rows in 3 s cold and 0.5 s warm; a tenth of the rows has ten times the share of it, in CPU seconds."""
    root = tmp_path / "runs"
    rows = generate(root, directories=2, items=175, samples=4, response=150)
    age(root)
    records = open_runs(root)
    for limit in (3.0, 0.5):
        started = time.process_time()
        assert len(evaluation_frame(records)) == rows == 70_000
        assert time.process_time() - started < limit


@pytest.mark.slow
def test_the_benchmark_measures_both_ways(capsys):
    bench(["--directories", "1", "--items", "2", "--samples", "3", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("300 rows in 50 files, ")
    assert [line.split(":")[0] for line in lines[1:]] == ["cold", "warm"]


def test_fast_and_slow_reading_agree(runs: Runs, record: RunRecord):
    """One torn file and one with a surrogate escape go row by row; the same rows in sound files go together."""
    before = evaluation_frame([record])
    file = runs.file(record, MODEL, BENCHMARK, 0)
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound + sound.splitlines()[0][:40], encoding="utf-8")
    assert equal(evaluation_frame([record]), before)
    rows = runs.read(record, MODEL, BENCHMARK, 1)
    # The same text with every letter escaped, a pair of surrogates in it.
    rows[0]["response"] += "😀"
    runs.write(record, MODEL, BENCHMARK, 1, rows)
    plain = evaluation_frame([record])
    lines = [json.dumps(row, ensure_ascii=True) for row in rows]
    runs.file(record, MODEL, BENCHMARK, 1).write_text("\n".join(lines) + "\n")
    assert "\\ud83d" in lines[0]
    assert equal(evaluation_frame([record]), plain)
    assert not equal(plain, before)
