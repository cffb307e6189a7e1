"""``make bench-verifier``: answers/s of our verifier against math-verify called serially; hanging answers; all golds.

    python -m benchmarks.verifier [--data DIR] [--responses 4000] [--workers 2]
    python -m benchmarks.verifier --hangs [--data DIR] [--limit 1]
    python -m benchmarks.verifier --golds [--data DIR]

The first judges the same responses both ways and prints every case on which the two differ, by the rule that made it: groups of 8
as rollouts have them, with few distinct answers, right and wrong ones built from the golds. The second puts 200 hanging answers
of the kind that a rule refuses among 2,000 normal ones, then --slippery of a kind that none knows. The third verifies every gold
against itself and its solution, and lists the golds that math-verify cannot read. Problem files are not part of this repository.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from graft.verifier import Verifier, extract_boxed
from graft.verifier_rules import explain
from graft.verifier_worker import _cpu_seconds, judge, reads_whole

SETS = ("math_train_nosol", "math500", "aime2024", "aime2025", "amc23", "minerva")
GROUP = 8
Pair = tuple[str, str]


def rows(data: Path, name: str) -> list[dict[str, str]]:
    """The items of one data file."""
    return [json.loads(line) for line in (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def respond(answer: str) -> str:
    """A response as a model writes it."""
    return f"We simplify step by step and collect what is left.\nThe final answer is $\\boxed{{{answer}}}$."


def right_variants(gold: str) -> list[str]:
    """The gold in other spellings."""
    variants = [gold, f" {gold} ", gold.replace("\\frac", "\\dfrac"), gold.replace("\\left", "").replace("\\right", "")]
    if re.fullmatch(r"-?[0-9]+", gold):
        variants += [f"{gold}.0", f"\\frac{{{2 * int(gold)}}}{{2}}", f"x = {gold}"]
    if found := re.fullmatch(r"(-?)\\frac\{([0-9]+)\}\{([0-9]+)\}", gold):
        sign, top, bottom = found.groups()
        variants += [f"{sign}{top}/{bottom}", f"{sign}\\frac{{{3 * int(top)}}}{{{3 * int(bottom)}}}"]
    return variants


def wrong_variants(gold: str, other: str, rng: random.Random) -> list[str]:
    """Changed numbers, a changed sign of a single value, another item's gold."""
    numbers = list(re.finditer(r"[0-9]+", gold))
    variants = [
        f"{gold[: n.start()]}{int(n.group()) + rng.randint(1, 9)}{gold[n.end() :]}"
        for n in rng.sample(numbers, min(2, len(numbers)))
    ]
    if not re.search(r"[,=\[\]&]|\\text", gold):
        variants.append(gold[1:] if gold.startswith("-") else f"-{gold}")
    return [*variants, other]


def rollouts(golds: Sequence[str], count: int, seed: int = 0) -> list[Pair]:
    """(gold, response) in groups of ``GROUP``: each group has a pass rate and a few answers that come again and again."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    while len(pairs) < count:
        gold, other = rng.sample(golds, 2)
        right = rng.sample(right_variants(gold), 2)
        wrong = wrong_variants(gold, other, rng)
        rate = rng.random()
        for _ in range(GROUP):
            answer = (
                rng.choices(right, (4, 1))[0]
                if rng.random() < rate
                else rng.choices(wrong, [2**-i for i in range(len(wrong))])[0]
            )
            pairs.append((gold, respond(answer)))
    return pairs[:count]


def plain(gold: str, response: str) -> bool:
    """math-verify as its README calls it."""
    from math_verify import parse, verify

    return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(response)))


def reason(gold: str, response: str) -> str:
    """Names of the rules that touched a pair, or what else tells it from plain math-verify."""
    answer = extract_boxed(response)
    if answer is None:
        return "extraction"
    _, pair, names = explain(gold.strip(), answer.strip())
    if names:
        return " + ".join(names)
    if not all(map(reads_whole, pair)):
        return "whole reading"
    return "close numbers" if judge(*pair) == "different" else "UNEXPLAINED"


def start(verifier: Verifier, workers: int) -> None:
    """Have all worker processes up: their imports are paid once per run, not per answer."""
    verifier.verify_many([("x_1", respond(f"y_{i}")) for i in range(4 * workers)])
    assert all(w.pid for w in verifier._workers)


def cpu_of(verifier: Verifier) -> float:
    """Processor time of this process and the verifier's workers."""
    return time.process_time() + sum(_cpu_seconds(w.pid) for w in verifier._workers if w.pid)


def compare_speed(golds: Sequence[str], count: int, workers: int) -> None:
    """Answers/s both ways and the differing verdicts."""
    pairs = rollouts(golds, count)
    plain("1", respond("1"))
    started, cpu = time.perf_counter(), time.process_time()
    theirs = [plain(*pair) for pair in pairs]
    serial, serial_cpu = time.perf_counter() - started, time.process_time() - cpu
    with Verifier(workers=workers) as v:
        start(v, workers)
        started, cpu = time.perf_counter(), cpu_of(v)
        ours = [w for i in range(0, count, 256) for w in v.verify_many(pairs[i : i + 256])]  # a training step at a time
        pooled, pooled_cpu = time.perf_counter() - started, cpu_of(v) - cpu
        counts = Counter(w.how for w in ours)
    print(
        f"{count} responses, {len(set(pairs))} distinct pairs, {sum(theirs)} accepted by math-verify, {sum(w.correct for w in ours)} by ours"
    )
    print(f"math-verify, serial   {count / serial:8.0f} answers/s  ({serial:.1f} s, {serial_cpu:.1f} s of processor time)")
    print(
        f"ours, {workers} workers       {count / pooled:8.0f} answers/s  ({pooled:.1f} s, {pooled_cpu:.1f} s of processor time)"
    )
    print(
        f"{serial / pooled:.1f} times as fast, with {serial_cpu / pooled_cpu:.1f} times less processor time (load {os.getloadavg()[0]:.1f})"
    )
    print(f"verdicts: {dict(counts)}")
    differing: dict[str, list[tuple[str, Pair]]] = {}
    for pair, mv, w in zip(pairs, theirs, ours):
        if mv != w.correct:
            differing.setdefault(reason(*pair), []).append((w.how, pair))
    for name, cases in sorted(differing.items()):
        print(f"differs by rule [{name}]: {len(cases)} responses, {len(set(cases))} distinct")
        for how, (gold, response) in sorted(set(cases)):
            print(f"    {how:10} gold {gold!r}  answer {extract_boxed(response)!r}")


class PeakMemory(threading.Thread):
    """Largest resident memory (MB) of a verifier's workers, restarts included."""

    def __init__(self, verifier: Verifier):
        super().__init__(daemon=True)
        self.verifier, self.peak_mb, self.done = verifier, 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            for worker in self.verifier._workers:
                try:
                    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{worker.pid}/status").read_text())
                except OSError:
                    continue
                self.peak_mb = max(self.peak_mb, int(found.group(1)) / 1024 if found else 0.0)


def towers() -> Iterator[str]:
    """Answers that the exact reader refuses as too large."""
    for i in range(1000):
        yield [f"{9 + i}^{{9^{{9^9}}}}", f"({10 + i}!)!", f"\\binom{{10^9}}{{5 \\cdot 10^8 - {i}}}", f"3^{{20^6}} + {i}"][i % 4]


def slippery() -> Iterator[str]:
    """Answers that hang and that no rule knows."""
    for i in range(1000):
        yield f"\\sum_{{k=1}}^{{10^{{9}}}} k^{{k+{i}}}"


def hanging(golds: Sequence[str], workers: int, limit_s: float, hangs: Iterator[str], count: int, title: str) -> None:
    """``count`` hanging answers among 2,000 normal ones: time, verdicts, memory."""
    normal = rollouts(golds, 2000, seed=1)
    pairs = normal + [("1", respond(next(hangs))) for _ in range(count)]
    random.Random(2).shuffle(pairs)
    for name, batch in (("without", normal), ("with", pairs)):
        with Verifier(workers=workers, timeout_s=limit_s) as v:
            start(v, workers)
            memory = PeakMemory(v)
            memory.start()
            started = time.perf_counter()
            verdicts = v.verify_many(batch)
            spent = time.perf_counter() - started
            memory.done.set()
            slowest = max(w.seconds for w in verdicts)
            print(
                f"{title}: {len(batch)} answers {name} {count} hanging ones: {spent:.1f} s, slowest {slowest:.2f} s (limit {limit_s} s), "
            )
            print(f"    peak memory of a worker {memory.peak_mb:.0f} MB, verdicts {dict(v.counts)}")


def one_hanging(golds: Sequence[str], limit_s: float) -> None:
    """Normal answers beside one hanging answer of another thread: they take what one worker alone takes."""
    normal = [pair for pair in rollouts(golds, 1200, seed=3)]
    for workers, hang in ((1, False), (2, True)):
        with Verifier(workers=workers, timeout_s=limit_s) as v:
            start(v, workers)
            asking = threading.Thread(target=v.verify, args=("1", respond(next(slippery()))))
            if hang:
                asking.start()
                time.sleep(0.1)
            started = time.perf_counter()
            v.verify_many(normal)
            spent = time.perf_counter() - started
            print(
                f"{len(normal)} normal answers, {workers} workers, {'one of them hanging' if hang else 'none hanging'}: {spent:.1f} s"
            )
            if hang:
                asking.join()


def check_golds(data: Path) -> None:
    """Every gold against itself and its solution; golds that are not read."""
    with Verifier(timeout_s=20.0) as v:
        for name in SETS:
            items = rows(data, name)
            empty = [r["id"] for r in items if not r["answer"].strip()]
            items = [r for r in items if r["answer"].strip()]
            own = v.verify_many([(r["answer"], f"\\boxed{{{r['answer']}}}") for r in items])
            solved = [r for r in items if r.get("solution")]
            full = v.verify_many([(r["answer"], r["solution"]) for r in solved])
            print(
                f"{name}: itself {sum(w.correct for w in own)}/{len(own)}, solution {sum(w.correct for w in full)}/{len(full)}",
                end="",
            )
            print(f", empty golds {empty}")
            for r, w in [(r, w) for r, w in [*zip(items, own), *zip(solved, full)] if not w.correct]:
                print(f"    {w.how}: {r['id']} gold {r['answer']!r} extracted {w.extracted!r}")
            rewritten = [(r, explain(r["answer"].strip(), "x")[1][0]) for r in items]
            unread = [r for r, gold in rewritten if not reads_whole(gold)]
            judged = v._judge_all([(gold, gold) for _, gold in rewritten])
            unequal = [gold for (gold, _), (how, _) in judged.items() if how != "equal"]
            print(
                f"    as the rules rewrite it, by math-verify: {len(judged) - len(unequal)}/{len(judged)} distinct golds equal {unequal}"
            )
            print(f"    not read by math-verify, accepted as the same text only, {len(unread)}:")
            for r in unread:
                print(f"        {r['id']} {r['answer']!r}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data", help="directory of the JSONL files"
    )
    parser.add_argument("--responses", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds of one hanging answer")
    parser.add_argument(
        "--slippery", type=int, default=20, help="hanging answers that no rule knows; each costs its limit and a new process"
    )
    parser.add_argument("--hangs", action="store_true")
    parser.add_argument("--golds", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.golds:
        return check_golds(args.data)
    golds = [r["answer"] for r in rows(args.data, "math_train_nosol") if r["answer"].strip()]
    if args.hangs:
        hanging(golds, args.workers, args.limit, towers(), 200, "towers that a rule refuses")
        hanging(golds, args.workers, args.limit, slippery(), args.slippery, "hanging answers that no rule knows")
        return one_hanging(golds, 5.0)
    compare_speed(golds, args.responses, args.workers)


if __name__ == "__main__":
    main()
