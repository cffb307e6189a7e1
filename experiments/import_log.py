"""Logs from elsewhere as donors: read and check the import format of docs/stored-peers.md.

    python -m experiments.import_log <log.jsonl|log.parquet> --set arith-train [--root DIR] [--n 8] [--out DIR]

checks a log, says what it holds, and with --out writes it as a directory of parts, which ``donor=<directory>`` takes. A run also reads
the file itself (``donor=<log.jsonl>``). One row is one response:

    prompt_id | prompt   the id in the training set, or the whole user message
    response             the text, without the end-of-sequence token
    reward               1 or 0; compared with the verifier's, never used
    logprobs | mean_logprob   log-probs (nats) of the response's tokens as sampled, or their mean; neither: no method that compares them
    step                 optional: the step of training. Without it only stored_match=prompt can be used
    finish_reason        optional: eos | length. Without it no end-of-sequence token is appended
    model                optional: the same in every row; else the file's name
    temperature, top_p, max_response_tokens   optional: how it was sampled
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.files import iter_jsonl
from graft import trajectories
from graft.stored import Log
from graft.types import Prompt

OPTIONAL = {"temperature": (int, float), "top_p": (int, float), "max_response_tokens": (int,), "step": (int,), "model": (str,)}
KNOWN = ("prompt_id", "prompt", "response", "reward", "logprobs", "mean_logprob", "finish_reason", *OPTIONAL)


def read_log_file(path: Path, *, n: int, prompts: Sequence[Prompt] | None = None) -> Log:
    """The log in a JSONL or Parquet file. ``prompts``: the training set; without it rows that give a prompt in full keep no id.

    Without a step, a prompt's responses are cut into groups of ``n`` in the file's order: its first, second, ... occurrence. UserError
    names the row (from 1) that is wrong.
    """
    rows = _raw(path)
    if not rows:
        raise UserError(f"{path} holds no row")
    ids = None if prompts is None else {p.message: p.id for p in prompts}
    checked = [_row(row, f"{path}: row {k}", ids) for k, row in enumerate(rows, 1)]
    models = {row["model"] for row in checked}
    numbered = {row["step"] is not None for row in checked}
    if len(models) > 1 or len(numbered) > 1:
        what = f"several models ({', '.join(sorted(map(str, models)))})" if len(models) > 1 else "a step in some rows only"
        raise UserError(f"{path} has {what}; a donor's log has one model, and a step in every row or in none")
    if numbered == {False}:
        _cut(checked, n, path)
    model = checked[0]["model"] or path.stem
    tables = {step: _table(part, model) for step, part in _by_step(checked).items()}

    def read(step: int, *, columns: Sequence[str] | None = None) -> pa.Table:
        return tables[step].select(list(columns or tables[step].column_names))

    return Log(str(path), tuple(sorted(tables)), read, numbered == {True})


def _raw(path: Path) -> list[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        try:
            return pq.read_table(path).to_pylist()
        except pa.ArrowInvalid as e:
            raise UserError(f"{path} is torn or no Parquet file ({str(e).splitlines()[0]})") from e
    if path.suffix != ".jsonl":
        raise UserError(f"{path}: a log file ends in .jsonl or .parquet; other donors are directories")
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        raise UserError(f"{path}: the last line is cut off; copy the file again, or remove that line's whole group")
    try:
        return list(iter_jsonl(path))
    except ValueError as e:
        raise UserError(str(e)) from e


def _row(given: Any, where: str, ids: Mapping[str, str] | None) -> dict[str, Any]:
    """One checked row with every key; absent ones are None."""
    if not isinstance(given, Mapping):
        raise UserError(f"{where} is no object")
    row = {key: given.get(key) for key in KNOWN}
    if unknown := sorted(set(given) - set(KNOWN)):
        raise UserError(f"{where}: unknown keys {', '.join(unknown)}; known are {', '.join(KNOWN)}")
    if not isinstance(row["response"], str):
        raise UserError(f"{where}: response is {row['response']!r}, expected a text")
    if type(row["reward"]) not in (int, float, bool) or row["reward"] not in (0, 1):
        raise UserError(f"{where}: reward is {row['reward']!r}, expected 1 or 0")
    if row["finish_reason"] not in (None, "eos", "length"):
        raise UserError(f"{where}: finish_reason is {row['finish_reason']!r}, expected eos or length")
    for key, types in OPTIONAL.items():
        if row[key] is not None and type(row[key]) not in types:
            raise UserError(f"{where}: {key} is {row[key]!r}, expected {' or '.join(t.__name__ for t in types)}")
    row["prompt_id"] = _prompt_id(row, where, ids)
    row["mean_logprob"] = _mean(row, where)
    return row


def _prompt_id(row: Mapping[str, Any], where: str, ids: Mapping[str, str] | None) -> str:
    if (row["prompt_id"] is None) == (row["prompt"] is None):
        raise UserError(f"{where}: give prompt_id or prompt, one of them")
    if row["prompt"] is None:
        known = None if ids is None else set(ids.values())
        name = str(row["prompt_id"])
        if known is not None and name not in known:
            raise UserError(f"{where}: the training set has no prompt {name!r}")
        return name
    if ids is None:
        return str(row["prompt"])
    if row["prompt"] not in ids:
        raise UserError(f"{where}: the training set has no prompt with this text: {str(row['prompt'])[:80]!r}")
    return ids[row["prompt"]]


def _mean(row: Mapping[str, Any], where: str) -> float | None:
    """Mean log-prob of the response; None where the row says nothing."""
    values = row["logprobs"]
    if values is not None:
        numbers = isinstance(values, list) and values and all(type(v) in (int, float) and math.isfinite(v) for v in values)
        if not numbers:
            raise UserError(f"{where}: logprobs is no list of finite numbers, one per token")
        if row["mean_logprob"] is not None:
            raise UserError(f"{where}: give logprobs or mean_logprob, not both")
        return math.fsum(values) / len(values)
    mean = row["mean_logprob"]
    if mean is not None and (type(mean) not in (int, float) or not math.isfinite(mean) or mean > 0):
        raise UserError(f"{where}: mean_logprob is {mean!r}, expected a finite number of at most 0")
    return mean


def _cut(rows: Sequence[dict[str, Any]], n: int, path: Path) -> None:
    """Number the occurrences of every prompt, n rows each, in ``step``."""
    count: Counter[str] = Counter()
    for row in rows:
        row["step"] = count[row["prompt_id"]] // n + 1
        count[row["prompt_id"]] += 1
    if odd := [f"{q[:40]!r} {k}" for q, k in count.items() if k % n]:
        raise UserError(f"{path}: groups have n = {n} responses, and the file has of prompt {', '.join(odd[:3])}")


def _by_step(rows: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    parts: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault(row["step"], []).append(row)
    return parts


def _table(rows: Sequence[Mapping[str, Any]], model: str) -> pa.Table:
    """Rows of one step in the log's own schema."""
    index: Counter[str] = Counter()
    made = []
    for row in rows:
        kept = {
            k: row[k]
            for k in ("step", "prompt_id", "mean_logprob", "finish_reason", "temperature", "top_p", "max_response_tokens")
        }
        text = row["response"].encode("utf-8", "backslashreplace").decode()
        made.append(kept | {"model": model, "index": index[row["prompt_id"]], "text": text, "reward": float(row["reward"])})
        index[row["prompt_id"]] += 1
    return pa.Table.from_pylist(made, schema=trajectories.SCHEMA)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.import_log", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--set", required=True, help="the training set that the prompts are of (data.train)")
    parser.add_argument("--root", help="where its files lie (data.root)")
    parser.add_argument("--n", type=int, default=8, help="responses per group, for logs without a step (method.n)")
    parser.add_argument("--out", type=Path, help="write the log as a directory of parts")
    args = parser.parse_args(argv)
    try:
        return _import(args)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR


def _import(args: argparse.Namespace) -> int:
    from experiments.tasks import load_prompt_set

    if not args.log.is_file():
        raise UserError(f"{args.log} does not exist")
    log = read_log_file(args.log, n=args.n, prompts=load_prompt_set(args.set, args.root).prompts)
    tables = [log.read(step) for step in log.steps]
    rows, scored = sum(map(len, tables)), sum(len(t) - t["mean_logprob"].null_count for t in tables)
    kind = trajectories.said(log.steps) if log.numbered else f"no steps (up to {max(log.steps)} groups of {args.n} per prompt)"
    said = {"log": str(args.log), "model": log.models()[0], "rows": rows, "with_log_probs": scored, "steps": kind}
    print(json.dumps(said, ensure_ascii=False))
    if args.out is None:
        return 0
    if not log.numbered:
        raise UserError(f"{args.log} says no steps, so it cannot become parts of steps; use the file itself: donor={args.log}")
    if args.out.exists() and any(args.out.iterdir()):
        raise UserError(f"{args.out} is not empty; name a new directory")
    for step, table in zip(log.steps, tables):
        trajectories.append_rows(args.out, step, table.to_pylist(), trajectories.SCHEMA)
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
