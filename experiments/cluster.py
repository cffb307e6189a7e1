"""Where runs are executed and with what: the ``cluster`` section. Nothing here changes a result or a fingerprint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from experiments.sections import Frozen

TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
MEMORY = re.compile(r"\d+[KMGT]?")
WORD = re.compile(r"[A-Za-z_]\w*")


def seconds(time: str) -> int:
    """Slurm's minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]] in seconds."""
    days, dash, rest = time.rpartition("-")
    parts = [int(x) for x in rest.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
    else:
        hours, minutes, secs = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs


class Resources(Frozen):
    """What one job asks Slurm for. ``time`` and ``mem`` are Slurm's own notations (2-00:00:00, 400G)."""

    gpus: int = Field(ge=0)
    gpu_type: str | None = None
    cpus: int = Field(ge=1)
    mem: str
    time: str

    @field_validator("time", "mem", mode="before")
    @classmethod
    def _notation(cls, value: object, info: object) -> str:
        text = str(value)
        name = info.field_name  # type: ignore[attr-defined]
        if not (TIME if name == "time" else MEMORY).fullmatch(text):
            examples = "90, 24:00:00 or 2-00:00:00" if name == "time" else "1500M or 400G"
            raise ValueError(f"is not in Slurm's notation, for example {examples}")
        return text


class ClusterSection(Frozen):
    """One machine or cluster.

    ``independent``, ``joint`` and ``evaluation`` are the resources of a run that trains one model, of one that trains several, and
    of one that only samples (an untouched model, or the second job of ``stages: apart``). ``lead``: seconds before the time limit
    at which a run is told to save. ``max_timeouts``: how often a run may reach its limit and go on; preemptions are not counted.
    ``extra``: further sbatch options as they are; ``setup``: shell lines before the run.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    scheduler: Literal["local", "slurm"]
    threads: int = Field(ge=1)
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    independent: Resources | None = None
    joint: Resources | None = None
    evaluation: Resources | None = None
    stages: Literal["together", "apart"] = "together"
    max_running: int | None = Field(default=None, ge=1)
    lead: int = Field(default=300, ge=1)
    max_timeouts: int = Field(default=3, ge=0)
    extra: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    environment: Mapping[str, str] = Field(default_factory=dict)
    python: str | None = None
    scratch: str | None = None
    hub_cache: str | None = None
    hub_offline: bool = False

    @field_validator("environment", mode="before")
    @classmethod
    def _variables(cls, given: Mapping[str, object]) -> dict[str, str]:
        if wrong := [k for k in given if not WORD.fullmatch(str(k))]:
            raise ValueError(f"{', '.join(wrong)}: not the name of an environment variable")
        return {k: str(v) for k, v in given.items()}

    @field_validator("extra")
    @classmethod
    def _options(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        owned = (
            "--array",
            "--dependency",
            "--job-name",
            "--comment",
            "--output",
            "--error",
            "--requeue",
            "--no-requeue",
            "--signal",
        )
        for option in given:
            if not option.startswith("--") or "\n" in option:
                raise ValueError(f"{option!r} is not one long sbatch option, such as --exclude=n1")
            if option.partition("=")[0] in owned:
                raise ValueError(f"{option!r} is set by the launcher, because finding a job again rests on it")
        return given

    @model_validator(mode="after")
    def _complete(self) -> ClusterSection:
        if self.scheduler == "slurm" and None in (self.independent, self.joint, self.evaluation):
            raise ValueError("a Slurm cluster says what independent, joint and evaluation jobs ask for (gpus, cpus, mem, time)")
        short = {
            k: r.time for k in ("independent", "joint", "evaluation") if (r := getattr(self, k)) and seconds(r.time) <= self.lead
        }
        if self.scheduler == "slurm" and short:
            jobs = ", ".join(f"{k}.time={time}" for k, time in short.items())
            raise ValueError(f"lead={self.lead} seconds is not shorter than a job's time limit ({jobs}); use a shorter lead")
        if self.scheduler == "local" and self.stages == "apart":
            raise ValueError("stages: apart needs a scheduler; a local run trains and evaluates in one process")
        return self
