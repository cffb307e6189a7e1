"""Memory and time of a run before it runs: by formulas, on stated assumptions, unverified on GPUs (docs/estimate.md).

    python -m experiments.estimate pair=1 cluster=h200x4 [policy.layout=side_by_side] [method=grpo] [any other override]
    python -m experiments.estimate pair=1 cluster=h200x4 assume.response_tokens=700 format=json
    python -m experiments.estimate scale=cpu                   the packaged models; without a GPU there are no seconds

scale=paper unless a scale is given. assume.<name>= changes an assumption, gpu= names the GPU where the cluster does not, format=json
(or --json) prints for scripts. Everything else is an override as for experiments.train. Exit code 2 for a mistake, 0 otherwise, also
when the run does not fit: the answer is in the output (``fits`` in JSON).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from experiments.config import Config, RunPlan, load_config, resolve
from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.estimate.fitting import obstacles, remedies
from experiments.estimate.memory import Model, model_memory, phases
from experiments.estimate.report import Report, show, to_json
from experiments.estimate.setting import Assumptions, Placement, assumptions, gpu_of, load_of, placement_of
from experiments.estimate.shapes import find_shape
from experiments.estimate.timing import costs, run_time
from experiments.paper_costs import from_paper
from experiments.run_record import trains

FORMATS = ("term", "json")
PLAIN_WIDTH = 150


@dataclass(frozen=True)
class Request:
    """The command line: Hydra overrides and the words of this command."""

    overrides: tuple[str, ...]
    assumptions: Assumptions
    gpu: str | None
    format: str


def parse(argv: Sequence[str]) -> Request:
    """UserError for unknown words; what is an override is checked by the configuration."""
    given: dict[str, str] = {}
    words: dict[str, str] = {}
    overrides: list[str] = []
    for argument in argv:
        key, equals, value = argument.partition("=")
        if argument == "--json":
            words["format"] = "json"
        elif not equals:
            raise UserError(
                f"{argument!r}: give key=value, such as pair=1 cluster=h200x4 assume.response_tokens=700; --help explains"
            )
        elif key.startswith("assume."):
            given[key.removeprefix("assume.")] = value
        elif key in ("format", "gpu"):
            words[key] = value
        else:
            overrides.append(argument)
    if words.get("format", "term") not in FORMATS:
        raise UserError(f"format={words['format']} is not known; known: {', '.join(FORMATS)}")
    if not any(o.startswith("scale=") for o in overrides):
        overrides.insert(0, "scale=paper")
    return Request(tuple(overrides), assumptions(given), words.get("gpu"), words.get("format", "term"))


def estimate(config: Config, plan: RunPlan, options_paths: dict[str, str], request: Request) -> Report:
    """The report on one run. ``options_paths``: model name -> where it is loaded from."""
    a = request.assumptions
    gpu, load, place = gpu_of(config, plan, request.gpu), load_of(config, plan, a), placement_of(config, plan)
    names = [m["name"] for m in plan.recipe["models"]]
    known = tuple(find_shape(options_paths[name]) for name in names)

    def build(where: Placement) -> tuple[Model, ...]:
        return tuple(model_memory(name, k.shape, load, where, (gpu, a)) for name, k in zip(names, known, strict=True))

    models = build(place)
    found = tuple(c for m in models for c in costs(m, load, place, (gpu, a)))
    wrong = None if gpu is None else tuple(obstacles(models, place, gpu))
    return Report(
        name=plan.name,
        known=known,
        models=models,
        load=load,
        place=place,
        gpu=gpu,
        assumptions=a,
        phases=phases(models, place),
        obstacles=wrong,
        remedies=tuple(remedies(build, place, gpu, load.limit)) if wrong and gpu else (),
        costs=found,
        time=run_time(found, load, place, a),
        paper=from_paper(plan.recipe) if config.scale.name == "paper" else None,
    )


def reports(request: Request) -> list[Report]:
    """One report per run of the selection."""
    config = load_config(request.overrides)
    plans, options = resolve(request.overrides)
    if not all(trains(plan.recipe) for plan in plans):
        raise UserError(f"method {config.method.name} trains nothing; there is an estimate for methods that do")
    return [estimate(config, plan, dict(options.model_paths), request) for plan in plans]


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & {*argv}:
        print(__doc__)
        return 0
    try:
        request = parse(argv)
        found = reports(request)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    if request.format == "json":
        print(json.dumps([to_json(r) for r in found], indent=1))
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    for r in found:
        show(r, console)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
