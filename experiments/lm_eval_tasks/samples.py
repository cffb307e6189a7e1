"""Reading lm-eval's ``--log_samples`` files: which item of ours each logged document is, and what was sampled for it how.

One file is one task in one call of lm-eval, so it is one evaluation run of one benchmark. A document stands in it once per filter,
each time with all its responses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.files import iter_jsonl
from experiments.lm_eval_tasks import PREFIX
from experiments.tasks.pinning import normalised
from graft.types import Prompt

FILE_NAME = re.compile(r"samples_(?P<task>.+)_\d{4}-\d\d-\d\dT.*\.jsonl")
# lm-eval's own tasks over the paper's benchmarks.
PACKAGED = {"minerva_math500": "math500", "hendrycks_math500": "math500", "aime24": "aime2024", "aime25": "aime2025"}
PROBLEM_FIELDS = ("problem", "Problem", "question", "message")
AIME_ID = re.compile(r"(20\d\d)-(I{1,2})-(\d{1,2})")


@dataclass(frozen=True)
class Generation:
    """How the responses of a file were sampled, from its logged requests. Greedy decoding is temperature 0."""

    temperature: float
    top_p: float
    max_tokens: int | None
    until: tuple[str, ...]


@dataclass(frozen=True)
class SampleFile:
    """One file: ``responses`` by item id, every item with ``samples`` of them."""

    path: Path
    sha256: str
    responses: Mapping[str, tuple[str, ...]]
    samples: int
    generation: Generation


def benchmark_of(path: Path, given: str | None) -> str:
    """The prompt set that a file's task evaluates, by the file's name; ``given`` where the name does not say. UserError for neither."""
    match = FILE_NAME.fullmatch(path.name)
    task = match["task"] if match else ""
    known = PACKAGED.get(task) or (task.removeprefix(PREFIX) if task.startswith(PREFIX) else given)
    if known is None:
        raise UserError(
            f"{path}: its name does not say which benchmark it is (known are samples_<task>_<time>.jsonl of {PREFIX}<set>, "
            f"{', '.join(PACKAGED)}); say it with --benchmark"
        )
    return known


def read_samples(path: Path, prompts: Sequence[Prompt]) -> SampleFile:
    """Read one file against the items of its benchmark. UserError names file and line, or the items that are missing or short."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the samples_*.jsonl that lm-eval writes with --log_samples")
    finder = _Finder(prompts)
    responses: dict[str, tuple[str, ...]] = {}
    generations: set[Generation] = set()
    for where, row in _rows(path):
        item = finder.item(row, where)
        texts = _responses(row, where)
        if responses.setdefault(item, texts) != texts:
            raise UserError(
                f"{where}: item {item} is there twice with different responses; the file mixes several calls of lm-eval"
            )
        generations.add(_generation(row, where))
    if len(generations) != 1:
        raise UserError(f"{path}: its requests were sampled in {len(generations)} ways; one file must be one way of sampling")
    missing = [p.id for p in prompts if p.id not in responses]
    if missing:
        raise UserError(
            f"{path}: {len(missing)} of {len(prompts)} items have no response, the first is {missing[0]}; evaluate all of them, or "
            "give --limit if the call had one"
        )
    counts = {len(texts) for texts in responses.values()}
    if len(counts) != 1:
        raise UserError(f"{path}: items have {min(counts)} to {max(counts)} samples; every item needs the same number")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return SampleFile(path, digest, responses, counts.pop(), generations.pop())


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        for number, row in enumerate(iter_jsonl(path), 1):
            if not isinstance(row, Mapping) or not {"doc", "resps"} <= row.keys():
                raise UserError(f"{path}:{number}: no row of lm-eval's samples (it needs doc and resps)")
            yield f"{path}:{number}", row
    except UserError:
        raise
    except ValueError as e:
        raise UserError(str(e)) from e


class _Finder:
    """Items of one benchmark by id and by text."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.texts = {p.id: normalised(p.message) for p in prompts}
        self.by_text: dict[str, str | None] = {}
        for name, text in self.texts.items():  # a text that two items share finds neither
            self.by_text[text] = None if text in self.by_text else name

    def item(self, row: Mapping[str, Any], where: str) -> str:
        """The id of the item that was asked. A document's own id counts only where the text agrees, or the id names the problem."""
        doc = row["doc"]
        texts = [normalised(doc[f]) for f in PROBLEM_FIELDS if isinstance(doc.get(f), str)]
        named = _named_item(doc)
        if named in self.texts:
            return named
        own = str(doc.get("id"))
        if own in self.texts and any(self.texts[own] in text for text in texts):
            return own
        for text in texts:
            if (found := self.by_text.get(text)) is not None:
                return found
        problem = next((doc[f] for f in PROBLEM_FIELDS if isinstance(doc.get(f), str)), str(doc))
        raise UserError(
            f"{where}: no item of the benchmark has this problem: {problem[:80]!r}. Is it the right benchmark and edition?"
        )


def _named_item(doc: Mapping[str, Any]) -> str | None:
    """Our id behind an id of the hub's data sets that names the problem: MATH-500's unique_id, AIME's year-contest-number."""
    if isinstance(unique := doc.get("unique_id"), str):
        return f"math/{unique.removesuffix('.json')}"
    if match := AIME_ID.fullmatch(str(doc.get("ID", doc.get("id", "")))):
        year, contest, number = match.groups()
        return f"aime{year}/{contest}-{int(number):02d}"
    return None


def _responses(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    requests = row["resps"]
    if not (isinstance(requests, list) and len(requests) == 1 and isinstance(requests[0], list)):
        raise UserError(f"{where}: resps holds {len(requests)} requests; a generated answer has one, with a list of responses")
    if not requests[0] or not all(isinstance(text, str) for text in requests[0]):
        raise UserError(f"{where}: resps is no list of texts; only tasks that generate text can be imported")
    return tuple(requests[0])


def _generation(row: Mapping[str, Any], where: str) -> Generation:
    """From the logged request: {"gen_args_0": {"arg_0": prompt, "arg_1": generation arguments}}."""
    try:
        given = row["arguments"]["gen_args_0"]["arg_1"]
        until = given.get("until") or ()
        sampled = given.get("do_sample", float(given.get("temperature", 0)) > 0)
        limit = next((given[k] for k in ("max_gen_toks", "max_new_tokens", "max_tokens") if given.get(k) is not None), None)
        return Generation(
            temperature=float(given.get("temperature", 1.0)) if sampled else 0.0,
            top_p=float(given.get("top_p", 1.0)) if sampled else 1.0,
            max_tokens=None if limit is None else int(limit),
            until=(until,) if isinstance(until, str) else tuple(until),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UserError(f"{where}: its request says not how it was sampled ({e!r}); lm-eval logs that under arguments") from e
