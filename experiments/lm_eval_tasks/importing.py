"""``python -m analysis import-lm-eval <samples.jsonl ...> --model <name> --stands-for <slug>``: lm-eval's sample logs as a run of ours.

All files of one model at once. Each is one evaluation run of one benchmark; several files of a benchmark are its runs, in the order
given. The items are those of the pinned prompt sets, the golds are theirs, and the verdicts are this project's verifier's: lm-eval's
own scores are not read. The result is a run of method ``imported``, which a table shows where its spec names it (docs/evaluation.md).
Importing the same files again changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.compose import override
from experiments.config import load_config, resolve
from experiments.errors import EXIT_USER_ERROR, UserError
from experiments.evaluate import choose_benchmarks
from experiments.evaluation import Sample, count_complete, item_row, rows_file, write_rows
from experiments.files import write_json
from experiments.lm_eval_tasks.samples import SampleFile, benchmark_of, read_samples
from experiments.run_record import RunRecord, find_runs, fingerprint
from experiments.tasks import load_pinned
from graft.types import Prompt
from graft.verifier import Verifier

METHOD = "imported"


@dataclass(frozen=True)
class Imported:
    """What is to be written: the frozen parts of the run, the files of every benchmark in the order of its runs, the runs' seeds."""

    cell: Mapping[str, Any]
    recipe: Mapping[str, Any]
    deviations: Mapping[str, Any]
    files: Mapping[str, Sequence[SampleFile]]
    prompts: Mapping[str, tuple[Prompt, ...]]
    seeds: tuple[int | None, ...]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analysis import-lm-eval", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="samples_<task>_<time>.jsonl as lm-eval writes with --log_samples")
    parser.add_argument("--model", required=True, help="name of the checkpoint; table specs find it under method.checkpoint")
    parser.add_argument("--stands-for", required=True, help="the paper's slug in whose column it stands, e.g. qwen3-1.7b")
    parser.add_argument("--as", dest="receiver", help="the scale's model of that slug (default: what the scale says)")
    parser.add_argument("--scale", default="paper", help="the scale among whose runs it stands (default: paper)")
    parser.add_argument("--data-root", help="directory with the benchmarks' files (docs/data.md); generated sets need none")
    parser.add_argument("--benchmark", help="what files whose name does not say so evaluate, e.g. math500")
    parser.add_argument("--limit", type=int, help="the calls had --limit: only the first items were evaluated")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds of the runs, if known (default: 0, 1, ...)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, e.g. data.golds=corrected")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of the experiments (default: runs)")
    parser.add_argument("--experiment", default="paper", help="folder of the run under --root (default: paper)")
    return parser.parse_args(argv)


def described(args: argparse.Namespace, sources: set[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the slot's model, the benchmarks of these sources) as recipes of the scale describe them: what makes tables comparable."""
    overrides = ["method=base", "pair=all", f"scale={args.scale}", "++scale.evaluation.max_items=null", *args.set]
    if args.data_root:
        overrides.append(override("data.root", args.data_root))
    config = load_config(overrides)
    known = {b.source: b.name for b in config.data.benchmarks}
    if wrong := sorted(sources - known.keys()):
        raise UserError(f"{', '.join(wrong)} is no benchmark of scale={args.scale}, which has {', '.join(known)}")
    chosen = choose_benchmarks([name for source, name in known.items() if source in sources], config)
    (plan,), _ = resolve([*overrides, chosen, f"model={args.stands_for}"])
    (model,) = plan.recipe["models"]
    benchmarks = plan.recipe["evaluation"]["benchmarks"]
    if any(b["sha256"] is None for b in benchmarks):
        raise UserError("items are found by the benchmarks' own files: give --data-root <directory> (docs/data.md)")
    # lm-eval's --limit takes the first items, ours evenly spaced ones: the two are never the same benchmark.
    return model, [b | {"items": min(args.limit, b["items"]), "which": "first"} if args.limit else b for b in benchmarks]


def plan_import(args: argparse.Namespace) -> Imported:
    """Read and check everything; nothing is written. UserError for files that do not make whole evaluation runs."""
    sources = {path: benchmark_of(path, args.benchmark) for path in args.files}
    model, benchmarks = described(args, set(sources.values()))
    prompts = {b["name"]: load_pinned(b, args.data_root).prompts[: b["items"]] for b in benchmarks}
    files = {
        b["name"]: [read_samples(path, prompts[b["name"]]) for path, source in sources.items() if source == b["source"]]
        for b in benchmarks
    }
    runs, samples = _check_files(files)
    if args.seeds and len(set(args.seeds)) != runs:
        raise UserError(f"--seeds {' '.join(map(str, args.seeds))}: {runs} different ones are needed, one per run")
    first = next(iter(files.values()))[0].generation
    hashes = {name: [f.sha256 for f in mine] for name, mine in files.items()}
    receiver = args.receiver or model["name"]
    recipe = {
        "method": {"name": METHOD, "checkpoint": args.model},
        "models": [{"name": receiver, "stands_for": args.stands_for, "source": f"sha256:{fingerprint(hashes)}"}],
        "training": {"selection": "not ours", "max_response_tokens": first.max_tokens},
        "policy": {"engine": METHOD, "until": list(first.until), "files": hashes},
        "evaluation": {
            "seeds": args.seeds or list(range(runs)),
            "samples": samples,
            "temperature": first.temperature,
            "top_p": first.top_p,
            "benchmarks": benchmarks,
        },
        "seed": 0,
    }
    cell = {"method": METHOD, "pair": None, "models": [receiver], "scale": args.scale, "seed": 0}
    deviations = {"method.checkpoint": args.model} | ({"evaluation.limit": args.limit} if args.limit else {})
    return Imported(cell, recipe, deviations, files, prompts, tuple(args.seeds or [None] * runs))


def _check_files(files: Mapping[str, Sequence[SampleFile]]) -> tuple[int, int]:
    """(runs, samples) that all benchmarks agree on. UserError if they do not, or if two runs are one file or one set of responses."""
    runs = {name: len(mine) for name, mine in files.items()}
    if len(set(runs.values())) != 1:
        raise UserError(f"the benchmarks have different numbers of files ({runs}); every one needs a file for every run")
    every = [f for mine in files.values() for f in mine]
    for what, values in (("samples per item", {f.samples for f in every}), ("ways of sampling", {f.generation for f in every})):
        if len(values) != 1:
            raise UserError(
                f"the files differ in their {what}: {', '.join(map(str, sorted(values, key=str)))}; import them apart"
            )
    for name, mine in files.items():
        for i, one in enumerate(mine):
            for other in mine[:i]:
                if one.responses == other.responses:
                    raise UserError(
                        f"{other.path} and {one.path} hold the same responses to {name}: they are one run, not two. lm-eval's seed is "
                        "the same in every call unless --seed is given."
                    )
    return next(iter(runs.values())), every[0].samples


def refuse_other_import(root: Path, imported: Imported) -> None:
    """Two imports of one checkpoint would be two finished runs behind one cell."""
    for record in find_runs([root]):
        same = record.config["cell"] == dict(imported.cell) and record.config["deviations"] == dict(imported.deviations)
        if same and record.config["recipe"] != imported.recipe:
            raise UserError(
                f"{record.path} already holds {imported.recipe['method']['checkpoint']}, from other files or settings. Remove that "
                "directory to replace it, or give this one another --model."
            )


def write(imported: Imported, root: Path) -> RunRecord:
    """The run directory, complete and marked done. What is there already is not written again."""
    refuse_other_import(root, imported)
    record = RunRecord.create(root, cell=imported.cell, recipe=imported.recipe, deviations=imported.deviations)
    (model,) = imported.recipe["models"]
    with record.lock(), Verifier() as verifier:
        for name, files in imported.files.items():
            for run, (file, seed) in enumerate(zip(files, imported.seeds, strict=True)):
                target = rows_file(record, model["name"], name, run)
                if not target.exists():
                    write_rows(target, _rows((name, run), imported.prompts[name], file, seed, verifier))
        counts = count_complete(record)
        record.set_status("done", reason=None)
        write_json(record.path / "done.json", counts)
    return record


def _rows(
    place: tuple[str, int], prompts: Sequence[Prompt], file: SampleFile, seed: int | None, verifier: Verifier
) -> list[dict[str, Any]]:
    pairs = [(p, text) for p in prompts for text in file.responses[p.id]]
    verdicts = verifier.verify_many([(p.golds, text) for p, text in pairs])
    return [
        item_row((*place, i % file.samples), prompt, Sample(text, seed), verdict)
        for i, ((prompt, text), verdict) in enumerate(zip(pairs, verdicts, strict=True))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        imported = plan_import(args)
        record = write(imported, args.root / args.experiment)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    rows = sum(len(f.responses) * f.samples for files in imported.files.values() for f in files)
    print(f"{record.path}: {rows} rows of {len(imported.files)} benchmarks, {len(imported.recipe['evaluation']['seeds'])} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
