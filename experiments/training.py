"""One training run: restore, loop, record, validate, checkpoint, select. Everything it needs is in run.json."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import checkpoints, interruption
from experiments.config import Options
from experiments.donors import OpenDonor, find_donor, note, open_donor
from experiments.engine import (
    Engine,
    devices,
    loop_settings,
    memory,
    method_of,
    open_engine,
    set_threads,
    shared_verifier,
)
from experiments.evaluation import Sampler, average, sampler_of
from experiments.files import JsonlWriter, write_json
from experiments.interruption import Interrupted
from experiments.run_record import RunRecord
from experiments.tasks import load_pinned
from experiments.tracking import Tracker, open_tracker
from graft import trajectories
from graft.batches import LoopSettings, batch
from graft.cotrain import Setup, StepResult, cotrain
from graft.policies.base import Policy
from graft.retokenize import Sender
from graft.types import Prompt
from graft.verifier import Verifier

OnStep = Callable[[RunRecord, int, Mapping[str, Any]], None]
# Folders of a run: what every model sampled, and what every receiver was offered.
TRAJECTORIES, TRANSFERS = "trajectories", "transfers"


def train(record: RunRecord, attempt: Path, options: Options, on_step: OnStep) -> None:
    """Bring the run to its last step and write ``selected.json``. The caller holds ``record.lock()``; ``attempt`` is its directory.

    Interrupted anywhere and called again, it ends with the same metrics, rows and weights as an uninterrupted call. Asked to stop
    (``experiments.interruption``), it saves the finished step and raises Interrupted.
    """
    began = time.perf_counter()
    set_threads(options.threads)
    write_json(attempt / "devices.json", devices(options))
    prompts = load_pinned(record.config["recipe"]["data"]["train"], options.data_root).prompts
    settings = loop_settings(record)
    total = settings.steps(len(prompts))
    peer = stored_peer(record, options, prompts, settings)
    found = checkpoints.to_resume(record.path / "checkpoints", options.resume)
    engine = open_engine(record, options)
    try:
        _train(engine, Attempt(record, attempt, options, total, on_step), Prepared(prompts, settings, peer, found), began)
    finally:
        engine.close()


@dataclass(frozen=True)
class Prepared:
    """What a run needs beside its models. ``found``: the checkpoint to go on from, and its state."""

    prompts: tuple[Prompt, ...]
    settings: LoopSettings
    peer: OpenDonor | None
    found: tuple[Path, dict[str, Any]] | None


def _train(engine: Engine, attempt: Attempt, prepared: Prepared, began: float) -> None:
    """Everything between loading and releasing the models. ``began``: when the attempt did (perf_counter)."""
    record = attempt.record
    state = checkpoints.NOTHING_YET
    if prepared.found is None:
        checkpoints.prune(record.path / "checkpoints", set())  # resume=never: an older one must not be found by the next attempt
    else:
        directory, state = prepared.found
        for name, policy in engine.policies.items():
            policy.load(directory / name)
    record.set_status("running", step=state["step"], steps=attempt.total)
    verifier = shared_verifier()
    observer = RunObserver(attempt, engine.policies, state, verifier)
    try:
        setup = Setup(
            engine.policies, method_of(record), prepared.settings, verifier.verify_many, engine.reference, prepared.peer
        )
        history = {name: tuple(rates) for name, rates in state["history"].items()}
        observer.catch_up()
        observer.started(time.perf_counter() - began)
        cotrain(setup, prepared.prompts, start=state["step"] + 1, history=history, observer=observer)
    finally:
        observer.close()
    observer.prune_best()
    write_json(record.path / "selected.json", observer.selected())
    record.set_status("trained", step=attempt.total)


def stored_peer(record: RunRecord, options: Options, prompts: tuple[Prompt, ...], settings: LoopSettings) -> OpenDonor | None:
    """The recipe's donor, checked and noted in ``donor.json``; None for methods with live peers or none. Loads no model."""
    recipe = record.config["recipe"]
    if "donor" not in recipe:
        return None
    schedule = [tuple(p.id for p in batch(prompts, settings, k)) for k in range(1, settings.steps(len(prompts)) + 1)]
    # Beside the run itself: a job runs elsewhere than where a relative runs_root was meant.
    path = find_donor(recipe, options.donor, record.path.parent)
    opened = open_donor(recipe, path, schedule, prompts, logprobs=method_of(record).needs_source_logprobs)
    for warning in opened.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    note(record.path, recipe, opened)
    return opened


@dataclass(frozen=True)
class Attempt:
    """One process's go at a run of ``total`` steps; ``directory`` is its attempts/<k>, ``on_step`` is told of each step."""

    record: RunRecord
    directory: Path
    options: Options
    total: int
    on_step: OnStep


def facts_of(record: RunRecord, policies: Mapping[str, Policy]) -> trajectories.Facts:
    """What the trajectory log says of the whole run."""
    senders = {name: Sender(p.codec.fingerprint, p.codec.special_ids) for name, p in policies.items()}
    settings = loop_settings(record)
    return trajectories.Facts(settings.seed, settings.sampling, senders)


class RunObserver:
    """Writes what a step leaves behind, in an order that a kill cannot break.

    Order within a step: trajectories, transfers, metrics, validation rows, best weights, checkpoint (with the offsets of the files before
    it). A restart truncates every file to the checkpoint's offsets and repeats what came after.
    """

    def __init__(self, attempt: Attempt, policies: Mapping[str, Policy], state: Mapping[str, Any], verifier: Verifier):
        self.attempt, self.record, self.options = attempt, attempt.record, attempt.options
        self.policies, self.state = policies, dict(state)
        self.training = self.record.config["recipe"]["training"]
        path = self.record.path
        for folder in (TRAJECTORIES, TRANSFERS):
            trajectories.drop_after(path / folder, self.state["step"])
        self.facts = facts_of(self.record, policies)
        self.metrics = JsonlWriter(path / "metrics.jsonl", self.state["metrics_offset"])
        self.validation = JsonlWriter(path / "validation.jsonl", self.state["validation_offset"])
        self.timings = JsonlWriter(attempt.directory / "steps.jsonl")
        self.mark = time.perf_counter()  # the end of the last step
        self.sampler: Sampler = sampler_of(self.record, self.options, verifier, samples=self.training["validation_samples"])
        self.tracker: Tracker = open_tracker(self.options.logger, self.record)

    def catch_up(self) -> None:
        """Stop if a signal came while everything was loaded; then do the validation that an interruption left out."""
        interruption.check(f"step {self.state['step']}")
        if self.state.get("validation_pending"):
            self._validate(self.state["step"])
            self.state["validation_pending"] = False

    def started(self, seconds: float) -> None:
        """The first step begins; loading took this long."""
        write_json(self.attempt.directory / "startup.json", {"seconds": seconds})
        self.mark = time.perf_counter()

    def step_done(self, result: StepResult) -> None:
        """Record one step; Interrupted, after a checkpoint, if a signal came."""
        started = time.perf_counter()
        trajectories.append(self.record.path / TRAJECTORIES, result.step, result.groups, self.facts)
        if result.exchange.report.directions:
            trajectories.append_transfers(self.record.path / TRANSFERS, result.step, result.exchange.report.rows)
        self.metrics.append(result.metrics)
        self.tracker.log(result.step, result.metrics)
        seconds = dict(result.seconds) | {"recording": time.perf_counter() - started}
        self.state["history"] = {name: list(rates) for name, rates in result.history.items()}
        last = result.step == self.attempt.total
        unvalidated = None
        if last or result.step % self.training["validation_every"] == 0:
            started = time.perf_counter()
            # A checkpoint whose validation was interrupted says where rows and best scores stood before it.
            before = {"validation_offset": self.validation.sync(), "best": self.state["best"], "validation_pending": True}
            try:
                self._validate(result.step)
            except Interrupted:  # it may take longer than a scheduler waits; the next attempt does it first
                unvalidated = before
            seconds["validation"] = time.perf_counter() - started
        if last or interruption.received() or result.step % self.options.checkpoint_every == 0:
            started = time.perf_counter()
            self._checkpoint(
                result.step, unvalidated or {"validation_offset": self.validation.sync(), "validation_pending": False}
            )
            seconds["checkpoint"] = time.perf_counter() - started
        wall, self.mark = time.perf_counter() - self.mark, time.perf_counter()
        self.timings.append({"step": result.step, "wall": wall, "seconds": seconds, "tokens": result.tokens})
        self.attempt.on_step(self.record, self.attempt.total, result.metrics)
        if self.state["step"] == result.step:  # else a signal came this moment: the next step ends with a checkpoint
            interruption.check(f"step {result.step}")

    def _validate(self, step: int) -> None:
        """pass@1 of every model on the five benchmarks (logged) and on what ``selection`` selects by."""
        held_out = self.record.config["recipe"]["data"].get("validation")
        for name, policy in self.policies.items():
            scores = self.sampler.validate(policy, step)
            for benchmark, value in [*scores.items(), ("average", average(scores))]:
                self.validation.append({"step": step, "model": name, "benchmark": benchmark, "pass@1": value})
            decisive = average(scores)
            if held_out is not None:
                decisive = self.sampler.validate_on(
                    policy, "held_out", load_pinned(held_out, self.options.data_root).prompts, step
                )
                self.validation.append({"step": step, "model": name, "benchmark": "held_out", "pass@1": decisive})
            best = self.state["best"].get(name)
            # Ties keep the earlier checkpoint: it is the cheaper one. `last` takes every newer one.
            if best is None or decisive > best["score"] or self.training["selection"] == "last":
                self.state["best"] = self.state["best"] | {name: {"step": step, "score": decisive}}
                checkpoints.save_weights(self.record.path / "best" / name, step, policy)

    def _checkpoint(self, step: int, validated: Mapping[str, Any]) -> None:
        """``validated``: the part of the state that says how far validation came."""
        for folder in (TRAJECTORIES, TRANSFERS):
            trajectories.sync(self.record.path / folder, self.state["step"])
        self.state |= {"step": step, "metrics_offset": self.metrics.sync(), **validated}
        checkpoints.save(self.record.path / "checkpoints", step, self.policies, self.state)
        checkpoints.prune(self.record.path / "checkpoints", {step})
        self.prune_best()
        self.record.set_status("running", step=step)

    def prune_best(self) -> None:
        """Delete weights that no checkpoint names any more. Call when a checkpoint, or the run, is complete."""
        for name, best in self.state["best"].items():
            checkpoints.prune(self.record.path / "best" / name, {best["step"]})

    def selected(self) -> dict[str, Any]:
        """The checkpoint of each model that evaluation uses, and the final weights' hash."""
        return {
            name: {
                **self.state["best"][name],
                "rule": self.training["selection"],
                "final_weights_sha256": policy.weights_sha256(),
            }
            for name, policy in self.policies.items()
        }

    def close(self) -> None:
        """Close everything, whatever one of them says: on a full disk closing fails too."""
        with ExitStack() as stack:
            stack.callback(lambda: write_json(self.attempt.directory / "memory.json", memory(self.policies)))
            for part in (self.tracker, self.timings, self.validation, self.metrics):
                stack.callback(part.close)
