"""Any Hugging Face causal LM on a CPU or one GPU: the executable specification of a policy.

What is equal is computed once: a prompt's KV cache serves all responses to it (the gradient flows through the cache), responses
are decoded as a forest of prefixes, and equal responses to one prompt share a row in scoring and training. Prompts are padded on
the left, responses on the right.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from graft.aggregation import Totals
from graft.losses import MinibatchLoss
from graft.policies.base import FromSettings, TokenPair, render
from graft.policies.rows import by_length, loss_inputs, token_pairs
from graft.policies.sampling import draw, uniforms
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, OptimiserSettings, Prompt, Response, SamplingSettings, StepKey


@dataclass(frozen=True)
class TorchSettings:
    """Limits and precision. ``temperature`` is the training temperature of ``score`` and ``update``.

    float32 keeps everything in fp32; bfloat16 runs forward passes under autocast over fp32 master weights (as verl does).
    ``decode_rows`` and ``train_rows`` bound memory and change no result beyond float rounding.
    """

    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float = 1.0
    precision: str = "float32"
    decode_rows: int = 512
    train_rows: int = 128
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision {self.precision!r} is not known; use float32 or bfloat16")


class TorchPolicy(FromSettings):
    """See graft.policies.base.Policy."""

    def __init__(self, name: str, path: Path, settings: TorchSettings, optimiser: OptimiserSettings, *, prompt_suffix: str = ""):
        self.name = name
        self.settings = settings
        self._codec = TextCodec.load(path, prompt_suffix=prompt_suffix)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        # eval: no dropout, so that rollout and training see one distribution
        self.model.to(torch.device(settings.device)).eval()  # type: ignore[arg-type]
        # transformers renamed the argument; both names must work for the versions that the engines pin.
        forward = inspect.signature(type(self.model).forward).parameters
        self._cache_name = "cache" if "cache" in forward else "past_key_values"
        self._clip_norm = optimiser.max_grad_norm
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimiser.learning_rate,
            betas=(optimiser.beta1, optimiser.beta2),
            eps=optimiser.eps,
            weight_decay=optimiser.weight_decay,
        )

    @property
    def sampler_apart(self) -> bool:
        return False

    def _autocast(self) -> AbstractContextManager[object]:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.settings.device.split(":")[0], dtype=torch.bfloat16)
        return nullcontext()

    # ---- sampling

    def generate(self, prompts: Seq[Prompt], *, n: int, key: StepKey, sampling: SamplingSettings) -> tuple[Group, ...]:
        """n responses per prompt, at most ``sampling.max_response_tokens`` each; PolicyLimitError on an over-long prompt."""
        per_chunk = max(1, self.settings.decode_rows // n)
        groups: list[Group] = []
        with torch.inference_mode(), self._autocast():
            for start in range(0, len(prompts), per_chunk):
                groups += self._generate_chunk(prompts[start : start + per_chunk], n, key, sampling)
        return tuple(groups)

    def _generate_chunk(self, prompts: Seq[Prompt], n: int, key: StepKey, sampling: SamplingSettings) -> list[Group]:
        rendered = [render(self.codec, p, self.settings.max_prompt_tokens, self.name) for p in prompts]
        draws = torch.from_numpy(uniforms(key, prompts, n, sampling.max_response_tokens)).to(self.settings.device)
        logits, cache, mask, lengths = self._prefill(rendered)
        ids, logps, ends = self._decode(logits, cache, mask, lengths, draws, sampling)
        responses = [
            self._response(ids[row, : ends[row]].tolist(), logps[row, : ends[row]].tolist()) for row in range(len(prompts) * n)
        ]
        return [Group(p, self.name, rendered[i], tuple(responses[i * n : (i + 1) * n])) for i, p in enumerate(prompts)]

    def _decode(
        self, logits: Tensor, cache: DynamicCache, mask: Tensor, position: Tensor, draws: Tensor, sampling: SamplingSettings
    ) -> tuple[Tensor, Tensor, list[int]]:
        """The token loop over a forest of prefixes.

        ``logits``, ``cache``, ``mask``, ``position`` hold one entry per node, at first one per prompt. Responses that agree so far
        share a node, so a common prefix is computed once; each draws with its own random numbers, so sharing changes no sample.
        """
        rows, steps = draws.shape
        device, vocabulary = logits.device, logits.shape[-1]
        out_ids = torch.zeros(rows, steps, dtype=torch.long, device=device)
        out_logps = torch.zeros(rows, steps, dtype=torch.float64, device=device)
        ends = torch.full((rows,), steps, dtype=torch.long, device=device)
        eos = torch.tensor(sorted(self.codec.eos_ids), device=device)
        active = torch.arange(rows, device=device)
        node = active // (rows // len(logits))
        for t in range(steps):
            ids, logps = draw(logits, draws[active, t], sampling, node)
            out_ids[active, t], out_logps[active, t] = ids, logps.double()
            finished = torch.isin(ids, eos)
            ends[active[finished]] = t + 1
            active, branch = active[~finished], (node * vocabulary + ids)[~finished]
            if t + 1 == steps or len(active) == 0:
                break
            branches, node = torch.unique(branch, return_inverse=True)
            parent, token = branches // vocabulary, branches % vocabulary
            if not torch.equal(parent, torch.arange(len(mask), device=device)):
                cache.batch_select_indices(parent)
                mask, position = mask[parent], position[parent]
            mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=mask.dtype, device=device)], 1)
            logits = self._forward(token[:, None], mask, position[:, None], cache)[:, -1]
            position = position + 1
        return out_ids.cpu(), out_logps.cpu(), ends.tolist()

    def _response(self, ids: list[int], logps: list[float]) -> Response:
        stopped = bool(ids) and ids[-1] in self.codec.eos_ids
        return Response(tuple(ids), tuple(logps), self.codec.response_text(tuple(ids)), "eos" if stopped else "length")

    # ---- forward passes

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{self._cache_name: cache})
        return out.logits

    def _prefill(self, prompts: Seq[tuple[int, ...]]) -> tuple[Tensor, DynamicCache, Tensor, Tensor]:
        """Left-padded forward of distinct prompts: (last logits [G,V], cache, mask [G,P], lengths [G])."""
        width = max(map(len, prompts))
        device = self.settings.device
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        return out.logits[:, -1], cache, mask, mask.sum(1)

    def _token_logprobs(self, items: Seq[TokenPair], *, entropies: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """(log-probs [B,T], mask [B,T], detached token entropies [B,T] if asked for) of right-padded responses.

        Equal prompts, and equal pairs, are computed once.
        """
        pairs = {pair: i for i, pair in enumerate(dict.fromkeys(items))}
        prompts = {p: i for i, p in enumerate(dict.fromkeys(p for p, _ in pairs))}
        row = torch.tensor([pairs[i] for i in items], device=self.settings.device)
        owner = torch.tensor([prompts[p] for p, _ in pairs], device=self.settings.device)
        last, cache, prompt_mask, lengths = self._prefill(list(prompts))
        cache.batch_select_indices(owner)
        width = max(len(r) for _, r in pairs)
        ids = torch.tensor([list(r) + [0] * (width - len(r)) for _, r in pairs], device=self.settings.device)
        mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for _, r in pairs], device=self.settings.device)
        logits = last[owner][:, None]
        if width > 1:
            positions = lengths[owner][:, None] + torch.arange(width - 1, device=ids.device)[None]
            full = torch.cat([prompt_mask[owner], mask[:, :-1]], 1)
            logits = torch.cat([logits, self._forward(ids[:, :-1], full, positions, cache)], 1)
        logp = torch.log_softmax(logits.float() / self.settings.temperature, dim=-1)
        entropy = -(logp.detach().exp() * logp.detach()).sum(-1)[row] if entropies else None
        return logp.gather(-1, ids[..., None]).squeeze(-1)[row], mask[row], entropy

    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]:
        """Log-probs of each response's ids, without gradient. [] for no items; ValueError on an empty response."""
        if any(not response for _, response in items):
            raise ValueError("an empty response has no log-probs to score")
        order = sorted(range(len(items)), key=lambda i: (len(items[i][1]), items[i]))
        result: list[tuple[float, ...]] = [()] * len(items)
        with torch.inference_mode(), self._autocast():
            for start in range(0, len(order), self.settings.train_rows):
                part = order[start : start + self.settings.train_rows]
                logps, _, _ = self._token_logprobs([items[i] for i in part])
                for row, i in enumerate(part):
                    result[i] = tuple(logps[row, : len(items[i][1])].double().tolist())
        return result

    # ---- training

    def update(self, minibatch: Minibatch, loss: MinibatchLoss) -> dict[str, float]:
        """One AdamW step. Denominators are the minibatch's, so ``train_rows`` never changes the gradient.

        Rows that the loss declares to be exactly 0 are not computed. A non-finite gradient takes no step and
        is reported as ``nonfinite = 1``.
        """
        totals = Totals.of(minibatch)
        rows = tuple(filter(loss.computes, minibatch.sequences))
        self._optimiser.zero_grad(set_to_none=False)
        sums: dict[str, float] = {"loss": 0.0}
        for part in by_length(rows, self.settings.train_rows):
            with self._autocast():
                logps, mask, entropies = self._token_logprobs(token_pairs(part), entropies=loss.needs_entropies)
            value, metrics = loss(loss_inputs(part, logps, mask, minibatch.index, entropies), totals)
            value.backward()
            sums["loss"] += float(value.detach())
            for name, x in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(x)
        for p in self.model.parameters():  # an all-zero minibatch still is an optimiser step: momentum and decay act
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm))
        finite = math.isfinite(norm)
        if finite:
            self._optimiser.step()
        own, peer = totals.tokens - totals.peer_tokens, totals.peer_tokens
        counts = {"own_tokens": own, "peer_tokens": peer, "computed_sequences": len(rows), "sequences": totals.sequences}
        return {**sums, **counts, "grad_norm": norm if finite else 0.0, "nonfinite": float(not finite)}

    def sync(self) -> None:
        """The sampler reads the trained weights themselves: nothing to do."""

    # ---- state

    def save(self, directory: Path) -> None:
        """``weights.safetensors`` and ``optimiser.safetensors`` in an existing directory."""
        self.save_weights(directory)
        names: dict[Tensor, str] = {p: k for k, p in self.model.named_parameters()}
        state = {f"{names[p]}/{k}": v.contiguous() for p, s in self._optimiser.state.items() for k, v in s.items()}
        save_file(state, directory / "optimiser.safetensors")

    def save_weights(self, directory: Path) -> None:
        """``weights.safetensors``."""
        save_file({k: p.detach().contiguous() for k, p in self.model.named_parameters()}, directory / "weights.safetensors")

    def load(self, directory: Path) -> None:
        """Restore what ``save`` wrote, bit for bit. ``optimiser.safetensors`` may be absent (evaluation only)."""
        weights = load_file(directory / "weights.safetensors")
        with torch.no_grad():
            for k, p in self.model.named_parameters():
                p.copy_(weights[k])
        if (directory / "optimiser.safetensors").exists():
            state = load_file(directory / "optimiser.safetensors")
            self._optimiser.state.clear()  # a checkpoint from before the first update has no moments
            for k, p in self.model.named_parameters():
                mine = {name.rpartition("/")[2]: v for name, v in state.items() if name.rpartition("/")[0] == k}
                if mine:
                    # AdamW keeps its step counter on the CPU and its moments beside the weights.
                    self._optimiser.state[p] = {n: v if n == "step" else v.to(p.device) for n, v in mine.items()}

    def weights_sha256(self) -> str:
        """Hash of names, shapes and bytes of all parameters."""
        digest = hashlib.sha256()
        for k, p in sorted(self.model.named_parameters()):
            digest.update(f"{k}{tuple(p.shape)}".encode())
            digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def export(self, directory: Path) -> None:
        """A Hugging Face directory (weights, config, tokenizer) for any other tool."""
        self.model.save_pretrained(directory)
        self.codec.tokenizer.save_pretrained(directory)

    def memory(self) -> dict[str, int]:
        """Bytes of the weights and of the optimiser's state; on a GPU also the allocator's peak, whoever allocated."""
        held = {
            "weights": sum(p.nbytes for p in self.model.parameters()),
            "optimiser": sum(v.nbytes for s in self._optimiser.state.values() for v in s.values()),
        }
        on_gpu = torch.device(self.settings.device).type == "cuda"
        return held | ({"gpu_peak": torch.cuda.max_memory_allocated(self.settings.device)} if on_gpu else {})

    def close(self) -> None:
        """Release the model's memory."""
        del self.model, self._optimiser
