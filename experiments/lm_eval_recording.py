"""What lm-eval's back ends say while they generate and lm-eval itself does not keep: where a response ended, its length, its seed."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from experiments.evaluation import Sample
from graft.policies.sampling import sample_seed
from graft.retokenize import TextCodec
from graft.types import StepKey


class Recorder:
    """Takes the place of a back end's cache hook, which is told every finished request, in the order of generation.

    ``pending``: what the back end said of responses whose text is not known yet. Equal (request, text) pairs are interchangeable.
    """

    dbdict = None

    def __init__(self) -> None:
        self.pending: deque[tuple[int, str, int]] = deque()
        self.filed: dict[tuple[str, str], deque[tuple[int, str, int]]] = defaultdict(deque)
        self.seeds: Iterator[int] = iter(())

    def start(self, benchmark: str, seed: int, *, per_request: bool) -> None:
        """Before one (benchmark, run). ``per_request``: the back end takes a seed for every request, else one for all."""
        key = StepKey(seed, f"lm-eval/{benchmark}", 0)
        # 63 bits: vLLM takes a signed number.
        self.seeds = (sample_seed(key, "request", i) >> 1 if per_request else seed for i in count())
        self.pending.clear()
        self.filed.clear()

    def add_partial(self, _: str, request: Sequence[Any], text: str) -> None:
        self.filed[request[0], text].append(self.pending.popleft())

    def take(self, context: str, text: str) -> Sample:
        """The sample that has this text."""
        tokens, finish_reason, seed = self.filed[context, text].popleft()
        return Sample(text, seed, finish_reason, tokens)


class Recording:
    """Mixed into a back end of lm-eval. ``recorder`` and ``codec`` are set after construction."""

    recorder: Recorder
    codec: TextCodec

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Without a bar where nobody looks at it: in a log it is one line a batch."""
        return super().generate_until(requests, disable_tqdm=disable_tqdm or not sys.stderr.isatty())  # type: ignore[misc]


class HfRecording(Recording):
    """Mixed into lm-eval's HFLM."""

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        """Text of one generated row up to its first EOS, as the torch policy decodes it: special tokens inside stay visible.

        lm-eval keeps what a batch's longer rows let a finished row go on with, unless the EOS is one that it knows.
        """
        if not (isinstance(tokens, list) and skip_special_tokens):
            return super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)  # type: ignore[misc]
        ends = [i for i, token in enumerate(tokens) if token in self.codec.eos_ids]
        kept = tokens[: ends[0] + 1] if ends else tokens
        self.recorder.pending.append((len(kept), "eos" if ends else "length", next(self.recorder.seeds)))
        return self.codec.response_text(tuple(kept))


class VllmRecording(Recording):
    """Mixed into lm-eval's VLLM."""

    def _model_generate(self, requests: Any, generate: bool = False, sampling_params: Any = None) -> Any:
        """Every request gets a seed of its own: with one seed for all, the samples of an item would be one and the same."""
        for params in sampling_params:
            params.seed = next(self.recorder.seeds)
        outputs = super()._model_generate(requests, generate=generate, sampling_params=sampling_params)  # type: ignore[misc]
        for output, params in zip(outputs, sampling_params, strict=True):
            best = output.outputs[0]
            reason = "length" if best.finish_reason == "length" else "eos"
            self.recorder.pending.append((len(best.token_ids), reason, params.seed))
        return outputs
