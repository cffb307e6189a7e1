"""The methods that GRAFT is compared with: GRPO and what differs from it without being GRAFT. Entries of graft.methods.METHODS."""

from __future__ import annotations

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
