"""METHODS: every method as data. Keys are the row names of the paper's ablation table, and the baselines.

A new method is one entry here, one YAML in sweeps/conf/method/, and at most one new function in the module of the role that it
changes. Sources: PAPER = arXiv 2609.37868 (appendices B and G); what it leaves open is said in docs/methods/<name>.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from graft import advantages, compatibility, losses, schedule, selection, transfer
from graft.baselines import DR_GRPO, GRPO, GRPO_DYNAMIC, GSPO, HACPO, NAIVE_SHARING, RL_ZVP, SGT
from graft.composition import Difference, Method, variant

GRAFT = variant(
    GRPO,
    "graft",
    Difference("Two models train in one run on the same prompts.", "joint"),
    Difference(
        "A receiver's all-fail group is replaced by a peer's mixed group, balanced per pair, ties kept (eq. 4).",
        "selection",
        "transfer",
    ),
    Difference(
        "Each peer response is weighted by w = 1[s > delta] min(s, 1); dropped ones count nowhere (eq. 8).", "admission", "delta"
    ),
    Difference(
        "Peer responses keep the source group's advantages, computed before any is dropped; the ratio's denominator is the "
        "receiver's own old policy (eq. 9); minibatches with grafted groups come last (as composed for GRPO, where no peer is)."
    ),
    joint=True,
    selection=selection.complementary_balanced,
    transfer=transfer.replace_group,
    admission=compatibility.gate_and_cap,
    delta=0.8,
)

GRAFT_STORED = variant(
    GRAFT,
    "graft_stored",
    Difference(
        "One model trains; its peer is the log of a finished GRPO run, whose groups of the same prompts are read, not sampled.",
        "joint",
        "peers",
    ),
    Difference("The logged rewards are verified again before use; disagreements are counted."),
    Difference(
        "One direction, so no balancing: every prompt with k_receiver = 0 and 1 <= k_source < n moves (eq. 4 without m).",
        "selection",
    ),
    joint=False,
    peers="stored",
    selection=selection.complementary,
)

# Appendix G, each against full GRAFT.
WO_COMPAT_GATE = variant(
    GRAFT,
    "wo_compat_gate",
    Difference("w = 1 for every transferred response.", "admission", "delta"),
    admission=compatibility.admit_all,
)
WO_FLOOR = variant(
    GRAFT, "wo_floor", Difference("w = min(s, 1), nothing dropped.", "admission", "delta"), admission=compatibility.cap
)
WO_BALANCING = variant(
    GRAFT,
    "wo_balancing",
    Difference("Every prompt with k_receiver = 0 and k_source >= 1 moves: no min() between directions.", "selection"),
    selection=selection.rescue,
)
WO_TOKEN_RATIO = variant(
    GRAFT,
    "wo_token_ratio",
    Difference("The sequence's ratio in place of the token's, own and peer.", "own_loss", "peer_loss"),
    own_loss=losses.sequence_clip,
    peer_loss=losses.sequence_clip,
)
RANDOM_PROMPTS = variant(
    GRAFT,
    "random_prompts",
    Difference("As many prompts per direction, drawn from the batch whatever the rewards.", "selection"),
    selection=selection.count_matched_random,
)
RANDOM_ADMISSION = variant(
    GRAFT,
    "random_admission",
    Difference("As many responses as pass the floor, drawn from all transferred; w = min(s, 1).", "admission"),
    admission=compatibility.random_admission,
)
PEER_FIRST = variant(
    GRAFT, "peer_first", Difference("Minibatches with peer data come first.", "order"), order=schedule.peer_first
)
PEER_UNIFORM = variant(
    GRAFT, "peer_uniform", Difference("The order of the minibatches is drawn each step.", "order"), order=schedule.peer_uniform
)
POOLED_GROUPS = variant(
    GRAFT,
    "pooled_groups",
    Difference("The receiver's failed group stays beside the peer's.", "transfer"),
    Difference(
        "Advantages over the union of both groups (2n); peers keep w, own responses have 1.", "own_advantage", "peer_advantage"
    ),
    transfer=transfer.add_group,
    own_advantage=advantages.pooled,
    peer_advantage=advantages.pooled,
)
SUCCESS_ONLY = variant(
    GRAFT,
    "success_only",
    Difference("Only the peer's successes move; their advantages still come from its full group.", "transfer"),
    transfer=transfer.replace_by_successes,
)
SUCCESS_ONLY_WO_FLOOR = variant(
    SUCCESS_ONLY,
    "success_only_wo_floor",
    Difference("w = min(s, 1), nothing dropped.", "admission", "delta"),
    admission=compatibility.cap,
)

# GRAFT's choice of prompts with another method's update.
GRAFT_WHICH_HACPO_UPDATE = variant(
    HACPO,
    "graft_which_hacpo_update",
    Difference("Peer responses outside GRAFT's selection get advantage 0 (they still count in the mean).", "selection"),
    selection=selection.every_prompt_complementary_heard,
)
GRAFT_WHICH_SFT_UPDATE = variant(
    SGT,
    "graft_which_sft_update",
    Difference("Only on prompts that GRAFT selects.", "selection"),
    selection=selection.complementary_balanced,
)
GRAFT_WHICH_LUFFY_UPDATE = variant(
    GRAFT,
    "graft_which_luffy_update",
    Difference("Peer tokens are weighed by f(p) = p / (p + 0.1): no ratio, no clip.", "peer_loss", "shaping_gamma"),
    Difference("No gate: w = 1 for every transferred response.", "admission", "delta"),
    peer_loss=losses.shaped_probability,
    admission=compatibility.admit_all,
    shaping_gamma=0.1,
)

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        m.name: m
        for m in (
            GRPO,
            GRAFT,
            HACPO,
            SGT,
            GRAFT_STORED,
            WO_COMPAT_GATE,
            WO_FLOOR,
            WO_BALANCING,
            WO_TOKEN_RATIO,
            RANDOM_PROMPTS,
            RANDOM_ADMISSION,
            PEER_FIRST,
            PEER_UNIFORM,
            POOLED_GROUPS,
            SUCCESS_ONLY,
            SUCCESS_ONLY_WO_FLOOR,
            GRAFT_WHICH_HACPO_UPDATE,
            GRAFT_WHICH_SFT_UPDATE,
            GRAFT_WHICH_LUFFY_UPDATE,
            GRPO_DYNAMIC,
            GSPO,
            DR_GRPO,
            RL_ZVP,
            NAIVE_SHARING,
        )
    }
)


def build_method(name: str, hyperparameters: Mapping[str, float]) -> Method:
    """The entry ``name`` with the given values; unknown names list the known."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name].with_hyperparameters(**hyperparameters)
