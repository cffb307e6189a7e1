"""Checks of what the text derives from the tables: mean gains, shares, compute ratios, and of GPU-hours and steps."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.audit_check import Check, Comparison, against, at_most, unknown
from analysis.audit_scores import BLOCKS
from analysis.cells import Constant, Expression, Key, Leaf, Operation, evaluate, keys, rounding_slack
from analysis.clipping import BOTH, ZERO
from analysis.paper import SETTING, Reported, half_unit
from analysis.spec import AVERAGE

MODELS = ("smollm3-3b", "qwen3-1.7b")
GPU_HOURS = ("best_gpu_h", "full_gpu_h")
# Methods whose models train in runs of their own (a stored log is no live peer), and those of one joint run.
INDEPENDENT = ("grpo_n8", "grpo_n16", "grpo_n32", "grpo_n8_dynamic_sampling", "graft_stored")
JOINT = ("hacpo", "sgt", "graft")
STEPS_COUNTED = 48  # table 9 is over steps 1 to 48


def cell(table: str, row: str, column: str, receiver: str = "", pair: str = "1") -> Leaf:
    """A cell as an expression."""
    return Leaf(Key(table, row, column, receiver, pair))


def op(name: str, *arguments: Expression) -> Operation:
    """An operation as an expression."""
    return Operation(name, arguments)


def gain(table: str, row: str, base: str, receiver: str, pair: str) -> Operation:
    """Difference of two averages of one block."""
    return op("difference", *(cell(table, r, AVERAGE, receiver, pair) for r in (row, base)))


def mean_gain(table: str, row: str, base: str, blocks: Sequence[tuple[str, str]] = BLOCKS) -> Operation:
    """Mean difference over blocks (pair, receiver)."""
    return op("mean", *(gain(table, row, base, receiver, pair) for pair, receiver in blocks))


def pair_mean(row: str) -> Operation:
    """Mean average of the two models of pair 1 in table 5."""
    return op("mean", *(cell("table5", row, AVERAGE, m) for m in MODELS))


def percent(a: Expression, b: Expression) -> Operation:
    """100 a / b."""
    return op("product", Constant(100), op("ratio", a, b))


def joint_cost(step: str) -> Leaf:
    """GPU-hours of the joint GRAFT run up to a step."""
    return cell("setup", f"graft_joint_gpu_h_at_step_{step}", SETTING)


ONLINE, STORED = mean_gain("table6", "graft", "grpo_n8"), mean_gain("table6", "graft_stored", "grpo_n8")
# The block in which the stored log beats the live peer.
ODD_BLOCK = ("3", "smollm3-3b")
REST = [b for b in BLOCKS if b != ODD_BLOCK]
SMOL, QWEN = MODELS
# name, expression, what the text says, remark
TEXT: tuple[tuple[str, Expression, str, str], ...] = (
    ("mean gain over GRPO n=8", mean_gain("table1", "graft", "grpo_n8"), "2.1", ""),
    ("mean gain over GRPO n=8, one digit more", mean_gain("table1", "graft", "grpo_n8"), "2.11", ""),
    ("largest gain over GRPO n=8", op("max", *(gain("table1", "graft", "grpo_n8", r, p) for p, r in BLOCKS)), "4.5", ""),
    ("the mean gain on three training runs", mean_gain("table4", "graft", "grpo_n8"), "2.1", "the text's 2.1 is of the first run"),
    ("mean gain from stored logs", STORED, "1.78", ""),
    ("mean margin over HACPO", mean_gain("table1", "graft", "hacpo"), "4.0", ""),
    ("mean margin over SGT", mean_gain("table1", "graft", "sgt"), "1.5", ""),
    ("share of the online gain kept by stored logs, %", percent(STORED, ONLINE), "84", "a ratio of means over blocks"),
    (
        "the same share without pair 3 smollm3-3b, %",
        percent(mean_gain("table6", "graft_stored", "grpo_n8", REST), mean_gain("table6", "graft", "grpo_n8", REST)), "84",
        "the 84 % leans on one block: stored 2.06 against online 0.66 there",
    ),
    ("pair mean of GRAFT, pair 1", pair_mean("graft"), "35.25", ""),
    ("margin over GRPO n=32, pair mean", op("difference", pair_mean("graft"), pair_mean("grpo_n32")), "1.18", ""),
    ("margin over GRPO n=16, pair mean", op("difference", pair_mean("graft"), pair_mean("grpo_n16")), "2.48", "an exact half"),
    (
        "compute over GRPO n=32", op("ratio", cell("table5", "graft", "best_gpu_h", BOTH), cell("table5", "grpo_n32", "best_gpu_h", BOTH)),
        "0.45", "0.4446 rounds to 0.44",
    ),
    ("joint cost over GRPO n=32, smollm3-3b", op("ratio", joint_cost("165"), cell("table5", "grpo_n32", "best_gpu_h", SMOL)), "0.84", ""),
    ("joint cost over GRPO n=32, qwen3-1.7b", op("ratio", joint_cost("160"), cell("table5", "grpo_n32", "best_gpu_h", QWEN)), "0.91", ""),
    ("joint cost over GRPO n=16, smollm3-3b", op("ratio", joint_cost("165"), cell("table5", "grpo_n16", "best_gpu_h", SMOL)), "1.95", ""),
    ("joint cost over GRPO n=16, qwen3-1.7b", op("ratio", joint_cost("160"), cell("table5", "grpo_n16", "best_gpu_h", QWEN)), "1.78", ""),
    (
        "steps of a full run", op("product", op("whole_ratio", cell("setup", "train_problems", SETTING), cell("table3", "prompt_batch_size",
        SETTING)), cell("table3", "training_epochs", SETTING)), "174", "the last partial batch of an epoch is dropped",
    ),
    (
        "minibatches of a rollout batch",
        op("ratio", cell("table3", "prompt_batch_size", SETTING), cell("table3", "minibatch_size", SETTING)), "4", "",
    ),
)  # fmt: skip
# What only figures show: nothing printed settles it.
FIGURES = {
    "47.9 % and 18.7 % of all-fail prompts solved by the peer": "the curves of figure 1 are not printed as numbers",
    "stored logs need 27 % to 76 % less compute": "figure 3b; GPU-hours are printed for pair 1 alone",
    "early and lasting margin in validation": "the curves of figure 4 are not printed as numbers",
}


def text_numbers(reported: Reported) -> list[Check]:
    """Numbers of the text, recomputed. The rounding of what goes in is not granted, but said where it could explain a miss."""
    checks = []
    for name, expression, printed, remark in TEXT:
        values = {key: reported.cell(key) for key in keys(expression)}
        number = evaluate(expression, values)
        found = against(name, number.value, printed)
        if found.verdict == "does not hold" and abs(found.off) <= half_unit(printed) + rounding_slack(number, values):
            slack = rounding_slack(number, values)
            remark += f"; unrounded inputs allow {number.value - slack:.4f} to {number.value + slack:.4f}"
        checks.append(Check("text", name, (found,), remark))
    return checks + [Check("text", name, (unknown(name, why),)) for name, why in FIGURES.items()]


def block_shares(reported: Reported) -> list[Check]:
    """The stored gain's share block by block, beside the one number of the text."""
    found = []
    for pair, receiver in BLOCKS:
        share = percent(
            gain("table6", "graft_stored", "grpo_n8", receiver, pair), gain("table6", "graft", "grpo_n8", receiver, pair)
        )
        number = evaluate(share, {key: reported.cell(key) for key in keys(share)})
        found.append(against(f"pair {pair} {receiver}", number.value, "84", digits=1))
    return [
        Check(
            "text",
            "the text's share, 84 %, in each block",
            tuple(found),
            "the text's is a ratio of means over blocks",
        )
    ]


def gpu_hours(reported: Reported) -> list[Check]:
    """Table 5: both models' cost of independent runs is the sum; of a joint run the full runs add up, and best checkpoints at least."""
    sums, joint, best, order = [], [], [], []
    for column in GPU_HOURS:
        for row in (*INDEPENDENT, *JOINT):
            parts = [reported.cell(Key("table5", row, column, m)) for m in MODELS]
            both = reported.cell(Key("table5", row, column, BOTH))
            total = sum(v.mean for v in parts)
            if row in JOINT and column == "best_gpu_h":
                best.append(at_most(row, total, both.mean, 0.15))
            else:
                (joint if row in JOINT else sums).append(against(f"{row} {column}", total, both.printed, digits=1))
    for row in (*INDEPENDENT, *JOINT):
        for receiver in (*MODELS, BOTH):
            hours = [reported.cell(Key("table5", row, column, receiver)).mean for column in GPU_HOURS]
            order.append(at_most(f"{row} {receiver}", *hours, 0.0))
    return [
        Check("GPU-hours", "independent runs: both = sum of the two models", tuple(sums)),
        Check("GPU-hours", "joint methods, full run: both = sum of the two models' shares", tuple(joint)),
        Check("GPU-hours", "joint methods, best: the shares up to each checkpoint are within the joint run", tuple(best),
              "a joint run is charged up to the later checkpoint, so the sum is smaller"),
        Check("GPU-hours", "to the best checkpoint at most the full run", tuple(order)),
    ]  # fmt: skip


def conservative(reported: Reported) -> list[Check]:
    """Charging each model the joint run up to its own checkpoint (figure 5): the costs and steps that appendix D gives."""

    def setting(name: str) -> float:
        return reported.cell(Key("setup", name, SETTING)).mean

    both = reported.cell(Key("table5", "graft", "best_gpu_h", BOTH))
    full, steps = reported.cell(Key("table5", "graft", "full_gpu_h", BOTH)).mean, setting("steps_full_run")
    later = against("step 165", setting("graft_joint_gpu_h_at_step_165"), both.printed)
    chosen = [setting(f"graft_selected_step_{m}_pair1") for m in MODELS]
    interval = setting("validation_interval")
    whole = tuple(against(f"step {s:.0f}", s / interval, f"{round(s / interval)}", digits=2) for s in chosen)
    pace = "; ".join(f"{s:.0f}/{steps:.0f} of {full} is {full * s / steps:.2f}" for s in chosen)
    return [
        Check("GPU-hours", "joint GRAFT run up to the later checkpoint is its cost in table 5", (later,)),
        Check("GPU-hours", "selected steps 165 and 160 are validated ones (every 5 steps)", whole),
        Check("GPU-hours", "40.9 and 39.4 GPU-h at steps 165 and 160", (unknown("pace", pace),), "near an even pace; steps' times are not printed"),
    ]  # fmt: skip


def clipping(reported: Reported) -> list[Check]:
    """Shares of 48 steps are multiples of 1/48 for one model, of 1/96 for two; the table's base is not stated."""
    found: list[Comparison] = []
    fits = []
    for row in ("peer_first", "peer_uniform", "peer_last"):
        value = reported.cell(Key("table9", row, ZERO, BOTH))
        nearest = round(value.mean * 2 * STEPS_COUNTED / 100) / (2 * STEPS_COUNTED) * 100
        found.append(against(row, nearest, value.printed, digits=2))
        bases = [
            n for n in range(1, STEPS_COUNTED + 1) if abs(100 * round(value.mean * n / 100) / n - value.mean) <= value.half_unit
        ]
        fits.append(f"{value.printed}: {', '.join(f'{round(value.mean * n / 100)}/{n}' for n in bases) if value.mean else 'any'}")
    remark = f"no common base of 48 or 96; with fewer steps counted (those with peer tokens?) {'; '.join(fits)}"
    return [Check("clipping", "table 9: shares of steps with zero clipping are k/96", tuple(found), remark)]


BUILDERS = (text_numbers, block_shares, gpu_hours, conservative, clipping)
