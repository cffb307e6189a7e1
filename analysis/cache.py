"""Evaluation rows of a run directory kept as parquet beside the run directories, valid as long as the files are what they were.

``runs/<experiment>/.cache/<run directory>.parquet`` holds the rows by file; its metadata says for each file the path, size and mtime
that the rows were read at. A file that changed, came or went costs reading that file; the others' rows stay. Nothing depends on the
cache: where it cannot be read or written (a read-only root, a full disk, another version) everything is read from the run directory.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from analysis.rows import ROW_SCHEMA, EvalFile, read_files

# Counts up whenever rows are read, checked or hashed differently. polars is in it: its hashes may change between versions.
VERSION = f"1 polars {pl.__version__}"
FOLDER = ".cache"
# A file may change again within one tick of the file system's clock and keep size and mtime: so young a file is not kept.
SETTLED_NS = 50_000_000


@dataclass(frozen=True)
class State:
    """What a file is taken to be: unchanged as long as this is."""

    size: int
    mtime_ns: int


def state_of(path: Path) -> State:
    """OSError if there is no such file."""
    found = path.stat()
    return State(found.st_size, found.st_mtime_ns)


def cached_rows(directory: Path, files: Sequence[EvalFile], fingerprint: str) -> pl.DataFrame:
    """The rows of existing files of one run directory, as ``read_files`` gives them; only what the cache lacks is read."""
    cache = directory.parent / FOLDER / f"{directory.name}.parquet"
    names = [str(file.path.relative_to(directory)) for file in files]
    states = {name: state_of(file.path) for name, file in zip(names, files, strict=True)}
    kept, known = _load(cache, fingerprint)
    fresh = [k for k, name in enumerate(names) if known.get(name) != states[name]]
    if not fresh and list(known) == names:
        return kept
    started = time.time_ns()
    index_of = {name: k for k, name in enumerate(names)}
    valid = {k: index_of[name] for k, name in enumerate(known) if name in index_of and known[name] == states[name]}
    read = read_files([files[k] for k in fresh])
    rows = pl.concat([_renumber(kept, valid), _renumber(read, dict(enumerate(fresh)))]).sort("file", "item", "sample")
    # Whoever wrote a file while it was read gets it read again next time.
    settled = {
        name: state for name, state in states.items() if _still(directory / name, state) and state.mtime_ns < started - SETTLED_NS
    }
    _store(cache, rows, names, settled, fingerprint)
    return rows


def _renumber(rows: pl.DataFrame, numbers: Mapping[int, int]) -> pl.DataFrame:
    """The rows of the files that ``numbers`` maps, with their new numbers."""
    new = pl.DataFrame({"file": list(numbers), "to": list(numbers.values())}, schema={"file": pl.UInt32, "to": pl.UInt32})
    return rows.join(new, on="file", how="inner").with_columns(pl.col("to").alias("file")).select(*ROW_SCHEMA)


def _still(path: Path, state: State) -> bool:
    try:
        return state_of(path) == state
    except OSError:
        return False


def _load(cache: Path, fingerprint: str) -> tuple[pl.DataFrame, dict[str, State]]:
    """(rows, state of each file in their order); nothing if there is no cache of this version and recipe that can be read."""
    nothing = pl.DataFrame(schema=ROW_SCHEMA), {}
    try:
        with open(cache, "rb") as f:
            # One open file for both: another process may replace the cache in between.
            key = json.loads(pl.read_parquet_metadata(f)["graft"])
            if (key["version"], key["fingerprint"]) != (VERSION, fingerprint):
                return nothing
            f.seek(0)
            rows = pl.read_parquet(f)
        known = {name: State(size, mtime_ns) for name, size, mtime_ns in key["files"]}
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
        return nothing
    return (rows, known) if dict(rows.schema) == ROW_SCHEMA else nothing


def _store(cache: Path, rows: pl.DataFrame, names: Sequence[str], settled: Mapping[str, State], fingerprint: str) -> None:
    """Written aside and renamed: readers see the old cache or the new one, and of two writers the later wins."""
    numbers = {k: new for new, k in enumerate(k for k, name in enumerate(names) if name in settled)}
    files = [(name, settled[name].size, settled[name].mtime_ns) for name in names if name in settled]
    key = json.dumps({"version": VERSION, "fingerprint": fingerprint, "files": files})
    aside = cache.with_name(f".{cache.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        cache.parent.mkdir(exist_ok=True)
        kept = rows if len(settled) == len(names) else _renumber(rows, numbers)
        kept.write_parquet(aside, metadata={"graft": key}, compression="lz4", statistics=False)
        os.replace(aside, cache)
        _drop_orphans(cache.parent)
    except (OSError, pl.exceptions.PolarsError):
        # Nothing depends on the cache, so a root that cannot be written is no error.
        pass
    finally:
        try:
            aside.unlink(missing_ok=True)
        except OSError:
            pass


def _drop_orphans(folder: Path) -> None:
    """Caches whose run directory is gone."""
    for cache in folder.glob("*.parquet"):
        if not (folder.parent / cache.stem).is_dir():
            cache.unlink(missing_ok=True)
