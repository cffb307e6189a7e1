"""What the page shows, as frozen data: every table and figure, the claims, the audit, and the runs of the scale with their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import figures
from analysis.audit import audit
from analysis.audit_check import Check
from analysis.claim_checks import MISSING, Finding, Judged, judge_claim
from analysis.claim_spec import Claim, load_claims
from analysis.collect import eval_file, open_runs, runs_asked
from analysis.kinds import KINDS, Asked, build_table, kind_of
from analysis.page import Page
from analysis.records_cells import Records
from analysis.reproduce import Outcome, names_of, outcome_of
from experiments.ledger import Ledger, read_ledger
from experiments.run_record import RunRecord, UserError

# Files of a run directory that a reader may want, where they exist (docs/records.md).
RECORDS = (
    "run.json",
    "status.json",
    "metrics.jsonl",
    "validation.jsonl",
    "selected.json",
    "compute.json",
    "done.json",
    "trajectories",
)


@dataclass(frozen=True)
class Shown:
    """A table or figure. Without a page it could not be made; ``outcome`` says why. ``png``: of a figure. ``fill``: makes what it lacks."""

    outcome: Outcome
    page: Page | None = None
    csv: str = ""
    png: bytes | None = None
    fill: str = ""


@dataclass(frozen=True)
class EvaluationFiles:
    """Of one model on one benchmark: the files that are there, of ``asked``."""

    model: str
    benchmark: str
    files: tuple[Path, ...]
    asked: int


@dataclass(frozen=True)
class Run:
    """A run directory. ``records``: its files and folders that exist. ``ledger`` None: nothing was spent yet."""

    path: Path
    config: Mapping[str, Any]
    status: Mapping[str, Any]
    done: bool
    ledger: Ledger | None
    evaluations: tuple[EvaluationFiles, ...]
    records: tuple[Path, ...]


@dataclass(frozen=True)
class Content:
    """All of the page. ``used``: the finished runs of the scale as records, for the footer."""

    scale: str
    seeds: tuple[int, ...]
    root: Path
    tables: tuple[Shown, ...]
    figures: tuple[Shown, ...]
    claims: tuple[Judged, ...]
    audit: tuple[Check, ...]
    runs: tuple[Run, ...]
    used: tuple[RunRecord, ...]
    reported: Path


def gather(root: Path, asked: Asked, seeds: Sequence[int], paper: Path) -> Content:
    """Read the run directories under ``root``. ``seeds``: of the claims. ``paper``: folder with claims.yaml, specs/ and reported/."""
    records = open_runs(root)
    mine = tuple(r for r in records if r.config["cell"]["scale"] == asked.scale)
    names = names_of(asked.specs)
    # Those that are no table of the paper (baselines of our own) come last.
    names += sorted({p.stem for p in asked.specs.glob("*.yaml")} - set(names))
    shown = [(show(name, mine, asked), kind_of(name, asked.specs) in figures.FIGURES) for name in names]
    source = Records(mine, asked.scale, seeds, asked.specs, asked.methods)
    return Content(
        scale=asked.scale,
        seeds=tuple(seeds),
        root=root,
        tables=tuple(s for s, is_figure in shown if not is_figure),
        figures=tuple(s for s, is_figure in shown if is_figure),
        claims=tuple(_judge(claim, source) for claim in load_claims(paper / "claims.yaml")),
        audit=tuple(audit(paper)),
        runs=tuple(sorted(map(read_run, mine), key=lambda r: r.path.name)),
        used=tuple(r for r in mine if r.done),
        reported=paper / "reported",
    )


def show(name: str, records: Sequence[RunRecord], asked: Asked) -> Shown:
    """One table or figure; what cannot be made says why and stops none of the others."""
    kind = kind_of(name, asked.specs)
    try:
        if kind in figures.FIGURES:
            query = figures.Query(records, asked.scale, asked.seed, asked.methods)
            data = figures.build(figures.load_spec(name, asked.specs), query)
            page = figures.to_page(data)
            return Shown(outcome_of(name, page), page, figures.to_csv(data), figures.to_png(data), _fill(name, kind, asked))
        if kind not in KINDS:
            return Shown(Outcome(name, "not in this version", f"kind {kind}"))
        page, csv = build_table(name, lambda: records, asked)
        return Shown(outcome_of(name, page), page, csv, fill=_fill(name, kind, asked))
    except UserError as e:
        return Shown(Outcome(name, "error", str(e)))


def _fill(name: str, kind: str, asked: Asked) -> str:
    """The command for all that is missing. A spread over training seeds names its own, so it is given none."""
    seeds = f" SEEDS={asked.seed}" if asked.seed and kind != "stability" else ""
    return f"make launch TABLE={name} SCALE={asked.scale}{seeds} WAIT=1"


def _judge(claim: Claim, source: Records) -> Judged:
    """A claim on a table that cannot be made has no data; the reason stands with the table, too."""
    try:
        return judge_claim(claim, source)
    except UserError as e:
        return Judged(claim, (Finding(MISSING, str(e)),), ())


def read_run(record: RunRecord) -> Run:
    """What the appendix says about a run."""
    return Run(
        path=record.path,
        config=record.config,
        status=record.status(),
        done=record.done,
        ledger=read_ledger(record) if record.attempts() else None,
        evaluations=tuple(_evaluations(record)),
        records=tuple(record.path / name for name in RECORDS if (record.path / name).exists()),
    )


def _evaluations(record: RunRecord) -> list[EvaluationFiles]:
    asked = runs_asked(record)
    found = []
    for model in record.config["recipe"]["models"]:
        for benchmark in record.config["recipe"]["evaluation"]["benchmarks"]:
            files = (eval_file(record, model["name"], benchmark["name"], k) for k in range(asked))
            found.append(EvaluationFiles(model["name"], benchmark["name"], tuple(f for f in files if f.exists()), asked))
    return found
