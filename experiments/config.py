"""Hydra's composition -> frozen, validated run plans. The only reader of a DictConfig.

Hydra composes, types decide: every section is a pydantic model that forbids unknown keys, so a misspelt key in a YAML or on the
command line is an error and never a default. A plan's recipe is what the fingerprint covers; paths, devices, logging stay out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError, model_validator

from experiments.cluster import ClusterSection
from experiments.compose import GROUPS, composed, key_of, quote_numbers
from experiments.donors import AUTO, RUN, Donor, donor_overrides, given_donors, require_use
from experiments.errors import UserError
from experiments.recipe import chosen_models, recipes
from experiments.run_record import differing_keys, fingerprint, run_name
from experiments.sections import DataSection, Frozen, MethodSection, PairSection, PolicySection, ScaleSection
from graft.policies.verl_policy.settings import VerlSettings

# Where the data lie and in which edition: no deviation from a scale that leaves it open, and never mixed within a table.
WHERE = ("data.root", "data.golds", "data.pins")


class Config(Frozen):
    """The whole composed configuration."""

    method: MethodSection
    pair: PairSection
    scale: ScaleSection
    data: DataSection
    policy: PolicySection
    cluster: ClusterSection
    seed: int = Field(ge=0)
    model: str | None
    donor: str | None
    stored_match: Literal["step", "prompt"] | None
    experiment: str = Field(min_length=1, pattern=r"^[\w.-]+$")
    runs_root: str
    resume: Literal["never", "auto", "must"]
    evaluate: bool
    logger: Literal["none", "wandb"]
    checkpoint_every: int = Field(ge=1)
    dry_run: bool

    @model_validator(mode="after")
    def _sampler_logprobs(self) -> Config:
        t = self.scale.training
        if self.policy.engine == "verl" and t.top_p < 1 and t.peer_logprobs == "sampler":
            raise ValueError(
                f"policy verl samples with vLLM, whose log-probs at top_p={t.top_p} are not those of training; "
                "use scale.training.top_p=1, or peer_logprobs=recomputed and old_logprobs=recomputed"
            )
        return self

    @property
    def _kind(self) -> str:
        """Which of the cluster's resources its runs ask for first."""
        if self.method.name == "base":
            return "evaluation"
        return "joint" if self.method.build().joint else "independent"

    @model_validator(mode="after")
    def _shares(self) -> Config:
        """Lengths and GPUs as the verl policy itself would refuse them, before anything is written."""
        if self.policy.engine == "verl":
            t = self.scale.training
            settings = VerlSettings(
                t.max_prompt_tokens,
                t.max_response_tokens,
                t.temperature,
                t.precision,
                **self.policy.model_dump(exclude={"engine"}),
            )
            try:
                settings.gpus_of_a_model(len(self.pair.models) if self._kind == "joint" else 1)
            except ValueError as e:
                raise ValueError(f"policy: {e}") from e
        return self

    @model_validator(mode="after")
    def _gpus(self) -> Config:
        """A job must ask for the GPUs that its policy takes; the evaluation's one model samples on tensor_parallel of them."""
        if self.policy.engine == "verl" and self.policy.device == "cuda" and self.cluster.scheduler == "slurm":
            trains = {} if self._kind == "evaluation" else {self._kind: self.policy.gpus}
            for kind, needed in (trains | {"evaluation": self.policy.tensor_parallel}).items():
                asked = getattr(self.cluster, kind).gpus
                if asked < needed:
                    key = "tensor_parallel" if kind == "evaluation" else "gpus"
                    raise ValueError(f"cluster.{kind} asks for {asked} GPUs, policy.{key} takes {needed}; change one of them")
        return self


@dataclass(frozen=True)
class Options:
    """How a run is executed: nothing here changes a result."""

    experiment_root: Path
    data_root: str | None
    model_paths: Mapping[str, str]
    device: str
    threads: int
    resume: str
    evaluate: bool
    logger: str
    checkpoint_every: int
    dry_run: bool
    donor: str | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunPlan:
    """One frozen run before it has a directory. ``needs``: the runs whose finished logs it reads."""

    cell: Mapping[str, Any]
    recipe: Mapping[str, Any]
    deviations: Mapping[str, Any]
    needs: tuple[RunPlan, ...] = ()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.recipe)

    @property
    def name(self) -> str:
        return run_name(self.cell, self.fingerprint)


def load_config(overrides: Sequence[str]) -> Config:
    """Compose ``sweeps/conf`` with Hydra overrides and validate. Every mistake is a UserError that names the key."""
    overrides = quote_numbers(overrides)
    try:
        return Config.model_validate(composed(overrides))
    except ValidationError as e:
        raise UserError(explain(e)) from e
    except (HydraException, OmegaConfBaseException) as e:
        raise UserError(f"configuration: {e}") from e


def explain(error: ValidationError) -> str:
    """All problems of a configuration, one line each: key, what is wrong, the value."""
    return "configuration: " + "; ".join(_problem(e) for e in error.errors())


def _problem(error: Mapping[str, Any]) -> str:
    """A rule about several keys stands at the section that has them: its text names them, its values would fill a page."""
    loc = [str(part) for part in error["loc"]]
    if loc[:1] == ["policy"] and len(loc) > 2:
        del loc[1]  # the engine, by which the section's type is chosen; no key
    where, message = ".".join(loc), error["msg"].removeprefix("Value error, ")
    given = "" if isinstance(error["input"], Mapping) else f" (given: {error['input']!r})"
    return f"{where}: {message}{given}" if where else message + given


def resolve(overrides: Sequence[str]) -> tuple[tuple[RunPlan, ...], Options]:
    """The runs behind one selection: one for a joint method, one per model for an independent one.

    ``deviations`` of a plan are the recipe's values that differ from what the chosen groups and seed alone compose to, which is
    how a table tells ``graft`` with delta = 0.7 from ``graft``.
    """
    overrides = quote_numbers(overrides)
    config = load_config(overrides)
    plain = [o for o in overrides if key_of(o) in (*GROUPS, *WHERE, "seed", "model")]
    defaults = config if list(overrides) == plain else load_config(plain)
    donors, needs = _donors(config, overrides)
    # For the same receivers: a donor that is given may leave one out.
    usual = donors if defaults is config else _donors(defaults, plain, tuple(donors))[0]
    plans = tuple(
        RunPlan(cell, recipe, _deviations(recipe, base, config), needs.get(cell["models"][0], ()))
        for (cell, recipe), (_, base) in zip(recipes(config, donors), recipes(defaults, usual), strict=True)
    )
    return plans, _options(config)


def _donors(
    config: Config, overrides: Sequence[str], only: tuple[str, ...] | None = None
) -> tuple[dict[str, Donor], dict[str, tuple[RunPlan, ...]]]:
    """(slot -> donor, model name -> the runs to be finished first) of a method with a stored peer; nothing for others.

    ``only``: these slots instead of those that the configuration chooses.
    """
    stored = config.method.name != "base" and config.method.build().stored
    require_use(config, stored)
    if not stored:
        return {}, {}
    slots = chosen_models(config) if only is None else only
    if config.donor not in (None, AUTO):
        return given_donors(config, slots), {}
    donors, needs = {}, {}
    for slot in slots:
        (plan,), _ = resolve(donor_overrides(config, overrides, slot))
        log = RUN + plan.fingerprint
        donors[slot] = Donor(plan.cell["models"][0], log, config.stored_match or "step")
        needs[config.scale.slots[slot].name] = (plan,)
    return donors, needs


def _deviations(recipe: Mapping[str, Any], base: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Values that differ from what the groups alone compose to. Which run an ``auto`` donor is follows from the others."""
    follows = ("donor.log",) if config.donor in (None, AUTO) else ()
    return {k: _dig(recipe, k) for k in differing_keys(recipe, base) if k not in follows}


def _dig(recipe: Mapping[str, Any], key: str) -> Any:
    value: Any = recipe
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _options(config: Config) -> Options:
    """Folders become absolute: a launched run reads them from another working directory."""
    sources = {config.scale.slots[s].name: config.scale.slots[s].source for s in config.pair.models}
    return Options(
        experiment_root=Path(config.runs_root) / config.experiment,
        data_root=None if config.data.root is None else _absolute(config.data.root),
        model_paths={name: _absolute(source) for name, source in sources.items()},
        device=config.policy.device,
        threads=config.cluster.threads,
        resume=config.resume,
        evaluate=config.evaluate,
        logger=config.logger,
        checkpoint_every=config.checkpoint_every,
        dry_run=config.dry_run,
        donor=None if config.donor in (None, AUTO) else str(Path(config.donor).resolve()),
        placement=config.policy.placement(),
    )


def _absolute(given: str) -> str:
    """A directory's absolute path; a packaged or hub name as it is."""
    path = Path(given).expanduser()
    return str(path.absolute()) if path.is_dir() else given
