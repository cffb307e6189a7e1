"""``make bench-rollout``: steps/s of our policy against TRL's GRPOTrainer, alternating in one process at equal threads.

Same tiny model, prompts, number of prompts and responses, token limit, optimiser steps per rollout batch, fp32, no KL, and the
same verifier for the reward. Both sides run whole training steps (sampling, rewards, advantages, updates). Prints both medians,
their ratio and where our time goes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPTS, N, MINIBATCHES = 32, 8, 4
LIMIT = 36


def ours(path: Path, prompts: tuple[Any, ...], steps: int, verifier: Any) -> tuple[list[float], dict[str, float], float]:
    """(seconds per step, seconds by phase summed, tokens per second of sampling)."""
    from graft.batches import LoopSettings
    from graft.cotrain import Setup, run_step
    from graft.methods import METHODS
    from graft.policies.torch_policy import TorchPolicy, TorchSettings
    from graft.types import OptimiserSettings, SamplingSettings

    optimiser = OptimiserSettings(1.5e-4, 0.9, 0.999, 0.0, 1.0)
    policy = TorchPolicy("model", path, TorchSettings(64, LIMIT), optimiser)
    settings = LoopSettings(0, 1, PROMPTS, PROMPTS // MINIBATCHES, N, SamplingSettings(1.0, 1.0, LIMIT))
    setup = Setup({"model": policy}, METHODS["grpo"], settings, verifier.verify_many)
    spent, phases, tokens = [], {}, 0
    for step in range(1, steps + 1):
        started = time.perf_counter()
        result = run_step(setup, prompts, step)
        spent.append(time.perf_counter() - started)
        tokens += result.tokens["model"]["sampled"]
        for phase, seconds in result.seconds.items():
            phases[phase.split("/")[-1]] = phases.get(phase.split("/")[-1], 0.0) + seconds
    phases["bookkeeping"] = sum(spent) - sum(phases.values())
    return spent, phases, tokens / phases["sampling"]


def trl(path: Path, prompts: tuple[Any, ...], steps: int, verifier: Any) -> list[float]:
    """Seconds per rollout step (MINIBATCHES optimiser steps) of TRL's GRPOTrainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.marks.append(time.perf_counter())

        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step % MINIBATCHES == 0:
                self.marks.append(time.perf_counter())

    def reward(completions: list[str], gold: list[str], **_: Any) -> list[float]:
        return [float(v.correct) for v in verifier.verify_many(list(zip(gold, completions)))]

    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=PROMPTS * N // MINIBATCHES,
            steps_per_generation=MINIBATCHES,
            num_generations=N,
            num_iterations=1,
            max_steps=steps * MINIBATCHES,
            max_completion_length=LIMIT,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=0.0,
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            learning_rate=1.5e-4,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
            shuffle_dataset=False,
            dataloader_num_workers=0,
        )
        rows = Dataset.from_list([{"prompt": p.message + "\n", "gold": p.gold} for p in prompts])
        trainer = GRPOTrainer(model=str(path), reward_funcs=reward, args=config, train_dataset=rows, callbacks=[clock])
        trainer.train()
    return [b - a for a, b in zip(clock.marks, clock.marks[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--model", default="tiny-qwen3")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6, help="rollout steps per repeat; the first of each is not counted")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    from experiments.engine import set_threads
    from experiments.tasks import load_prompt_set
    from experiments.tiny import resolve_model_path
    from graft.verifier import Verifier

    set_threads(args.threads)
    path = Path(resolve_model_path(f"package:{args.model}"))
    prompts = load_prompt_set("arith-train").prompts
    mine, theirs, phases, speed = [], [], {}, 0.0
    for repeat in range(args.repeats):
        with Verifier() as a, Verifier() as b:
            part = prompts[::3][: PROMPTS * args.steps]
            theirs += trl(path, part, args.steps, b)[1:]
            spent, phases, speed = ours(path, part, args.steps, a)
            mine += spent[1:]
        print(
            f"repeat {repeat + 1}: TRL {statistics.median(theirs):.2f} s/step, ours {statistics.median(mine):.2f} s/step",
            flush=True,
        )
    ratio = statistics.median(theirs) / statistics.median(mine)
    print(
        f"{args.model}, {PROMPTS} prompts x {N} x {LIMIT} tokens, {MINIBATCHES} optimiser steps, {args.threads} thread(s), {len(mine)} steps each"
    )
    print(f"TRL  median {statistics.median(theirs):.3f} s/step = {1 / statistics.median(theirs):.3f} steps/s")
    print(
        f"ours median {statistics.median(mine):.3f} s/step = {1 / statistics.median(mine):.3f} steps/s, sampling {speed:,.0f} tokens/s"
    )
    print(f"ratio of steps/s, ours over TRL: {ratio:.2f}")
    total = sum(phases.values())
    print("our time: " + ", ".join(f"{k} {v / total:.0%}" for k, v in sorted(phases.items(), key=lambda kv: -kv[1])))


if __name__ == "__main__":
    main()
