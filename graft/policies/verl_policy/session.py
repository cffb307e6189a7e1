"""One Ray session for all models of a run: where they stand, whose turn the memory is, and how everything ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.policies.base import EngineFailure
from graft.policies.verl_policy.settings import VerlSettings
from graft.policies.verl_policy.turns import Phase, Turns

if TYPE_CHECKING:
    from graft.policies.verl_policy.policy import VerlPolicy

GLANCE = 5  # seconds between two looks at servers while something waits for them
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Session:
    """The models ``names`` of one run. Ray is started here and stopped by ``close``; a cluster that is there already is not joined.

    ``workers``: GPUs (logical ones on a CPU) of each model. Two sessions in one process are an error of Ray's own.
    """

    def __init__(self, names: Seq[str], settings: VerlSettings):
        self.names, self.settings = tuple(names), settings
        self.workers = settings.gpus_of_a_model(len(names))
        self.policies: list[VerlPolicy] = []
        self._pools: dict[str, Any] = {}
        self._turns = Turns(sleep=settings.sleep, shared=settings.layout == "colocated")
        self.broken = False
        # Sockets that bring weights are named by the number of the server, for all jobs of a machine.
        self._first_replica = 16 * secrets.randbelow(1 << 20)
        # Ray's sockets stand here: a path of at most 107 bytes, which a job's own folder for temporary files may exceed.
        self.folder = tempfile.mkdtemp(prefix="graft-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)
        self._start_ray()

    def _start_ray(self) -> None:
        import ray
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        per_gpu, cpus = self.places_per_gpu(), len(os.sched_getaffinity(0))
        logical = {"num_gpus": self.settings.gpus} if self.settings.device == "cpu" else {}
        quiet_environment()
        with signals_kept_from_children():
            started = ray.init(
                address="local",
                # Placement groups count a CPU for each worker; the number says nothing about threads.
                num_cpus=max(cpus, self.settings.gpus * per_gpu + 8),
                include_dashboard=False,
                log_to_driver=bool(os.environ.get("GRAFT_VERL_LOGS")),
                object_store_memory=object_store_bytes(),
                _temp_dir=self.folder,
                runtime_env=get_ppo_ray_runtime_env(),
                **logical,
            )
        self.logs = Path(started.address_info["session_dir"]) / "logs"
        there = int(ray.cluster_resources().get("GPU", 0))
        if there < self.settings.gpus:
            self.close()
            raise ValueError(
                f"policy.gpus={self.settings.gpus}, but this process sees {there} GPUs; ask for fewer, or for more of the job"
            )

    def places_per_gpu(self) -> int:
        """Workers that may stand on one GPU: each model's, and each one's frozen reference. A power of 2, whose share Ray counts exactly."""
        models = len(self.names) if self.settings.layout == "colocated" else 1
        return int(1 << (2 * models - 1).bit_length())

    def pool(self, name: str) -> Any:
        """The resource pool of a model: one for all where they are colocated."""
        from verl.single_controller.ray import RayResourcePool

        key = "all" if self.settings.layout == "colocated" else name
        if key not in self._pools:
            self._pools[key] = RayResourcePool(
                [self.workers], use_gpu=True, max_colocate_count=self.places_per_gpu(), name_prefix=f"graft-{len(self._pools)}-"
            )
        return self._pools[key]

    def replica_base(self, name: str) -> int:
        """Number of the model's first sampler; every model has ``workers / tensor_parallel`` of them."""
        return self._first_replica + self.names.index(name) * (self.workers // self.settings.tensor_parallel)

    def enter(self, policy: VerlPolicy, phase: Phase) -> None:
        """Give ``policy`` the memory of its GPUs for a phase."""
        self._turns.enter(policy, phase)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note that the session is broken when an engine fails: its workers may never answer again, so nothing more is asked.

        What the workers said last goes to stderr: their own logs are Ray's and lie on the node.
        """
        try:
            yield
        except EngineFailure:
            self.broken = True
            for line in last_words(self.logs):
                print(line, file=sys.stderr)
            raise
        except Exception:
            # The code's own error on one of several ranks: the others wait for it in a collective.
            self.broken = self.broken or self.workers > 1
            raise

    def close(self) -> None:
        """End every process of the session. Ray's logs stay where something failed."""
        import ray

        for policy in self.policies:
            for actor in policy.actors():
                with contextlib.suppress(Exception):
                    ray.kill(actor)
        self.policies.clear()
        ray.shutdown()
        if not self.broken:
            shutil.rmtree(self.folder, ignore_errors=True)


def wait(refs: Seq[Any], seconds: float, what: str, servers: Seq[Any] = ()) -> list[Any]:
    """Results of Ray calls. EngineFailure when one fails or they take longer than ``seconds``; ``what`` names the phase.

    ``servers``: vLLM servers that the calls wait for without noticing their death.
    """
    import ray

    end = time.monotonic() + seconds
    pending: list[Any] = list(refs)
    errors: list[Exception] = []
    while pending and not errors:
        done, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, min(GLANCE, end - time.monotonic())))
        errors += failed(done)
        if pending and not errors and time.monotonic() >= end:
            raise stuck(what, seconds)
        if not done and servers:
            errors += dead(servers)
    if errors:
        if pending:  # a rank that dies takes the others' collectives with it: what they say of it may come first
            errors += failed(ray.wait(pending, num_returns=len(pending), timeout=GLANCE)[0])
        first = next((e for e in errors if not isinstance(e, ray.exceptions.RayTaskError)), errors[0])
        raise failure(first, what) from first
    return list(ray.get(list(refs)))


def failed(done: Seq[Any]) -> list[Exception]:
    """The errors among finished calls."""
    import ray

    errors: list[Exception] = []
    for ref in done:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as e:
            errors.append(e)
    return errors


def dead(servers: Seq[Any]) -> list[Exception]:
    """The error of a server that is gone, or whose engine is; [] while all live or one is too busy to say."""
    import ray

    try:
        states = ray.get([s.__ray_call__.remote(lambda server: bool(server.engine.errored)) for s in servers], timeout=GLANCE)
    except ray.exceptions.GetTimeoutError:
        return []
    except ray.exceptions.RayError as e:
        return [e]
    return [EngineFailure("a sampler's engine died")] if any(states) else []


def stuck(what: str, seconds: float) -> EngineFailure:
    """The error of a phase that took longer than it may."""
    return EngineFailure(f"{what} took longer than {seconds:g} seconds and counts as stuck")


# What a worker's own exception says when the machine is to blame: vLLM's engine or a GPU is gone, or its memory does not suffice.
MACHINE = {
    "EngineDeadError": "",
    "OutOfMemoryError": "; see python -m experiments.estimate, policy.tokens_per_gpu, policy.offload",
    "CUDA out of memory": "; see python -m experiments.estimate, policy.tokens_per_gpu, policy.offload",
    "No available memory for the cache blocks": "; raise policy.memory_utilization",
    "Free memory on device": "; raise policy.memory_utilization, or end what else is on the GPUs",
    "Engine core initialization failed": "; its own words stand above",
    "CUDA error": "",
    "NCCL": "",
    "DistBackendError": "",
    "Connection closed by peer": "",
    "Connection reset": "",
}


def failure(error: Exception, what: str) -> Exception:
    """A Ray error of phase ``what`` as EngineFailure where a process, a node or a GPU failed; code's own errors as they are."""
    import ray

    if isinstance(error, EngineFailure):
        return EngineFailure(f"{what}: {error}")
    if not isinstance(error, ray.exceptions.RayTaskError):
        return EngineFailure(f"{what}: {explain(error)}")
    hint = next((hint for sign, hint in MACHINE.items() if sign in str(error)), None)
    return error if hint is None else EngineFailure(f"{what}: {explain(error)}{hint}")


def explain(error: BaseException) -> str:
    """The last telling line of a Ray error, whose text begins with pages of trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "died" in line or "memory" in line]
    return (telling or lines or [type(error).__name__])[-1]


def last_words(logs: Path, count: int = 10) -> list[str]:
    """The last ``count`` different lines about errors in the workers' logs, newest file last; [] without logs."""
    files = sorted((f for f in logs.glob("worker-*") if f.suffix in (".out", ".err")), key=lambda f: f.stat().st_mtime)
    said = [line.strip() for f in files for line in f.read_text(errors="replace").splitlines() if "Error" in line]
    return list(dict.fromkeys(said))[-count:]


@contextlib.contextmanager
def signals_kept_from_children() -> Iterator[None]:
    """Processes started within do not get SIGNALS, and this one's own handlers stay: Ray installs a SIGTERM handler of its own.

    A scheduler signals every process of a job; workers must outlive the warning, so that the run can save itself. (Python's resource
    tracker lets SIGTERM and SIGINT through again where vLLM or Ray use it; SIGUSR2 stays away.)
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # ValueError: not the main thread, where Ray leaves them alone, too; TypeError: a handler that is not Python's
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def quiet_environment() -> None:
    """Variables that Ray and vLLM read when they start; those that are set stay."""
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def object_store_bytes() -> int:
    """Ray's share of shared memory: what a minibatch needs, not Ray's default of 30 % of the machine."""
    stat = os.statvfs("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    return max(80_000_000, min(8 << 30, stat.f_bavail * stat.f_frsize // 4))
