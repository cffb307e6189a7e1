"""One model on verl: FSDP2 trains it, vLLM samples it, our loop and our losses drive both.

No trainer of verl takes part. An optimiser step is one call to all ranks, so the order of minibatches is the order of calls,
whatever the number of ranks. The exchange between models carries text, log-probs and rewards through the driver and nothing else.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from graft.losses import MinibatchLoss
from graft.policies.base import FromSettings, TokenPair, render
from graft.policies.sampling import sample_seed
from graft.policies.verl_policy.config import verl_config, verl_values
from graft.policies.verl_policy.rollout import Request, Rollout, Sampled
from graft.policies.verl_policy.session import Session, wait
from graft.policies.verl_policy.transport import scoring_batch, spread, summed, training_batch
from graft.retokenize import TextCodec
from graft.types import Group, Minibatch, OptimiserSettings, Prompt, Response, SamplingSettings, StepKey

START_TIMEOUT = 1800  # seconds; a model of some GB from a slow file system


class VerlPolicy(FromSettings):
    """See graft.policies.base.Policy. ``samples=False``: no sampler, for a frozen reference or a test of the update alone."""

    def __init__(
        self,
        name: str,
        path: Path,
        session: Session,
        optimiser: OptimiserSettings,
        *,
        prompt_suffix: str = "",
        samples: bool = True,
    ):
        self.name, self.path, self.session = name, path, session
        self.settings = session.settings
        self._codec = TextCodec.load(path, prompt_suffix=prompt_suffix)
        self._config = verl_config(verl_values(path, self.settings, optimiser, session.workers), self.settings.overrides)
        self._loss: MinibatchLoss | None = None
        self.stale = True
        self._syncs = 0
        with session.watched():
            self._workers = self._start_workers(samples)
            base = session.replica_base(name) if samples else 0
            self._rollout = Rollout(self._config, self._workers, session.pool(name), base) if samples else None
        if self.settings.sleep:
            self.sleep()  # where models take turns, each begins asleep
        session.policies.append(self)

    def _start_workers(self, samples: bool) -> Any:
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup

        from graft.policies.verl_policy.worker import PolicyWorker

        role = "actor_rollout" if samples else "actor"
        base = self.session.replica_base(self.name) if samples else 0
        built = RayClassWithInitArgs(
            cls=ray.remote(PolicyWorker), config=self._config.actor_rollout_ref, role=role, replica_base=base
        )
        group = RayWorkerGroup(
            resource_pool=self.session.pool(self.name), ray_cls_with_init=built, device_name=self._config.trainer.device
        )
        wait(group.execute_all_async("start"), START_TIMEOUT, f"loading {self.name}")
        return group

    @property
    def sampler_apart(self) -> bool:
        return True

    def actors(self) -> list[Any]:
        """The Ray actors of this model."""
        return [*self._workers.workers, *(self._rollout.actors if self._rollout else ())]

    def _call(self, method: str, *args: Any, seconds: float | None = None) -> list[Any]:
        """``method`` on all ranks; arguments that are lists with one entry per rank are dealt out."""
        with self.session.watched():
            refs = self._workers.execute_all_async(method, *args)
            return wait(refs, seconds or self.settings.train_timeout, f"{method} of {self.name}")

    # ---- sampling

    def generate(self, prompts: Seq[Prompt], *, n: int, key: StepKey, sampling: SamplingSettings) -> tuple[Group, ...]:
        """n responses per prompt. A sample is a function of weights, prompt, key and index, up to the rounding of the batch.

        Log-probs are those of the distribution drawn from: with ``top_p`` < 1 they are renormalised and differ from ``score``.
        """
        if self._rollout is None:
            raise ValueError(f"{self.name} was started without a sampler")
        self.session.enter(self, "sampling")
        rendered = [render(self.codec, p, self.settings.max_prompt_tokens, self.name) for p in prompts]
        requests = [
            # vLLM's seed is a signed number
            Request(f"{p.id}/{i}", ids, sample_seed(key, p.id, i) >> 1)
            for p, ids in zip(prompts, rendered, strict=True)
            for i in range(n)
        ]
        with self.session.watched():
            sampled = self._rollout.generate(requests, sampling, sorted(self.codec.eos_ids), self.settings.rollout_timeout)
        responses = [self._response(s) for s in sampled]
        return tuple(Group(p, self.name, rendered[i], tuple(responses[i * n : (i + 1) * n])) for i, p in enumerate(prompts))

    def _response(self, sampled: Sampled) -> Response:
        """verl calls every end "completed": the last token tells."""
        ids, logps = tuple(sampled[0]), tuple(sampled[1])
        return Response(ids, logps, self.codec.response_text(ids), "eos" if ids[-1] in self.codec.eos_ids else "length")

    def sleep(self) -> None:
        """Put the sampler to sleep; for the session, which knows whose turn it is."""
        if self._rollout is not None:
            with self.session.watched():
                self._rollout.sleep(self.settings.sync_timeout)

    def bring_weights(self) -> None:
        """Current weights to the sampler, which wakes; for the session. A stuck transfer is an EngineFailure."""
        self._syncs += 1
        with self.session.watched():
            refs = self._workers.update_weights(global_steps=self._syncs, mode="naive")
            what = f"bringing the weights of {self.name} to its sampler"
            wait(refs, self.settings.sync_timeout, what, servers=self._rollout.actors if self._rollout else ())
        self.stale = False

    def sync(self) -> None:
        """The sampler's weights are old. They are replaced when it is next used, so that it may sleep until then."""
        self.stale = True

    # ---- training

    def score(self, items: Seq[TokenPair]) -> list[tuple[float, ...]]:
        """Log-probs under the training weights, without gradient. [] for no items; ValueError on an empty response."""
        if any(not response for _, response in items):
            raise ValueError("an empty response has no log-probs to score")
        if not items:
            return []
        self.session.enter(self, "training")
        places = spread([len(p) + len(r) for p, r in items], self.session.workers, self._multiple)
        batches = [scoring_batch([None if i is None else items[i] for i in mine], self.settings) for mine in places]
        result: list[tuple[float, ...]] = [()] * len(items)
        for mine, rows in zip(places, self._call("score_rows", batches), strict=True):
            for i, row in zip(mine, rows, strict=True):
                if i is not None:
                    result[i] = tuple(row)
        return result

    @property
    def _multiple(self) -> int:
        """Rows of a rank come in multiples of this."""
        return 1 if self.settings.tokens_per_gpu is not None else self.settings.rows_per_gpu

    def update(self, minibatch: Minibatch, loss: MinibatchLoss) -> dict[str, float]:
        """One AdamW step on all ranks; see TorchPolicy.update, whose metrics these are.

        Rows that the loss declares to be exactly 0 are not sent. verl takes no step on a non-finite gradient norm.
        """
        self.session.enter(self, "training")
        if self._loss is None or self._loss is not loss:
            self._call("use_loss", loss)
            self._loss = loss
        rows = tuple(filter(loss.computes, minibatch.sequences))
        places = spread([len(s.prompt_ids) + len(s.response_ids) for s in rows], self.session.workers, self._multiple)
        batches = [
            training_batch([None if i is None else rows[i] for i in mine], minibatch, loss, self.settings) for mine in places
        ]
        metrics = self._call("train_rows", batches)[0]
        norm = float(metrics["grad_norm"])
        finite = math.isfinite(norm)
        peer = sum(len(s.response_ids) for s in minibatch.sequences if s.is_peer)
        counts = {
            "own_tokens": minibatch.tokens - peer,
            "peer_tokens": peer,
            "computed_sequences": len(rows),
            "sequences": len(minibatch.sequences),
        }
        return {
            "loss": float(metrics["loss"]),
            **summed(metrics),
            **counts,
            "grad_norm": norm if finite else 0.0,
            "nonfinite": float(not finite),
        }

    # ---- state

    def save(self, directory: Path) -> None:
        """A file of weights and one of moments per rank (safetensors); ``load`` needs as many GPUs."""
        self._call("save", str(directory.absolute()))

    def load(self, directory: Path) -> None:
        """Restore what ``save`` wrote, bit for bit."""
        found = len(list(directory.glob("weights.rank-*.safetensors")))
        if found != self.session.workers:
            raise ValueError(
                f"{directory} was saved on {found} GPUs and this run has {self.session.workers} for {self.name}; "
                "resume with the same policy.gpus and policy.layout"
            )
        self._call("load", str(directory.absolute()))
        self.stale = True

    def save_weights(self, directory: Path) -> None:
        """The model alone, as ``export``: what evaluation reads."""
        self.export(directory)

    def export(self, directory: Path) -> None:
        """A Hugging Face directory (weights in the sampler's precision, config, tokenizer)."""
        self._call("export", str(directory.absolute()), self.settings.precision)
        self.codec.tokenizer.save_pretrained(directory)
        if (generation := self.path / "generation_config.json").exists():
            shutil.copyfile(generation, directory / generation.name)

    def weights_sha256(self) -> str:
        """Hash of names, shapes and bytes of all parameters."""
        return str(self._call("sha256")[0])

    def memory(self) -> dict[str, int]:
        """Bytes over all GPUs of the model; the allocator's peak is that of the fullest GPU. {} once the session is broken."""
        if self.session.broken:
            return {}
        ranks = self._call("memory")
        return {k: (max if k == "gpu_peak" else sum)(r[k] for r in ranks) for k in ranks[0]}

    def close(self) -> None:
        """End the session once, with the first of its policies that is closed."""
        self.session.close()
