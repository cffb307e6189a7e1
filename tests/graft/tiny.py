"""Two tiny random Hugging Face models whose ByteLevel BPE tokenizers differ in merges, ids and special tokens, and builders of
groups, sequences and loss inputs for hand-worked tests."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

from graft.losses import LossInputs
from graft.policies.torch_policy import TorchPolicy, TorchSettings
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, OptimiserSettings, Prompt, Response, Sequence

KINDS = ("quick", "small")
VOCAB = 320
LIMIT = 24
OPTIMISER = OptimiserSettings(learning_rate=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, max_grad_norm=1.0)


def tokenizer(kind: str, *, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """ "quick": few merges, specials first. "small": more merges of other words, other special tokens in the other order."""
    pad, eos, words = (
        ("<pad>", "<eos>", "Ben has 8 cards. The answer is 12.")
        if kind == "quick"
        else ("<|pad|>", "<|end|>", "There are seven apples and thirteen oranges; \\frac{1}{2} of the answers")
    )
    t = Tokenizer(models.BPE())
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    specials = [pad, eos] if kind == "quick" else [eos, "<|user|>", pad]
    size = 300 if kind == "quick" else VOCAB
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        [words] * 5, trainers.BpeTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    )
    tok = PreTrainedTokenizerFast(tokenizer_object=t, eos_token=eos, pad_token=pad)
    if kind == "small":
        tok.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
        tok.chat_template = "<|user|>{{messages[0]['content']}}{{'\\n'}}"
    else:
        tok.chat_template = "{{messages[0]['content']}}{{'\\n'}}"
    return tok


def codec(kind: str, **kwargs: Any) -> TextCodec:
    tok = tokenizer(kind, **kwargs)
    return TextCodec(tok, frozenset({tok.eos_token_id}))


def lossy_codec() -> TextCodec:
    """A tokenizer whose normaliser changes text (lower case), so that decode(encode(x)) != x."""
    return codec("small", normalizer=normalizers.Lowercase())


def build(kind: str, path: Path, *, head: int = 8, spread: float = 0.2, vocabulary: int | None = VOCAB) -> Path:
    """Write a model directory. Weights are large enough that distributions are far from uniform and EOS is often drawn.

    ``head``: size of one of the four attention heads; ``spread``: standard deviation of the weights; ``vocabulary`` None: as many
    ids as the tokenizer has.
    """
    tok = tokenizer(kind)
    common: dict[str, Any] = {
        "vocab_size": vocabulary or len(tok), "hidden_size": 4 * head, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 256, "initializer_range": spread, "bos_token_id": None,
        "eos_token_id": tok.eos_token_id, "pad_token_id": tok.pad_token_id,
    }  # fmt: skip
    torch.manual_seed(KINDS.index(kind))
    if kind == "quick":
        model: Any = Qwen3ForCausalLM(Qwen3Config(head_dim=head, tie_word_embeddings=True, **common))
    else:
        model = SmolLM3ForCausalLM(SmolLM3Config(tie_word_embeddings=False, **common))
    with torch.no_grad():
        model.lm_head.weight[tok.eos_token_id] *= 3.0
    model.save_pretrained(path)
    tok.save_pretrained(path)
    return path


def policy(path: Path, name: str = "a", *, optimiser: OptimiserSettings = OPTIMISER, **settings: Any) -> TorchPolicy:
    return TorchPolicy(name, path, TorchSettings(max_prompt_tokens=64, max_response_tokens=LIMIT, **settings), optimiser)


def prompts(count: int) -> list[Prompt]:
    """Prompts of different lengths."""
    return [Prompt(f"p{i}", f"Ben has {i} cards{'!' * (3 * i)}", "12") for i in range(count)]


def response(text: str = "x", reward: float | None = 0.0, *, ids: Seq[int] = (65, 66), logprobs: Seq[float] | None = None,
             finish: str = "length") -> Response:  # fmt: skip
    values = tuple(logprobs) if logprobs is not None else (-1.0,) * len(ids)
    return Response(tuple(ids), values, text, finish, reward)  # type: ignore[arg-type]


def group(prompt_id: str, model: str, rewards: Seq[float | None]) -> Group:
    return Group(Prompt(prompt_id, "q", "1"), model, (1, 2), tuple(response(f"r{i}", r) for i, r in enumerate(rewards)))


def sequence(ids: Seq[int], old: Seq[float], advantage: float, *, weight: float = 1.0, source: str = "a", receiver: str = "a",
             prompt: Seq[int] = (70, 71, 72)) -> Sequence:  # fmt: skip
    return Sequence("p", source, receiver, tuple(prompt), tuple(ids), tuple(old), advantage, weight, -1.0)


def mixed_minibatch(policy: TorchPolicy, *, drift: float = 0.1) -> Minibatch:
    """Eight sequences of lengths 1..8 on three prompts: own and peer, both signs of the advantage, two with advantage 0.

    Old log-probs are off the current ones by +-``drift`` so that ratios differ from 1 on every token.
    """
    pairs = [((80, 81, 82 + i % 3) * (1 + i % 3), tuple(40 + (7 * i + 3 * j) % 200 for j in range(i + 1))) for i in range(8)]
    advantages = (1.5, -0.5, 0.0, 2.0, -1.0, 0.7, 0.0, -0.3)
    sequences = []
    for i, ((prompt, ids), logps, a) in enumerate(zip(pairs, policy.score(pairs), advantages, strict=True)):
        old = [x + drift * (1 if (i + j) % 2 else -1) for j, x in enumerate(logps)]
        peer = {"weight": 0.85, "source": "b"} if i % 2 else {}
        sequences.append(sequence(ids, old, a, prompt=prompt, receiver="a", **peer))  # type: ignore[arg-type]
    return Minibatch(0, tuple(sequences))


def inputs(logprobs: Seq[Seq[float]] | torch.Tensor, old: Seq[Seq[float]], advantages: Seq[float], *,
           weights: Seq[float] | None = None, peer: Seq[bool] | None = None,
           mask: Seq[Seq[float]] | None = None) -> LossInputs:  # fmt: skip
    """Loss inputs in float64, so that hand arithmetic is compared without float32 noise."""
    logp = logprobs if isinstance(logprobs, torch.Tensor) else torch.tensor(logprobs, dtype=torch.float64)
    rows = logp.shape[0]
    return LossInputs(
        logprobs=logp,
        old_logprobs=torch.tensor(old, dtype=logp.dtype),
        mask=torch.ones_like(logp) if mask is None else torch.tensor(mask, dtype=logp.dtype),
        advantages=torch.tensor(advantages, dtype=logp.dtype),
        weights=torch.tensor(weights or [1.0] * rows, dtype=logp.dtype),
        is_peer=torch.tensor(peer or [False] * rows),
        source_mean=torch.zeros(rows, dtype=logp.dtype),
    )


def gradients(policy: TorchPolicy, minibatch: Minibatch, loss: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Gradients of one update and its metrics; the optimiser's step is held back, so the weights stay as they are."""
    kept = policy._optimiser.step
    policy._optimiser.step = lambda *args, **kwargs: None  # type: ignore[method-assign]
    clip, policy._clip_norm = policy._clip_norm, 1e9
    try:
        metrics = policy.update(minibatch, loss)
    finally:
        policy._optimiser.step, policy._clip_norm = kept, clip  # type: ignore[method-assign]
    return {k: p.grad.clone() for k, p in policy.model.named_parameters() if p.grad is not None}, metrics
