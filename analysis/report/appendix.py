"""What stands behind the numbers: costs, run directories, sets of them, files of the paper's values, and the page's foot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.footer import commits, golds, selection
from analysis.page import DASH, csv_number, csv_text, number
from analysis.report.evidence import Evidence, file_href
from analysis.report.gather import Content, EvaluationFiles, Run
from analysis.report.markup import Body, Head, Td, Tr, bullets, csv_link, details, esc, link, table
from experiments.ledger import HOUR, Ledger

COSTS = ("training", "validation and checkpoints", "evaluation", "loading", "repeated steps", "all on record")


def costs(content: Content, evidence: Evidence) -> str:
    """Device-hours per run and their sums by unit."""
    spent = [(run, run.ledger) for run in content.runs if run.ledger]
    heads = [
        Head("run"),
        Head("state"),
        *(Head(c, True) for c in COSTS),
        Head("unit"),
        *(Head(c, True) for c in ("steps", "attempts")),
    ]
    rows = tuple(_cost(run, ledger, evidence) for run, ledger in spent)
    units = sorted({ledger.devices.unit for _, ledger in spent})
    sums = tuple(_sum(unit, [ledger for _, ledger in spent if ledger.devices.unit == unit]) for unit in units)
    grid = table("cost-table", "Device-hours of each run", heads, [Body("Runs", rows), Body("Sums", sums)])
    idle = len(content.runs) - len(spent)
    notes = (
        "training: devices x wall-clock time of the steps, each step once, without validation and checkpoint writing (the paper's rule).",
        "all on record: every step of every attempt as it was spent, with loading and evaluation. An attempt that was killed has no more "
        "on record than the steps that it finished.",
        f"{idle} run{'s' * (idle != 1)} on record spent nothing yet.",
    )
    return f"{grid}\n{bullets(map(esc, notes))}\n{csv_link('costs', cost_csv(content))}"


def hours(ledger: Ledger) -> tuple[float, ...]:
    """As ``COSTS``."""
    devices = ledger.devices.count
    apart = sum(c.apart * c.devices.count for c in ledger.kept) / HOUR
    repeated = sum(c.wall * c.devices.count for c in ledger.repeated) / HOUR
    return (ledger.full, apart, ledger.evaluation * devices / HOUR, ledger.startup * devices / HOUR, repeated, ledger.spent)


def _cost(run: Run, ledger: Ledger, evidence: Evidence) -> Tr:
    where = evidence.href((run.path.name,))
    values = tuple(Td(number(value, 4), href=where) for value in hours(ledger))
    counts = (
        Td(str(len(ledger.kept))),
        Td(str(ledger.attempts) + (f" ({ledger.killed} without an end)" if ledger.killed else "")),
    )
    return Tr(Td(run.path.name, href=where), (Td(_state(run)), *values, Td(ledger.devices.unit), *counts))


def _sum(unit: str, ledgers: Sequence[Ledger]) -> Tr:
    values = (Td(number(sum(column), 4)) for column in zip(*map(hours, ledgers), strict=True))
    counts = (Td(str(sum(len(x.kept) for x in ledgers))), Td(str(sum(x.attempts for x in ledgers))))
    return Tr(Td(f"{len(ledgers)} runs"), (Td(""), *values, Td(unit), *counts))


def cost_csv(content: Content) -> str:
    columns = ("run", "state", *COSTS, "unit", "steps", "attempts", "attempts_without_end")
    rows = [
        [run.path.name, _state(run), *map(csv_number, hours(x)), x.devices.unit, str(len(x.kept)), str(x.attempts), str(x.killed)]
        for run in content.runs
        if (x := run.ledger)
    ]
    return csv_text(columns, rows)


def _state(run: Run) -> str:
    """A run that says done without its completion record is not."""
    return "done" if run.done else f"{run.status['state']}, not complete"


def runs(content: Content, evidence: Evidence, page: Path) -> str:
    """An entry per run directory, per set of several, and per file of the paper's values. ``page``: folder that links start from."""
    known = {run.path.name for run in content.runs}
    entries = "\n".join(_run(run, evidence, page) for run in content.runs) or f"<p>No run under {esc(content.root)}.</p>"
    sets = [_set(names, ident, evidence) for names, ident in evidence.sets.items()]
    files = [
        f'<li id="{esc(ident)}">{link(file_href(content.reported / name, page), name)}</li>'
        for name, ident in evidence.single.items()
        if name not in known
    ]
    several = f'<h3 id="sets">Numbers of several runs</h3>\n<ul class="sets">\n{chr(10).join(sets)}\n</ul>\n' if sets else ""
    printed = f'<h3 id="files">Files of the paper\'s printed values</h3>\n<ul>\n{chr(10).join(files)}\n</ul>\n' if files else ""
    return f"{entries}\n{several}{printed}"


def _set(names: Sequence[str], ident: str, evidence: Evidence) -> str:
    parts = ", ".join(link(evidence.href((name,)), name) for name in names)
    return f'<li id="{esc(ident)}"><b>{len(names)} records:</b> {parts}</li>'


def _run(run: Run, evidence: Evidence, page: Path) -> str:
    config, status = run.config, run.status
    commit = config.get("commit") or "unknown"
    facts = {
        "directory": link(file_href(run.path, page) + "/", run.path.name),
        "state": esc(f"{_state(run)}, step {_known(status.get('step'))} of {_known(status.get('steps'))}" + _reason(status)),
        "fingerprint": f"<code>{esc(config['fingerprint'])}</code>",
        "training seed": esc(config["cell"]["seed"]),
        "commit": f"<code>{esc(commit)}</code>"
        + (" (changed tree; the difference is in run.json)" if config.get("dirty") else ""),
        "deviations": _deviations(config["deviations"]),
        "records": ", ".join(link(file_href(file, page), file.name) for file in run.records),
        "shown in": ", ".join(link(_anchor_of(user), _name_of(user)) for user in evidence.used_by.get(run.path.name, ()))
        or "nothing",
    }
    items = "".join(f"<dt>{esc(what)}</dt><dd>{text}</dd>" for what, text in facts.items())
    there, asked = sum(len(e.files) for e in run.evaluations), sum(e.asked for e in run.evaluations)
    files = details(f"Evaluation files ({there} of {asked})", bullets(_evaluation(e, page) for e in run.evaluations))
    ident = evidence.single[run.path.name]
    return f'<section class="run" id="{esc(ident)}">\n<h3>{esc(run.path.name)}</h3>\n<dl>{items}</dl>\n{files}\n</section>'


def _known(value: object) -> str:
    return DASH if value is None else str(value)


def _reason(status: Mapping[str, object]) -> str:
    return f" ({status['reason']})" if status.get("reason") else ""


def _deviations(deviations: Mapping[str, object]) -> str:
    return ", ".join(f"<code>{esc(f'{key}={json.dumps(value)}')}</code>" for key, value in deviations.items()) or "none"


def _anchor_of(user: str) -> str:
    return f"#{user}"


def _name_of(user: str) -> str:
    return user.removeprefix("claim-")


def _evaluation(found: EvaluationFiles, page: Path) -> str:
    files = " ".join(link(file_href(file, page), file.stem) for file in found.files) or "none"
    short = f" ({len(found.files)} of {found.asked})" if len(found.files) < found.asked else ""
    return f"{esc(found.model)}, {esc(found.benchmark)}: {files}{short}"


def foot(content: Content) -> str:
    """Selection rule, gold edition and commits over all finished runs of the scale; each table says its own."""
    if not content.used:
        return f"<p>No finished run at scale {esc(content.scale)} under {esc(content.root)}.</p>"
    lines = (f"Checkpoint selection: {selection(content.used)}.", *golds(content.used), f"Commits: {commits(content.used)}.")
    return bullets(map(esc, lines)) + "\n<p>Over all finished runs of this page; the notes of a table are about its own.</p>"
