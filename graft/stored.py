"""A finished run's log in place of a live peer: which logged groups belong to which step, and whether they fit at all.

``match``: ``step`` takes step k of the log for step k of the run, where both must hold the same prompts in the same order; ``prompt``
takes, for the k-th time that a prompt occurs in the run, the k-th time that it occurs in the log, wherever that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from graft import trajectories
from graft.retokenize import Sender
from graft.types import Group, Prompt, Response, SamplingSettings

Match = Literal["step", "prompt"]
MATCHES: tuple[Match, ...] = ("step", "prompt")
KEYS = ("model", "prompt_id")
# More than these are not named in a message.
NAMED = 3


class LogMismatch(ValueError):
    """The log does not hold what the run needs; the message says which step or prompt."""


@dataclass(frozen=True)
class Log:
    """Any log: ``read`` gives one step's rows (``columns`` as in trajectories.read). ``numbered``: its steps are those of a run."""

    name: str
    steps: tuple[int, ...]
    read: Callable[..., pa.Table]
    numbered: bool = True

    @classmethod
    def of(cls, directory: Path) -> Log:
        """The log in a directory of parts. LogMismatch where there is none."""
        steps = trajectories.steps(directory)
        if not steps:
            raise LogMismatch(f"{directory} holds no trajectory log (no step-*.parquet)")
        return cls(str(directory), steps, partial(trajectories.read, directory))

    def models(self) -> tuple[str, ...]:
        """The models of its first step."""
        return tuple(dict.fromkeys(self.read(self.steps[0], columns=["model"])["model"].to_pylist()))

    def sampling(self) -> SamplingSettings | None:
        """How its first step was sampled; None for logs that do not say."""
        names = ["temperature", "top_p", "max_response_tokens"]
        row = self.read(self.steps[0], columns=names).slice(0, 1).to_pylist()[0]
        return None if None in row.values() else SamplingSettings(*(row[k] for k in names))


@dataclass(frozen=True)
class LogPeer:
    """``model``'s groups of ``n`` from ``log``, for a run whose step k asks for the prompts ``schedule[k - 1]`` (ids)."""

    log: Log
    model: str
    n: int
    match: Match
    schedule: tuple[tuple[str, ...], ...]

    def groups(self, step: int, prompts: Seq[Prompt]) -> tuple[Group, ...]:
        """The logged groups of these prompts, in their order; rewards are the log's. LogMismatch where it does not have them."""
        wanted = [p.id for p in prompts]
        if self.match == "step":
            self._require_order(step, wanted)
        sources = {q: self.source(step, q) for q in wanted}
        tables = {s: self._rows(s) for s in set(sources.values())}
        return tuple(self._group(p, tables[sources[p.id]].get(p.id, ()), sources[p.id]) for p in prompts)

    def sender(self) -> Sender | None:
        """The model's tokenizer, as far as the log says it."""
        return trajectories.senders(self.log.read(self.log.steps[0], columns=["step"])).get(self.model)

    def check(self, *, logprobs: bool) -> None:
        """Everything that can be said before the first step: order, group sizes, torn parts and, if needed, log-probs."""
        for step, ids in enumerate(self.schedule, 1):
            if self.match == "step":
                self._require_order(step, ids)
        for step in sorted({self.source(k, q) for k, ids in enumerate(self.schedule, 1) for q in ids}):
            self._require_sizes(step, logprobs)

    def source(self, step: int, prompt: str) -> int:
        """The log's step that holds the group for ``prompt`` in the run's ``step``."""
        if self.match == "step":
            return step
        seen = self._occurrences[step - 1][prompt]
        there = self._found.get(prompt, ())
        if seen >= len(there):
            raise LogMismatch(
                f"{self.log.name} holds prompt {prompt!r} {len(there)} times, and the run needs it for the {seen + 1}. time in step {step}"
            )
        return there[seen]

    @cached_property
    def _occurrences(self) -> tuple[Mapping[str, int], ...]:
        """Per step of the run: prompt -> how often it occurred before."""
        count: dict[str, int] = {}
        made = []
        for ids in self.schedule:
            made.append({q: count.get(q, 0) for q in ids})
            count |= {q: count.get(q, 0) + 1 for q in ids}
        return tuple(made)

    @cached_property
    def _found(self) -> Mapping[str, tuple[int, ...]]:
        """Prompt -> the log's steps that hold it, in order."""
        found: dict[str, tuple[int, ...]] = {}
        for step in self.log.steps:
            for q in self._ids(step):
                found[q] = (*found.get(q, ()), step)
        return found

    def _ids(self, step: int) -> list[str]:
        """Prompt ids of the model in one step of the log, each once, in logged order."""
        table = self.log.read(step, columns=list(KEYS))
        return list(dict.fromkeys(table.filter(pc.equal(table["model"], self.model))["prompt_id"].to_pylist()))

    def _require_order(self, step: int, wanted: Seq[str]) -> None:
        if step not in self.log.steps:
            raise LogMismatch(
                f"{self.log.name} has no step {step}: it holds {trajectories.said(self.log.steps)}, and the run has "
                f"{len(self.schedule)} steps"
            )
        there = self._ids(step)
        if there == list(wanted):
            return
        k, mine, theirs = next(
            (
                (k, a, b)
                for k, (a, b) in enumerate(zip([*wanted, None], [*there, None]))  # a shorter list ends with None
                if a != b
            ),
            (0, None, None),
        )
        raise LogMismatch(
            f"step {step} of {self.log.name} answers other prompts than step {step} of this run: position {k} is {theirs!r} in the log "
            f"and {mine!r} in the run ({len(set(there) & set(wanted))} of {len(wanted)} prompts are in both). A log of the same "
            "prompts in another order can be used with stored_match=prompt."
        )

    def _require_sizes(self, step: int, logprobs: bool) -> None:
        columns = [*KEYS, *(("ids", "mean_logprob") if logprobs else ())]
        table = self.log.read(step, columns=columns)
        table = table.filter(pc.equal(table["model"], self.model))
        sizes = {r["values"]: r["counts"] for r in pc.value_counts(table["prompt_id"].combine_chunks()).to_pylist()}
        if odd := [f"{q!r} {size}" for q, size in sizes.items() if size != self.n]:
            raise LogMismatch(
                f"step {step} of {self.log.name}: groups must have n = {self.n} responses, and prompt {', '.join(odd[:NAMED])} there"
            )
        if logprobs:
            unknown = pc.sum(pc.and_(pc.is_null(table["ids"]), pc.is_null(table["mean_logprob"]))).as_py()
            if unknown:
                raise LogMismatch(
                    f"step {step} of {self.log.name} has no log-probs for {unknown} of {len(table)} responses, and the method compares "
                    "log-probs of source and receiver; log them, or their mean, where the responses are sampled"
                )

    def _rows(self, step: int) -> dict[str, list[dict[str, Any]]]:
        """Prompt id -> its rows in one step, by index."""
        names = [*KEYS, "index", "text", "ids", "logprobs", "mean_logprob", "finish_reason", "reward"]
        table = self.log.read(step, columns=names)
        by_prompt: dict[str, list[dict[str, Any]]] = {}
        for row in table.filter(pc.equal(table["model"], self.model)).to_pylist():
            by_prompt.setdefault(row["prompt_id"], []).append(row)
        return {q: sorted(rows, key=lambda r: r["index"]) for q, rows in by_prompt.items()}

    def _group(self, prompt: Prompt, rows: Seq[Mapping[str, Any]], step: int) -> Group:
        if len(rows) != self.n:
            raise LogMismatch(f"step {step} of {self.log.name} holds {len(rows)} responses to prompt {prompt.id!r}, not {self.n}")
        # prompt_ids are the source's rendering, which nobody needs: a receiver puts peer text after its own.
        return Group(prompt, self.model, (), tuple(map(response_of, rows)))


def response_of(row: Mapping[str, Any]) -> Response:
    """A logged response. Without ids its log-probs enter as their mean, which is all that a receiver uses."""
    logprobs = row["logprobs"] or ()
    mean = row["mean_logprob"]
    if not row["ids"] and mean is None and logprobs:
        mean = math.fsum(logprobs) / len(logprobs)
    return Response(
        ids=tuple(row["ids"] or ()),
        logprobs=tuple(logprobs) if row["ids"] else (),
        text=row["text"],
        finish_reason=row["finish_reason"] or "length",
        reward=row["reward"],
        mean_logprob=None if row["ids"] else mean,
    )
