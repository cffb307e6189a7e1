"""A model's vLLM servers: started beside its workers, asked for responses with a seed each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from graft.policies.base import EngineFailure
from graft.policies.verl_policy.session import failure, stuck
from graft.types import SamplingSettings

# Requests of one model under way at once; the servers queue what exceeds their own limit.
IN_FLIGHT = 4096
START_TIMEOUT = 1800  # seconds; vLLM compiles and captures graphs when it starts


@dataclass(frozen=True)
class Request:
    """One response to sample. ``id`` keeps the samples of a prompt apart; ``seed`` decides the sample, with prompt and weights."""

    id: str
    prompt_ids: tuple[int, ...]
    seed: int


Sampled = tuple[list[int], list[float]]


def servers_class(replica_base: int) -> Any:
    """verl's server manager whose servers are numbered from ``replica_base``: their names are one namespace per Ray job."""
    from verl.workers.rollout.llm_server import LLMServerManager
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

    class Replica(vLLMReplica):
        async def init_hybrid(self, worker_group: Any) -> None:
            """The stock method takes the workers by the replica's number, which here does not begin at 0."""
            self.rollout_mode = RolloutMode.HYBRID
            first = self.world_size * (self.replica_rank - replica_base)
            self.workers = worker_group.workers[first : first + self.world_size]
            await self.launch_servers()

    return type("Servers", (LLMServerManager,), {"rollout_replica_class": Replica})


class Rollout:
    """The servers of one model. Public calls of verl only, apart from the replica's numbering."""

    def __init__(self, config: Any, workers: Any, pool: Any, replica_base: int):
        servers = servers_class(replica_base)

        async def started() -> Any:
            """All servers, up."""
            given = {"worker_group": workers, "rollout_resource_pool": pool, "start_rank": replica_base}
            return await asyncio.wait_for(servers.create(config=config, **given), START_TIMEOUT)

        self._manager = run(started(), "starting the sampler", START_TIMEOUT)
        self._client = self._manager.get_client()

    @property
    def actors(self) -> list[Any]:
        """The Ray actors of the servers."""
        return [server for replica in self._manager.get_replicas() for server in replica.servers]

    def sleep(self, seconds: float) -> None:
        """Give the GPU memory of weights and cache back."""
        replicas = self._manager.get_replicas()

        async def all_asleep() -> None:
            """Every replica at once."""
            await asyncio.wait_for(asyncio.gather(*[r.sleep() for r in replicas]), seconds)

        run(all_asleep(), "putting the sampler to sleep", seconds)

    def generate(self, requests: Seq[Request], sampling: SamplingSettings, eos: Seq[int], seconds: float) -> list[Sampled]:
        """(ids, log-probs) of every request, in order; log-probs are those of the distribution that was drawn from.

        EngineFailure when a server dies, drops a request, or all of them take longer than ``seconds``.
        """
        params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1,
            "max_tokens": sampling.max_response_tokens,
            "logprobs": True,
            "stop_token_ids": sorted(eos),
        }

        async def all_sampled() -> list[Sampled]:
            """Every request, IN_FLIGHT at a time."""
            gate = asyncio.Semaphore(IN_FLIGHT)

            async def one(request: Request) -> Sampled:
                """One response."""
                async with gate:
                    given = {"prompt_ids": list(request.prompt_ids), "sampling_params": params | {"seed": request.seed}}
                    output = await self._client.generate(request.id, **given)
                if output.stop_reason == "aborted" or not output.token_ids:
                    raise EngineFailure(f"sampling: the server dropped request {request.id} ({output.stop_reason})")
                return list(output.token_ids), [float(x) for x in output.log_probs]

            return await asyncio.wait_for(asyncio.gather(*[one(r) for r in requests]), seconds)

        return run(all_sampled(), f"sampling {len(requests)} responses", seconds)


def run(work: Any, what: str, seconds: float) -> Any:
    """The result of a coroutine; what goes wrong with the servers is an EngineFailure that says ``what`` was going on."""
    import ray

    try:
        return asyncio.run(work)
    except TimeoutError:
        raise stuck(what, seconds) from None
    except ray.exceptions.RayError as e:
        raise failure(e, what) from e
