"""Checks of what the text derives from the tables: mean gains, shares, compute ratios, and of GPU-hours and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analysis.audit_check import Check, Comparison, against, at_most, unknown
from analysis.audit_scores import BLOCKS
from analysis.cells import Constant, Expression, Key, Leaf, Operation, evaluate, keys, rounding_slack
from analysis.claim_spec import Check as ClaimCheck, Claim
from analysis.clipping import BOTH, ZERO
from analysis.paper import SETTING, Reported, half_unit
from analysis.spec import AVERAGE

HEAD = 60  # characters of a claim's text that name its check
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


def percent(a: Expression, b: Expression) -> Operation:
    """100 a / b."""
    return op("product", Constant(100), op("ratio", a, b))


def text_numbers(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """Every number of the text that ``claims.yaml`` recomputes from the tables, and beside it what the claim leaves unsaid.

    The rounding of what goes in is not granted, but said where it could explain a miss. The changes of table 2 are one check.
    """
    checks, changes = [], []
    for claim in claims:
        found = [_text(claim, check, reported) for check in claim.checks if check.kind == "equals"]
        if claim.id.startswith("A"):
            changes += found
        elif found:
            checks.append(Check("text", f"{claim.id} {_head(claim)}", tuple(found), claim.reading))
        for check in claim.beside:
            if check.kind == "equals":
                checks.append(Check("text", f"{claim.id} beside it: {check.what}", (_text(claim, check, reported),)))
    return [*checks, Check("text", "A01 to A17: changes against full GRAFT", tuple(changes))] if changes else checks


def _head(claim: Claim) -> str:
    return claim.text if len(claim.text) <= HEAD else claim.text[: HEAD - 1].rstrip() + "…"


def _text(claim: Claim, check: ClaimCheck, reported: Reported) -> Comparison:
    what = " ".join(x for x in (claim.id, check.what) if x)
    values = {key: reported.cell(key) for key in check.keys}
    if absent := [key for key, value in values.items() if value is None]:
        return unknown(what, f"{check.printed}: {absent[0].table} is not printed as numbers")
    ((_, expression),) = check.items
    number = evaluate(expression, values)
    found = against(what, number.value, check.printed)
    slack = rounding_slack(number, values)
    if found.verdict == "does not hold" and abs(found.off) <= half_unit(check.printed) + slack:
        reach = f"{number.value - slack:.4f} to {number.value + slack:.4f}"
        return replace(found, numbers=f"{found.numbers} (unrounded inputs allow {reach})")
    return found


def block_shares(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
    """The stored gain's share (C22) block by block, beside the one number of the text."""
    printed = [check.printed for claim in claims if claim.id == "C22" for check in claim.checks]
    found = []
    for pair, receiver in BLOCKS if printed else ():
        share = percent(
            gain("table6", "graft_stored", "grpo_n8", receiver, pair), gain("table6", "graft", "grpo_n8", receiver, pair)
        )
        number = evaluate(share, {key: reported.cell(key) for key in keys(share)})
        found.append(against(f"pair {pair} {receiver}", number.value, printed[0], digits=1))
    remark = "the text's is a ratio of means over blocks; it leans on the block where the log beats the live peer"
    return [Check("text", "C22 the share of the text in each block, %", tuple(found), remark)] if found else []


def gpu_hours(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
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


def conservative(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
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


def clipping(reported: Reported, claims: Sequence[Claim]) -> list[Check]:
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
