"""The seeded recipe of the three stand-ins: tokenizer, random model of its own architecture, supervised warm start, bf16 weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from experiments.tiny.texts import Skills, examples, tokenizer_texts

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
STEPS, BATCH, WARM_UP, LEARNING_RATE = 1200, 64, 50, 2e-3
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 384,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}


@dataclass(frozen=True)
class Recipe:
    """One stand-in: how it cuts digits, how many tokens it knows, what it is, what it reads well."""

    name: str
    digits: str
    vocabulary: int
    build: Callable[[int], Any]
    skills: Skills


RECIPES = (
    Recipe(
        "tiny-smollm3",
        r"\p{N}{1,3}",
        500,
        lambda v: SmolLM3ForCausalLM(SmolLM3Config(vocab_size=v, **SHAPE)),
        Skills(frozenset({0, 1, 2, 3, 4, 5})),
    ),
    Recipe(
        "tiny-qwen3",
        r"\p{N}",
        380,
        lambda v: Qwen3ForCausalLM(Qwen3Config(vocab_size=v, head_dim=32, **SHAPE)),
        Skills(frozenset({6, 7, 8, 9, 10, 11})),
    ),
    Recipe(
        "tiny-llama",
        r" ?\p{N}{1,2}",
        500,
        lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, **SHAPE)),
        Skills(frozenset({2, 3, 4, 8, 9, 10})),
    ),
)


def build_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Byte-level BPE (every text survives a round trip), digits cut as the recipe says, <pad> = 0, <eos> = 1, no BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(recipe.digits), "isolated"),
            pre_tokenizers.Split(Regex(r" ?\p{L}+| ?[^\s\p{L}\p{N}]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tokenizer_texts(f"tokenizer/{recipe.name}", 4000), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = TEMPLATE
    return fast


def batches(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, steps: int) -> Any:
    """(ids [B, T], labels [B, T]) with loss on response tokens and EOS only; -100 elsewhere."""
    stream = examples(f"warm-start/{recipe.name}", recipe.skills)
    for _ in range(steps):
        rows = []
        for prompt, answer in islice(stream, BATCH):
            head = tokenizer.encode(prompt + "\n", add_special_tokens=False)
            tail = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
            rows.append((head + tail, [-100] * len(head) + tail))
        width = max(len(ids) for ids, _ in rows)
        yield (
            torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
            torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows]),
        )


def warm_start(recipe: Recipe, steps: int, say: Callable[[str], None]) -> tuple[Any, PreTrainedTokenizerFast]:
    """AdamW (0.9, 0.98), cosine with a linear warm-up, fp32, one thread: the same weights wherever the same kernels run."""
    torch.manual_seed(int.from_bytes(hashlib.sha256(recipe.name.encode()).digest()[:4], "little"))
    tokenizer = build_tokenizer(recipe)
    model = recipe.build(len(tokenizer))
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    for step, (ids, labels) in enumerate(batches(recipe, tokenizer, steps), 1):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(step / WARM_UP, 0.5 * (1 + math.cos(math.pi * step / steps)))
        logits = model(input_ids=ids).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == steps:
            say(f"{recipe.name} step {step}/{steps} loss {loss.item():.4f}")
    return model, tokenizer


def write(recipe: Recipe, out: Path, steps: int, say: Callable[[str], None]) -> Path:
    """Build one stand-in and save it as a Hugging Face directory with bf16 weights."""
    model, tokenizer = warm_start(recipe, steps, say)
    directory = out / recipe.name
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
