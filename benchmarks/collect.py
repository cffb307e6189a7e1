"""``make bench-collect``: seconds and memory to collect evaluation rows, without the cache (cold) and with it (warm).

Makes run directories with generated rows in a temporary folder, then collects them in fresh processes, several times each way. The
time is that of ``analysis.collect.evaluation_frame`` alone (starting Python and importing pandas come before), the memory the whole
process's highest resident set. Prints medians; on a busy machine the CPU seconds say what the seconds do not. "Cold" means that
nothing was collected before; the files themselves are in the page cache of the operating system, having just been written.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.run_record import RunRecord

MODELS, BENCHMARKS, RUNS = 2, 5, 5
MEASURE = """
import resource, sys, time
from pathlib import Path
from analysis.collect import evaluation_frame, open_runs
records = open_runs(Path(sys.argv[1]))
started, cpu = time.perf_counter(), time.process_time()
frame = evaluation_frame(records)
print(time.perf_counter() - started, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(frame))
"""


def generate(root: Path, *, directories: int, items: int, samples: int, response: int) -> int:
    """Finished run directories under ``root``; the number of their rows. ``response``: characters per response."""
    models = [{"name": f"model-{m}", "stands_for": f"slot-{m}", "source": "none"} for m in range(MODELS)]
    benchmarks = [{"name": f"b{b}", "stands_for": f"b{b}", "items": items, "sha256": "0" * 64} for b in range(BENCHMARKS)]
    evaluation = {"samples": samples, "temperature": 0.6, "top_p": 0.95, "seeds": list(range(RUNS)), "benchmarks": benchmarks}
    for seed in range(directories):
        cell = {"method": "graft", "pair": "1", "models": [m["name"] for m in models], "scale": "cpu", "seed": seed}
        recipe = {
            "models": models,
            "training": {"selection": "best"},
            "evaluation": evaluation,
            "method": {"name": "graft"},
            "seed": seed,
        }
        record = RunRecord.create(root, cell=cell, recipe=recipe, deviations={})
        for model in models:
            for benchmark in benchmarks:
                folder = record.path / "eval" / model["name"] / benchmark["name"]
                folder.mkdir(parents=True)
                for run in range(RUNS):
                    text = "".join(_row(benchmark["name"], run, i, s, f"{seed} {model['name']}", response)
                                   for i in range(items) for s in range(samples))  # fmt: skip
                    (folder / f"run{run}.jsonl").write_text(text, encoding="utf-8")
        (record.path / "done.json").write_text(json.dumps({"fingerprint": record.config["fingerprint"]}))
    return directories * MODELS * BENCHMARKS * RUNS * items * samples


def _row(benchmark: str, run: int, item: int, sample: int, who: str, response: int) -> str:
    text = f"{who} {run} {item} {sample}".ljust(response, "x")
    return (
        f'{{"benchmark":"{benchmark}","correct":{"true" if (item + sample) % 3 else "false"},"extracted":"2","finish_reason":"eos",'
        f'"gold":"2","how":"equal","item":"item-{item}","response":"{text}","run":{run},"sample":{sample},"seed":7,"tokens":31}}\n'
    )


def measure(root: Path) -> tuple[float, float, float, int]:
    """(seconds, CPU seconds of all threads, MB at most, rows) of one fresh process."""
    out = subprocess.run([sys.executable, "-c", MEASURE, str(root)], capture_output=True, text=True, check=True).stdout.split()
    return float(out[0]), float(out[1]), float(out[2]), int(out[3])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directories", type=int, default=20, help="run directories of 50 files each (default: 20)")
    parser.add_argument("--items", type=int, default=175, help="items per file (default: 175)")
    parser.add_argument("--samples", type=int, default=4, help="samples per item (default: 4)")
    parser.add_argument("--response", type=int, default=150, help="characters per response (default: 150)")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        rows = generate(root, directories=args.directories, items=args.items, samples=args.samples, response=args.response)
        files = args.directories * MODELS * BENCHMARKS * RUNS
        size = sum(f.stat().st_size for f in root.glob("*/eval/*/*/*.jsonl"))
        print(f"{rows:,} rows in {files:,} files, {size / 1e6:.0f} MB of JSON")
        cold, warm = [], []
        for _ in range(args.repeats):
            shutil.rmtree(root / ".cache", ignore_errors=True)
            cold.append(measure(root))
            warm.append(measure(root))
        for name, found in (("cold", cold), ("warm", warm)):
            seconds, cpu, memory = (statistics.median(x[k] for x in found) for k in (0, 1, 2))
            fastest = min(x[0] for x in found)
            if any(x[3] != rows for x in found):
                raise RuntimeError(f"{name}: {[x[3] for x in found]} rows were collected of {rows}")
            print(
                f"{name}: {seconds:.2f} s (fastest {fastest:.2f}; CPU {cpu:.2f} s), {memory:.0f} MB at most; median of {len(found)}"
            )


if __name__ == "__main__":
    main()
