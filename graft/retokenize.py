"""Peer text -> receiver tokens, under the peer text contract.

Own samples never pass through here: they keep their generated ids. For a peer response the sender's ids and log-probs stay with
the sender's mean; one terminal EOS was stripped before decoding; the text is encoded without special tokens and the receiver's
EOS is appended exactly if the sender stopped by EOS. A text that cannot be carried over unchanged is refused with a reason.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from graft.types import Prompt, Response

REASONS = ("empty", "replacement character", "special token", "not lossless", "over length")


class SenderLike(Protocol):
    """What a receiver must know of the sender's tokenizer."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def special_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True)
class Sender:
    """A tokenizer that is not there itself (that of a log's model): see SenderLike."""

    fingerprint: str
    special_ids: frozenset[int]


@dataclass(frozen=True)
class TextCodec:
    """One model's tokenizer as this project uses it. ``tokenizer`` is any fast Hugging Face tokenizer."""

    tokenizer: Any
    eos_ids: frozenset[int]
    prompt_suffix: str = ""
    _prompts: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, path: Path, *, prompt_suffix: str = "") -> TextCodec:
        """Tokenizer and EOS ids of a model directory. The EOS set is the tokenizer's with generation_config's (may be a list)."""
        from transformers import AutoTokenizer, GenerationConfig

        tokenizer = AutoTokenizer.from_pretrained(path)
        eos = {tokenizer.eos_token_id}
        if (Path(path) / "generation_config.json").exists():
            extra = GenerationConfig.from_pretrained(path).eos_token_id
            eos |= set(extra) if isinstance(extra, list) else {extra}
        eos.discard(None)
        if tokenizer.eos_token_id is None:
            raise ValueError(f"{path}: the tokenizer has no EOS token; set eos_token in its tokenizer_config.json")
        return cls(tokenizer, frozenset(eos), prompt_suffix)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give equal ids for every text (hash of the serialised fast tokenizer)."""
        return hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        # Named special tokens are not all: Llama's header or Qwen's vision tokens are special only in the added vocabulary.
        added = (i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special)
        return frozenset(self.tokenizer.all_special_ids) | frozenset(added) | self.eos_ids

    @property
    def eos_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render(self, prompt: Prompt) -> tuple[int, ...]:
        """Prompt ids: one user message plus the suffix through the model's own chat template; plain text if it has none."""
        if prompt.message not in self._prompts:
            message = prompt.message + self.prompt_suffix
            if self.tokenizer.chat_template:
                text = self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
                )
            else:
                text = message + "\n"
            self._prompts[prompt.message] = self.encode(text)
        return self._prompts[prompt.message]

    def response_text(self, ids: tuple[int, ...]) -> str:
        """Decoded response without its one terminal EOS; special tokens sampled inside the text stay visible in it."""
        return self.decode(ids[:-1] if ids and ids[-1] in self.eos_ids else ids)


@dataclass(frozen=True, slots=True)
class Retokenized:
    """Receiver ids, or None with one of REASONS."""

    ids: tuple[int, ...] | None
    reason: str = "ok"


def retokenize(response: Response, sender: SenderLike | None, receiver: TextCodec, *, max_tokens: int) -> Retokenized:
    """Ids of a peer ``response`` for the ``receiver``.

    With a shared tokenizer the sender's ids come back unchanged. ``sender`` is None when only the text is known (logs that do not
    describe their tokenizer); a response may then have no ids.
    A response that re-encodes to more than ``max_tokens`` (EOS included) is refused, not cut: a cut text would be compared with
    a sender's mean over more text.
    """
    body = response.ids[:-1] if response.finish_reason == "eos" else response.ids
    if not response.text or (response.ids and not body):
        return Retokenized(None, "empty")
    if sender is not None and body and sender.fingerprint == receiver.fingerprint:
        if receiver.special_ids.intersection(body):
            return Retokenized(None, "special token")
        # Models that share a tokenizer may stop at different tokens (base and chat): the receiver must see one of its own.
        foreign_eos = response.finish_reason == "eos" and response.ids[-1] not in receiver.eos_ids
        ids = (*body, receiver.eos_id) if foreign_eos else response.ids
        return Retokenized(ids) if len(ids) <= max_tokens else Retokenized(None, "over length")
    if "�" in response.text:
        return Retokenized(None, "replacement character")
    if sender is not None and sender.special_ids.intersection(body):
        return Retokenized(None, "special token")
    ids = receiver.encode(response.text)
    if receiver.special_ids.intersection(ids):
        return Retokenized(None, "special token")
    if receiver.decode(ids) != response.text:
        return Retokenized(None, "not lossless")
    if response.finish_reason == "eos":
        ids = (*ids, receiver.eos_id)
    return Retokenized(ids) if len(ids) <= max_tokens else Retokenized(None, "over length")
