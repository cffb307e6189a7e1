"""Whether a placement fits a GPU, and which overrides make it fit if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from experiments.estimate.memory import GB, Model, peak, phases
from experiments.estimate.setting import Gpu, Placement

Build = Callable[[Placement], tuple[Model, ...]]


def obstacles(models: tuple[Model, ...], place: Placement, gpu: Gpu) -> list[str]:
    """Why the run cannot be placed so, in words; [] if it fits."""
    worst = peak(phases(models, place))
    found = []
    if worst.total > gpu.memory:
        found.append(f"{worst.kind} of {worst.model} needs {worst.total / GB:.1f} GB of {gpu.memory / GB:.0f} GB")
    if place.engine == "verl":
        small = [m.name for m in models if not m.sampler.full]
        found += [f"the sampler of {name} holds no sequence of full length" for name in small]
    return found


def remedies(build: Build, place: Placement, gpu: Gpu, limit: int) -> list[tuple[str, float]]:
    """(override, peak in bytes) of each single change under which everything fits; where there is none, one combination if there is
    one. ``build``: the models' memory under a placement; ``limit``: tokens of the longest sequence, which a micro-batch must hold."""
    found: dict[str, tuple[str, float]] = {}
    for override, other in changes(place, limit):
        models = build(other)
        if not obstacles(models, other, gpu):  # changes of one key come from the mildest on: the first that fits is kept
            found.setdefault(override.partition("=")[0], (override, peak(phases(models, other)).total))
    return list(found.values()) or combined(build, place, gpu, limit)


def combined(build: Build, place: Placement, gpu: Gpu, limit: int) -> list[tuple[str, float]]:
    """Changes of different keys, each time the one that lowers the peak most, until everything fits; [] if it never does."""
    chosen: dict[str, str] = {}

    def highest(where: Placement) -> float:
        return peak(phases(build(where), where)).total

    while obstacles(build(place), place, gpu):
        open_ = [(o, p) for o, p in changes(place, limit) if o.partition("=")[0] not in chosen]
        if not open_:
            return []
        override, better = min(open_, key=lambda change: highest(change[1]))
        if highest(better) >= highest(place):
            return []
        chosen[override.partition("=")[0]], place = override, better
    return [(" ".join(chosen.values()), highest(place))]


def changes(place: Placement, limit: int) -> Iterator[tuple[str, Placement]]:
    """Single changes of a verl placement that free memory, or give more of it to the sampler."""
    if place.engine != "verl":
        return
    tokens = place.micro_tokens // 2
    while tokens >= limit:
        yield f"policy.tokens_per_gpu={tokens}", replace(place, micro_tokens=tokens)
        tokens = tokens // 2 if tokens // 2 >= limit or tokens == limit else limit
    if not place.checkpointing:
        yield "policy.gradient_checkpointing=true", replace(place, checkpointing=True)
    if not place.sleep:
        yield "policy.sleep=true", replace(place, sleep=True)
    if not place.offload:
        yield "policy.offload=true", replace(place, offload=True)
    for tenths in (*range(int(place.memory_utilization * 10 - 1e-9), 0, -1), *range(int(place.memory_utilization * 10) + 1, 10)):
        yield f"policy.memory_utilization={tenths / 10}", replace(place, memory_utilization=tenths / 10)
