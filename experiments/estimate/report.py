"""An estimate as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.estimate.memory import FORMULAS, GB, Model, Phase, peak
from experiments.estimate.setting import Assumptions, Gpu, Load, Placement, assumption_table, changed
from experiments.estimate.shapes import Known
from experiments.estimate.timing import PHASES, Cost, RunTime
from experiments.paper_costs import Estimate

UNVERIFIED = "estimates by formulas (docs/estimate.md), unverified on GPUs"


@dataclass(frozen=True)
class Report:
    """All that is known of one run before it runs. ``obstacles``: why it does not fit, None where no GPU is named; ``remedies``:
    overrides that make it fit, each with the peak then, in bytes; ``paper``: GPU-hours of table 5, at paper scale."""

    name: str
    known: tuple[Known, ...]
    models: tuple[Model, ...]
    load: Load
    place: Placement
    gpu: Gpu | None
    assumptions: Assumptions
    phases: tuple[Phase, ...]
    obstacles: tuple[str, ...] | None
    remedies: tuple[tuple[str, float], ...]
    costs: tuple[Cost, ...]
    time: RunTime | None
    paper: Estimate | None

    @property
    def ratio(self) -> float | None:
        """Estimated GPU-hours over the paper's."""
        return self.time.gpu_hours / self.paper.hours if self.time and self.paper and self.paper.hours else None


def to_json(r: Report) -> dict[str, Any]:
    """The report in plain types; bytes, seconds and FLOPs unrounded."""
    return {
        "note": UNVERIFIED,
        "run": r.name,
        "models": [
            {
                "name": m.name,
                "parameters": m.shape.parameters,
                "shape": asdict(m.shape),
                "source": k.source,
                "verified": k.verified,
                "bytes": dict(m.pieces),
                "sampler": asdict(m.sampler),
            }
            for m, k in zip(r.models, r.known, strict=True)
        ],
        "placement": asdict(r.place),
        "load": asdict(r.load),
        "gpu": asdict(r.gpu) if r.gpu else None,
        "assumptions": asdict(r.assumptions),
        "phases": [{"phase": p.kind, "model": p.model, "bytes": p.total} for p in r.phases],
        "peak": {"phase": peak(r.phases).kind, "model": peak(r.phases).model, "bytes": peak(r.phases).total},
        "fits": None if r.obstacles is None else not r.obstacles,
        "obstacles": list(r.obstacles or ()),
        "remedies": [{"override": o, "peak_bytes": b} for o, b in r.remedies],
        "time": [asdict(c) for c in r.costs],
        "run_time": asdict(r.time) | {"step_seconds": r.time.step_seconds, "gpu_hours": r.time.gpu_hours} if r.time else None,
        "paper": asdict(r.paper) if r.paper else None,
        "ratio_to_paper": r.ratio,
    }


def show(r: Report, console: Console) -> None:
    """The report as tables, plain text where the console is no terminal."""
    say = _say(console)
    say(f"{r.name.rpartition('-')[0]}: {UNVERIFIED}")  # without the fingerprint: nothing is frozen here
    for m, k in zip(r.models, r.known, strict=True):
        say(f"{m.name}: {m.shape.parameters:,} parameters; {k.source}{'' if k.verified else ' (UNVERIFIED SHAPE)'}")
    say(placement_line(r))
    console.print(memory_table(r))
    console.print(sampler_table(r))
    console.print(phase_table(r))
    for line in verdict(r):
        say(line)
    console.print(time_table(r))
    for line in time_lines(r):
        say(line)
    say("assumed (assume.<name>=<value> changes one; * is changed): " + ", ".join(assumed(r.assumptions)))


def _say(console: Console) -> Any:
    return lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False)


def table(title: str, *heads: str) -> Table:
    """Left-aligned first column, right-aligned others."""
    made = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for k, head in enumerate(heads):
        made.add_column(head, justify="right" if k else "left", no_wrap=k == 0)
    return made


def placement_line(r: Report) -> str:
    p, gpu = r.place, r.gpu
    if p.engine == "torch":
        return "torch engine: one process, one device; float32 training state, no sampler of its own"
    where = f"{p.gpus} x {gpu.name} ({gpu.memory / GB:.0f} GB each)" if gpu else f"{p.gpus} GPUs"
    return (
        f"{where}, {p.layout}: {p.share} GPUs a model, tensor parallel {p.tensor_parallel}, micro-batches of {p.micro_tokens:,} tokens, "
        f"checkpointing {_on(p.checkpointing)}, sleep {_on(p.sleep)}, offload {_on(p.offload)}, "
        f"memory_utilization {p.memory_utilization:g}"
    )


def _on(value: bool) -> str:
    return "on" if value else "off"


def memory_table(r: Report) -> Table:
    made = table("GB on each GPU, piece by piece", "piece", *(m.name for m in r.models), "formula")
    made.columns[-1].justify = "left"
    for piece, formula in FORMULAS.items():
        values = [m.pieces[piece] for m in r.models]
        if any(values):
            made.add_row(piece, *map(_gb, values), formula)
    return made


def _gb(value: float) -> str:
    return f"{value / GB:.2f}" if value >= 1e7 else f"{value / GB:.4f}"


def sampler_table(r: Report) -> Table:
    full, typical = f"{r.load.limit:,} tokens", f"{r.load.typical:,.0f} tokens"
    heads = ("KV bytes a token", "KV cache, GB", f"sequences of {full}", f"of {typical}", "responses of a step")
    made = table("sampler, on each GPU (sequences: of one replica at a time)", "model", *heads)
    for m in r.models:
        s = m.sampler
        made.add_row(m.name, f"{s.kv_bytes_per_token:,}", _gb(s.kv_bytes), f"{s.full:,}", f"{s.typical:,}", f"{s.needed:,.0f}")
    return made


def phase_table(r: Report) -> Table:
    made = table("GB on each GPU, phase by phase", "phase", "model", "total", "own", "of waiting models", "largest piece")
    for p in r.phases:
        own = sum(v for (model, _), v in p.parts.items() if model == p.model)
        (model, piece), most = max(p.parts.items(), key=lambda item: item[1])
        mark = " <- peak" if p is peak(r.phases) else ""
        largest = f"{piece}{'' if model == p.model else f' of {model}'} {_gb(most)}"
        made.add_row(p.kind, p.model, _gb(p.total) + mark, _gb(own), _gb(p.total - own), largest)
    return made


def verdict(r: Report) -> list[str]:
    """Whether it fits, and what to change if not."""
    worst = peak(r.phases)
    top = f"peak: {worst.kind} of {worst.model}, {_gb(worst.total)} GB"
    if r.gpu is None or r.obstacles is None:
        return [f"{top}; no GPU is named, so whether that fits is not said (gpu=h200 names one)"]
    if not r.obstacles:
        return [f"{top} of {r.gpu.memory / GB:.0f} GB: fits, {_gb(r.gpu.memory - worst.total)} GB to spare"]
    lines = [f"DOES NOT FIT: {'; '.join(r.obstacles)}"]
    lines += [f"  {override} makes it fit (peak {_gb(total)} GB)" for override, total in r.remedies]
    return lines if r.remedies else [*lines, "  nothing of policy/verl.yaml makes it fit; use more GPUs (policy.gpus) or others"]


def time_table(r: Report) -> Table:
    made = table("one step", "phase", *(f"{m.name} {what}" for m in r.models for what in ("M tokens", "PFLOP", "s")), "wall s")
    for phase in PHASES:
        cells = [c for m in r.models for c in r.costs if c.phase == phase and c.model == m.name]
        numbers = [x for c in cells for x in (f"{c.tokens / 1e6:.3f}", f"{c.flops / 1e15:.3g}", _s(c.seconds))]
        made.add_row(phase, *numbers, _s(r.time.step[phase] if r.time else None))
    return made


def _s(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f}"


def time_lines(r: Report) -> list[str]:
    """Seconds of a step, hours of the run, and the paper's beside."""
    if r.time is None:
        return ["no GPU is named, so there are no seconds"]
    t = r.time
    lines = [
        f"step: {t.step_seconds:.1f} s with {t.step['verification']:g} s of verification; run of {t.steps} steps: {t.hours:.2f} h, "
        f"{t.gpu_hours:.1f} GPU-hours"
    ]
    if r.paper and r.ratio is not None:
        lines.append(f"{r.paper.source}: {r.paper.hours:g} GPU-hours for the full run; this estimate is {r.ratio:.2f} of it")
    return lines


def assumed(a: Assumptions) -> Sequence[str]:
    """``name=value unit`` of each; a star marks what was changed."""
    own = changed(a)
    return [f"{'*' if k in own else ''}{k}={v:g} {assumption_table()[k]['unit']}" for k, v in asdict(a).items()]
