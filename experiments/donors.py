"""Donors: the finished logs that methods with a stored peer learn from. What a donor is, where it lies, and whether it fits.

A donor is chosen when a run is resolved and named in its recipe by what it is (``run:<fingerprint>`` or ``sha256:<hex>`` of a log from
elsewhere), the model in it, and the match; where it lies is in the options. ``auto`` is the run that the same configuration with
method=grpo and model=<the other model of the pair> resolves to, with the same n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.compose import key_of, override
from experiments.errors import UserError
from experiments.files import read_json, write_json
from experiments.run_record import RunRecord, differing_keys
from graft import trajectories
from graft.stored import Log, LogMismatch, LogPeer
from graft.trajectories import BrokenLog
from graft.types import Group, Prompt

if TYPE_CHECKING:
    from experiments.config import Config

AUTO = "auto"
RUN, CONTENT = "run:", "sha256:"
DONOR_METHOD = "grpo"
# Sections of a configuration that say which donor, or only how the receiver learns.
OWN_KEYS = ("method", "model", "donor", "stored_match")
# What two runs must share for their steps to hold the same prompts.
ORDER_KEYS = ("data.train", "seed", "training.prompts_per_step", "training.epochs", "training.max_steps")


@dataclass(frozen=True)
class Donor:
    """A donor as the recipe has it."""

    model: str
    log: str
    match: str

    def section(self) -> dict[str, str]:
        return {"model": self.model, "log": self.log, "match": self.match}


def require_use(config: Config, stored: bool) -> None:
    """UserError for a donor that the method would not read."""
    given = [key for key in ("donor", "stored_match") if getattr(config, key) is not None]
    if given and not stored:
        raise UserError(
            f"{' and '.join(given)}: method {config.method.name} has no stored peer and would read no donor; leave it out, or choose "
            "a method that has one, such as graft_stored"
        )


def donor_overrides(config: Config, overrides: Sequence[str], slot: str) -> tuple[str, ...]:
    """The overrides of the run that is the ``auto`` donor of the receiver ``slot``. Of the method's settings only n is carried over."""
    others = [m for m in config.pair.models if m != slot]
    if len(others) != 1:
        raise UserError(
            f"method {config.method.name}: pair {config.pair.name} has {len(config.pair.models)} models, so it does not say whose log "
            "to learn from; choose a pair of two, or name the log with donor="
        )
    kept = [o for o in overrides if key_of(o).partition(".")[0] not in OWN_KEYS]
    return (*kept, f"method={DONOR_METHOD}", f"method.n={config.method.n}", override("model", others[0]))


def given_donors(config: Config, slots: Sequence[str]) -> dict[str, Donor]:
    """slot -> the donor that ``donor=<path>`` names, for every slot that can learn from it."""
    path = Path(str(config.donor))
    log, identity = identify(path, n=config.method.n)
    names = {slot: config.scale.slots[slot].name for slot in config.pair.models}
    found = {}
    for slot in slots:
        there = [m for m in log.models() if m != names[slot]]
        chosen = [m for m in there if m in names.values()] if len(there) > 1 else there
        if len(chosen) > 1:
            raise UserError(f"donor={path} has several models that {names[slot]} could learn from: {', '.join(chosen)}")
        if chosen:
            found[slot] = Donor(chosen[0], identity, config.stored_match or "step")
    if not found:
        raise UserError(
            f"donor={path} is a log of {', '.join(log.models())}, and {', '.join(names[s] for s in slots)} would learn from it; a model "
            "cannot be its own peer"
        )
    return found


def identify(path: Path, *, n: int) -> tuple[Log, str]:
    """(log, what it is) of a run directory, a directory of parts, or a log file of the import format (docs/stored-peers.md)."""
    if path.is_file():
        from experiments.import_log import read_log_file

        return read_log_file(path, n=n), CONTENT + hashlib.sha256(path.read_bytes()).hexdigest()
    if (path / "run.json").is_file():
        record = RunRecord.open(path)
        require_finished(record)
        return _log_of(path / "trajectories"), RUN + str(record.config["fingerprint"])
    if not path.is_dir():
        raise UserError(f"donor={path} does not exist; give auto, a run directory, a directory of step-*.parquet, or a log file")
    return _log_of(path), CONTENT + content_digest(path)


def _log_of(directory: Path) -> Log:
    try:
        return Log.of(directory)
    except (LogMismatch, BrokenLog) as e:
        raise UserError(str(e)) from e


def content_digest(directory: Path) -> str:
    """SHA-256 of what a directory of parts holds: of its manifest, which has every part's, or of the parts themselves."""
    file = directory / trajectories.MANIFEST
    if file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for part in sorted(directory.glob("step-*.parquet")):
        digest.update(part.name.encode() + hashlib.sha256(part.read_bytes()).digest())
    return digest.hexdigest()


def require_finished(record: RunRecord) -> None:
    """UserError for a run whose log is not complete yet, or that has none."""
    if not record.trains:
        raise UserError(f"donor {record.path} trained nothing, so it has no trajectory log")
    if not (record.path / "selected.json").is_file():
        status = record.status()
        raise UserError(
            f"donor {record.path} has not finished training (step {status['step']} of {status['steps'] or '?'}, {status['state']}); "
            "bring it to its end first, a stored peer is the log of a finished run"
        )


def needs(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Fingerprints of the runs whose finished logs a run with this recipe reads."""
    log = str(recipe["donor"]["log"]) if "donor" in recipe else ""
    return (log.removeprefix(RUN),) if log.startswith(RUN) else ()


def find_donor(recipe: Mapping[str, Any], given: str | None, root: Path) -> Path:
    """Where the recipe's donor lies: what ``given`` names, else the run of its fingerprint under ``root``."""
    wanted = recipe["donor"]
    if given is not None and given != AUTO:
        _, identity = identify(Path(given), n=recipe["method"]["n"])
        if identity != wanted["log"]:
            raise UserError(
                f"donor={given} is no longer the log that the run was frozen with ({wanted['log']}); it is {identity}"
            )
        return Path(given)
    digest = needs(recipe)[0] if needs(recipe) else ""
    found = sorted(root.glob(f"*-{digest[:8]}/run.json")) if digest else []
    for file in found:
        record = RunRecord.open(file.parent)
        if record.config["fingerprint"] == digest:
            require_finished(record)
            return record.path
    raise UserError(
        f"the stored peer {wanted['model']} is the log of a finished run, {wanted['log'][:12]}, and {root} does not have it. Train it "
        f"first: the same command with method={DONOR_METHOD} method.n={recipe['method']['n']} model={wanted['model']}"
    )


@dataclass(frozen=True)
class OpenDonor:
    """A donor that was checked, as the loop's StoredPeer. A log that breaks during the run is the user's to mend."""

    peer: LogPeer
    path: Path
    warnings: tuple[str, ...]

    @property
    def model(self) -> str:
        return self.peer.model

    def groups(self, step: int, prompts: Sequence[Prompt]) -> tuple[Group, ...]:
        try:
            return self.peer.groups(step, prompts)
        except (LogMismatch, BrokenLog, FileNotFoundError) as e:
            raise UserError(f"stored peer: {e}") from e

    def sender(self) -> trajectories.Sender | None:
        return self.peer.sender()


def open_donor(
    recipe: Mapping[str, Any], path: Path, schedule: Sequence[tuple[str, ...]], prompts: Sequence[Prompt], *, logprobs: bool
) -> OpenDonor:
    """The donor at ``path`` for a run whose step k trains on ``schedule[k - 1]``, checked as far as can be before training.

    UserError names what does not fit: order of prompts (with the first step and ids that differ), group sizes, torn or missing
    parts, sampling at another temperature or top-p, no log-probs. ``logprobs``: whether the method needs them.
    """
    wanted = recipe["donor"]
    log = open_log(path, recipe, prompts)
    if wanted["match"] == "step" and not log.numbered:
        raise UserError(f"donor {path} does not say the step of its responses; use stored_match=prompt")
    peer = LogPeer(log, wanted["model"], recipe["method"]["n"], wanted["match"], tuple(schedule))
    try:
        if wanted["model"] not in log.models():
            raise LogMismatch(f"{path} has no responses of {wanted['model']}; it has {', '.join(log.models())}")
        warnings = check_sampling(recipe["training"], log)
        peer.check(logprobs=logprobs)
    except (LogMismatch, BrokenLog, FileNotFoundError) as e:
        raise UserError(f"stored peer: {e}{_other_recipe(recipe, path)}") from e
    return OpenDonor(peer, path, warnings)


def open_log(path: Path, recipe: Mapping[str, Any], prompts: Sequence[Prompt]) -> Log:
    """The log behind a donor's path. ``prompts``: the training set, by which a log file may name its prompts in full."""
    if path.is_file():
        from experiments.import_log import read_log_file

        return read_log_file(path, n=recipe["method"]["n"], prompts=prompts)
    return _log_of(path / "trajectories" if (path / "run.json").is_file() else path)


def check_sampling(training: Mapping[str, Any], log: Log) -> tuple[str, ...]:
    """Warnings. The rule: another temperature or top-p is refused, because the score compares log-probs of one distribution.

    Another response limit is only noted: what is too long for the receiver is dropped anyway. So is a log that says nothing.
    """
    sampled = log.sampling()
    if sampled is None:
        return (f"{log.name} does not say how it was sampled; it is taken to be as this run samples",)
    for key in ("temperature", "top_p"):
        if getattr(sampled, key) != training[key]:
            raise LogMismatch(
                f"{log.name} was sampled at {key} {getattr(sampled, key):g} and this run samples at {training[key]:g}; the score s compares "
                "log-probs of source and receiver, which must be of the same kind"
            )
    if sampled.max_response_tokens != training["max_response_tokens"]:
        return (
            f"{log.name} was sampled with up to {sampled.max_response_tokens} tokens, this run with up to "
            f"{training['max_response_tokens']}",
        )
    return ()


def _other_recipe(recipe: Mapping[str, Any], path: Path) -> str:
    """What of a donor run's recipe explains that its prompts differ."""
    if not (path / "run.json").is_file():
        return ""
    theirs = RunRecord.open(path).config["recipe"]
    keys = [k for k in differing_keys(recipe, theirs) if k.startswith(ORDER_KEYS)]
    return f" The donor's recipe differs in {', '.join(keys)}." if keys else ""


def note(run: Path, recipe: Mapping[str, Any], opened: OpenDonor) -> None:
    """``donor.json`` of the run: which bytes it learns from. UserError when a run resumes with others."""
    folder = opened.path / "trajectories" if (opened.path / "run.json").is_file() else opened.path
    digest = content_digest(folder) if folder.is_dir() else hashlib.sha256(folder.read_bytes()).hexdigest()
    file = run / "donor.json"
    if file.is_file() and read_json(file)["content_sha256"] != digest:
        raise UserError(
            f"{opened.path} holds other bytes than when {run.name} began to learn from it ({file}). Restore that log, or delete the "
            "run and start it again."
        )
    where = {"path": str(folder.resolve()), "content_sha256": digest, "warnings": list(opened.warnings)}
    write_json(file, dict(recipe["donor"]) | where)
