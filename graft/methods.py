"""METHODS: every method as data. Keys are the row names of the paper's ablation table, and the baselines.

A new method is one entry here, one YAML in sweeps/conf/method/, and at most one new function in the module of the role that it
changes. Sources: PAPER = arXiv 2609.37868 (appendices B and G); what it leaves open is said in docs/methods/<name>.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from graft import advantages, aggregation, compatibility, intake, losses, schedule, selection, transfer
from graft.composition import Difference, Method, variant

GRPO = Method(
    name="grpo",
    parent=None,
    differs=(
        Difference("The group's std is the unbiased one (n-1), eps added to the std (verl).", "own_advantage", "advantage_eps"),
        Difference("Clip-higher 0.2/0.28, no dual clip, no KL, no entropy bonus.", "own_loss", "clip_low", "clip_high"),
        Difference("Token mean over the minibatch; zero-variance groups stay in the denominator.", "aggregation"),
    ),
    intake=intake.one_round,
    capability=advantages.equal_capability,
    own_advantage=advantages.source_group,
    peer_advantage=advantages.source_group,
    selection=selection.no_selection,
    transfer=transfer.nothing,
    admission=compatibility.admit_nothing,
    own_loss=losses.token_clip,
    peer_loss=losses.token_clip,
    aggregation=aggregation.token_mean,
    order=schedule.peer_last,
    joint=False,
    hyperparameters={"advantage_eps": 1e-6, "clip_low": 0.2, "clip_high": 0.28},
)

GRPO_DYNAMIC = variant(
    GRPO,
    "grpo_dynamic",
    Difference(
        "Zero-variance groups are dropped and further prompts sampled until the step is full, at most max_rounds rounds (DAPO).",
        "intake",
        "max_rounds",
    ),
    intake=intake.informative,
    max_rounds=10,
)

GSPO = variant(
    GRPO,
    "gspo",
    Difference("The ratio is the sequence's: exp of its mean token log-ratio.", "own_loss", "peer_loss"),
    Difference("Clip 3e-4/4e-4.", "clip_low", "clip_high"),
    Difference("Mean over a response's tokens, then over responses.", "aggregation"),
    own_loss=losses.sequence_clip,
    peer_loss=losses.sequence_clip,
    aggregation=aggregation.seq_mean_token_mean,
    clip_low=3e-4,
    clip_high=4e-4,
)

DR_GRPO = variant(
    GRPO,
    "dr_grpo",
    Difference("Advantages are r - mean, not divided by the std.", "own_advantage", "peer_advantage", "advantage_eps"),
    Difference("A response's token sum is divided by a constant, not by lengths.", "aggregation", "norm_tokens"),
    own_advantage=advantages.centred,
    peer_advantage=advantages.centred,
    aggregation=aggregation.seq_mean_token_sum_norm,
    norm_tokens=4096,
)

RL_ZVP = variant(
    GRPO,
    "rl_zvp",
    Difference(
        "All-fail and all-pass groups get entropy-shaped token advantages instead of 0.", "own_loss", "peer_loss", "zvp_alpha"
    ),
    own_loss=losses.entropy_shaped,
    peer_loss=losses.entropy_shaped,
    zvp_alpha=0.1,
)

NAIVE_SHARING = variant(
    GRPO,
    "naive_sharing",
    Difference("Two models train in one run on the same prompts.", "joint"),
    Difference(
        "Every peer response of every prompt joins the receiver's own, uncorrected.", "selection", "transfer", "admission"
    ),
    Difference("Advantages over the union of the groups.", "own_advantage", "peer_advantage"),
    Difference("A prompt's own and peer responses share its minibatch.", "order"),
    joint=True,
    selection=selection.every_prompt,
    transfer=transfer.add_group,
    admission=compatibility.admit_all,
    own_advantage=advantages.pooled,
    peer_advantage=advantages.pooled,
    order=schedule.in_place,
)

SGT = variant(
    GRPO,
    "sgt",
    Difference("Two models train in one run on the same prompts.", "joint"),
    Difference(
        "Where the receiver's group all failed and the peer has a success, one success, drawn uniformly, joins the receiver's group.",
        "selection",
        "transfer",
        "admission",
        "order",
    ),
    Difference(
        "It adds 0.1 times its negative log-likelihood, a token mean of its own beside the own tokens'.",
        "peer_loss",
        "nll_weight",
        "aggregation",
    ),
    joint=True,
    selection=selection.rescue,
    transfer=transfer.add_one_success,
    admission=compatibility.admit_all,
    order=schedule.in_place,
    peer_loss=losses.nll,
    aggregation=aggregation.token_means_apart,
    nll_weight=0.1,
)

HACPO = variant(
    GSPO,
    "hacpo",
    Difference(
        "Two models train in one run; each also learns from every response of its peer.", "joint", "selection", "transfer"
    ),
    Difference(
        "Advantages over all responses to a prompt, rewards and peers weighed by the models' capability (mean success of 5 steps).",
        "own_advantage",
        "peer_advantage",
        "capability",
        "capability_window",
        "capability_ratio_max",
    ),
    Difference(
        "Peer term: s against the source's mean log-prob, weighed by s^alpha, clipped to [0.8 + 0.025 m, 1] in minibatch m.",
        "peer_loss",
        "peer_lower",
        "peer_lower_step",
        "peer_alpha",
    ),
    Difference("No gate: every response is admitted with weight 1.", "admission"),
    Difference(
        "Own minibatches first, then the peer's; two of each per step (64 of the paper's 128 prompts).", "order", "minibatches"
    ),
    Difference("KL (k3, 1e-3) to the untouched base model on own tokens.", "own_loss", "kl_coef"),
    joint=True,
    selection=selection.every_prompt,
    transfer=transfer.add_group,
    own_advantage=advantages.joint_capability,
    peer_advantage=advantages.joint_capability,
    capability=advantages.windowed_mean,
    capability_window=5,
    capability_ratio_max=10,
    peer_loss=losses.stepwise_clip,
    peer_lower=0.8,
    peer_lower_step=0.025,
    peer_alpha=1,
    admission=compatibility.admit_all,
    order=schedule.source_blocks,
    minibatches=2,
    own_loss=losses.sequence_clip_kl,
    kl_coef=1e-3,
)

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
