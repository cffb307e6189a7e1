"""``make bench-exchange``: what the exchange costs of a step: selection, re-tokenisation, the receiver's scoring, the rest.

    python -m benchmarks.exchange [--steps 12] [--scale cpu] [--pair 1]

Measured at cpu scale, on GRAFT with two live models of the pair: CPU seconds of this process (which other work on the machine does not
change; the verifier's worker is apart) around each part of ``graft.exchange`` inside whole training steps. Building the own training
sequences happens there too, as for every method, and is shown apart. At paper scale by a cost model, since nothing of that size runs here:

    FLOPs of a forward pass = 2 P per token, of an update = 6 P, 8 P with gradient checkpointing (P parameters)
    a step of one model     = sampling (2 P) + old log-probs (2 P) + update (8 P) over its response tokens, and prompts once for each
    the exchange            = 2 P of the RECEIVER over the tokens that it is offered; it scores each once and trains on them in place of
                              its own failed groups, so the update costs no more than without an exchange
    the rest of it          = tokens offered x measured seconds per token of re-tokenising, against the paper's seconds per step
                              (table 5: GPU-hours / GPUs / steps)

Sampling reaches a smaller part of a GPU's peak than scoring, so the share in time is smaller than the share in FLOPs.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE_5 = ROOT / "paper_tables" / "reported" / "table5_compute.csv"
# The paper's run (table 3, appendix B): two models, 128 prompts x 8 responses a step, 174 steps on 4 GPUs. Pair 1.
PROMPTS, N, STEPS, GPUS = 128, 8, 174, 4
PARAMETERS = {"smollm3-3b": 3.08e9, "qwen3-1.7b": 1.72e9}
# Mean response and prompt lengths are not in the paper. The share in FLOPs depends on them little; 4,096 is the limit.
RESPONSE_TOKENS, PROMPT_TOKENS = 1000, 150
OWN = "own sequences (every method)"
SHARES_MOVED = (0.02, 0.05, 0.10, 0.20)


@dataclass
class Clock:
    """Seconds and tokens by part, and the seconds of whole steps."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)

    def around(self, part: str, function: Callable[..., Any], count: Callable[..., int] = lambda *_: 0) -> Callable[..., Any]:
        """The function with a clock; ``count`` gives its tokens from its result and arguments."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            result = function(*args, **kwargs)
            self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - started
            self.tokens[part] = self.tokens.get(part, 0) + count(result, *args)
            return result

        return timed


@contextmanager
def clocked(clock: Clock, policies: Mapping[str, Any]) -> Iterator[None]:
    """Clocks around what an exchange calls. Scoring inside it is the only scoring: own log-probs are the sampler's at this scale."""
    from graft import cotrain, exchange

    kept, own, whole = exchange.retokenize, exchange._own, cotrain.exchange
    exchange._own = clock.around(OWN, own)
    cotrain.exchange = clock.around("exchange", whole)  # type: ignore[attr-defined]
    scores = {name: policy.score for name, policy in policies.items()}
    exchange.retokenize = clock.around("re-tokenisation", kept, lambda r, *_: len(r.ids or ()))  # type: ignore[assignment]
    for policy in policies.values():
        policy.score = clock.around("scoring", policy.score, lambda _, items: sum(len(ids) for _, ids in items))
    try:
        yield
    finally:
        exchange.retokenize = kept
        exchange._own = own
        cotrain.exchange = whole  # type: ignore[attr-defined]
        for name, policy in policies.items():
            policy.score = scores[name]


@dataclass(frozen=True)
class Measured:
    """Shares of the step by part; tokens scored against tokens of offered responses that can be exchanged."""

    shares: Mapping[str, float]
    step_seconds: float
    scored: int
    offered: int
    admitted: int
    moved_share: float
    retokenise_us: float


def measure(overrides: list[str], steps: int) -> Measured:
    """GRAFT on one pair; the first step warms up and is not counted."""
    import tempfile

    from experiments.config import resolve
    from experiments.engine import build_policies, loop_settings, method_of, set_threads
    from experiments.run_record import RunRecord
    from experiments.tasks import load_pinned
    from graft.cotrain import Setup, run_step
    from graft.verifier import Verifier

    set_threads(1)
    (plan,), options = resolve(["method=graft", *overrides])
    clock, admitted, offered, moved, prompts_seen = Clock(), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as root, Verifier() as verifier:
        record = RunRecord.create(Path(root), cell=plan.cell, recipe=plan.recipe, deviations={})
        policies = build_policies(record, options.model_paths, "cpu")
        prompts = load_pinned(plan.recipe["data"]["train"], options.data_root).prompts
        setup = Setup(policies, method_of(record), loop_settings(record), verifier.verify_many)
        run_step(setup, prompts, 1)
        with clocked(clock, policies):
            for step in range(2, steps + 2):
                started = time.process_time()
                result = run_step(setup, prompts, step)
                clock.steps.append(time.process_time() - started)
                rows = result.exchange.report.rows
                offered += sum(r.score is not None for r in rows)
                admitted += sum(len(s.response_ids) for gs in result.exchange.peer.values() for g in gs for s in g.sequences)
                moved += sum(d.used for d in result.exchange.report.directions)
                prompts_seen += 2 * setup.settings.prompts_per_step
        longer = retokenise_us(policies)
    return replace(_shares(clock, offered, admitted, moved / prompts_seen), retokenise_us=longer)


def retokenise_us(policies: Mapping[str, Any], repeats: int = 20) -> float:
    """CPU microseconds per receiver token of a response of RESPONSE_TOKENS tokens: cpu scale's short ones cost mostly their calls."""
    from graft.retokenize import retokenize
    from graft.types import Response

    sender, receiver = (p.codec for p in policies.values())
    text = "First 4 * 4 = 16. Then 16 + 2 = 18. The answer is \\boxed{18}. "
    text *= RESPONSE_TOKENS // len(receiver.encode(text)) + 1
    ids = sender.encode(text)
    response = Response(ids, (-1.0,) * len(ids), text, "length")
    started, tokens = time.process_time(), 0
    for _ in range(repeats):
        made = retokenize(response, sender, receiver, max_tokens=10**6)
        assert made.ids is not None, made.reason
        tokens += len(made.ids)
    return 1e6 * (time.process_time() - started) / tokens


def _shares(clock: Clock, offered: int, admitted: int, moved: float) -> Measured:
    total = sum(clock.steps)
    parts = {k: clock.seconds.get(k, 0.0) for k in ("re-tokenisation", "scoring", OWN)}
    parts["selection, admission, bookkeeping"] = clock.seconds["exchange"] - sum(parts.values())
    tokens = clock.tokens.get("re-tokenisation", 0)
    return Measured(
        shares={k: v / total for k, v in parts.items()},
        step_seconds=total / len(clock.steps),
        scored=clock.tokens.get("scoring", 0),
        offered=tokens,
        admitted=admitted,
        moved_share=moved,
        retokenise_us=0.0,
    )


def flops_share(moved: float) -> float:
    """The receivers' scoring of peer text over all FLOPs of the step, both models, if ``moved`` of each one's groups are replaced."""
    response, prompt = PROMPTS * N * RESPONSE_TOKENS, PROMPTS * N * PROMPT_TOKENS
    base = sum(p * (2 + 2 + 8) * (response + prompt) for p in PARAMETERS.values())
    scoring = sum(p * 2 * moved * (response + prompt) for p in PARAMETERS.values())
    return scoring / (base + scoring)


def paper_step_seconds() -> float:
    """Seconds per step of the paper's joint run of pair 1: its full-run GPU-hours (table 5) / GPUs / steps."""
    with open(TABLE_5, encoding="utf-8", newline="") as f:
        hours = {row["method"]: float(row["both_full_run_gpu_h"]) for row in csv.DictReader(f)}
    return hours["graft"] * 3600 / GPUS / STEPS


def text_share(moved: float, microseconds: float) -> float:
    """Re-tokenising on one core over the paper's step, if ``moved`` of both models' groups are replaced."""
    tokens = 2 * moved * PROMPTS * N * RESPONSE_TOKENS
    return tokens * microseconds * 1e-6 / paper_step_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--pair", default="1")
    args = parser.parse_args()
    m = measure([f"scale={args.scale}", f"pair={args.pair}"], args.steps)
    print(
        f"scale={args.scale}, pair {args.pair}, {args.steps} steps of {m.step_seconds:.2f} s: {m.moved_share:.1%} of the groups replaced"
    )
    for part, share in m.shares.items():
        print(f"  {part:36s} {share:7.3%} of the step")
    rest = sum(v for k, v in m.shares.items() if k not in ("scoring", OWN))
    print(f"  all but the forward pass             {rest:7.3%} of the step (goal: under 1 %)")
    print(
        f"  tokens scored {m.scored}, of offered responses that can be exchanged {m.offered} (goal: not more), admitted {m.admitted}"
    )
    print(
        f"paper scale by the cost model (pair 1, {RESPONSE_TOKENS} tokens a response, {paper_step_seconds():.0f} s a step by table 5):"
    )
    print(f"  {'groups replaced':18s} {'scoring, of FLOPs':>18s} {'re-tokenising, of time':>24s}")
    for moved in SHARES_MOVED:
        print(f"  {moved:18.0%} {flops_share(moved):18.2%} {text_share(moved, m.retokenise_us):24.3%}")
    print(f"  ({m.retokenise_us:.2f} us per token of re-tokenising: encode, decode and compare, one core, as measured here)")


if __name__ == "__main__":
    main()
