"""Makes verl run on a machine without accelerators. Test code: nothing of it is needed, or imported, on GPUs.

verl loads it in every process (VERL_USE_EXTERNAL_MODULES). It registers a platform in verl's own registry and replaces one function
of verl, the one that builds the process group: its backend string names the CPU twice there, which torch refuses.
"""

import contextlib
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
import verl.utils.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def nothing(*_: Any, **__: Any) -> None:
    """A device call that has no meaning on a CPU."""


def zero(*_: Any, **__: Any) -> int:
    """The size of what a CPU does not have."""
    return 0


DEVICE = SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in ("current_stream", "device_count", "is_available", "stream", "Stream")},
    **{name: nothing for name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all")},
    **{name: nothing for name in ("reset_peak_memory_stats", "set_per_process_memory_fraction")},
    **{name: zero for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")},
    Event=getattr(torch.cpu, "Event", None),
    current_device=lambda: "cpu",
    get_device_name=lambda *_: "CPU",
    mem_get_info=lambda *_: (1 << 30, 1 << 30),
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "GRAFT_CPU_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def ray_resource_name(self) -> str:
        """Placement groups know GPUs only: the session is started with as many logical ones."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Without it verl sends weights to vLLM through shared memory."""
        return False

    def cudart(self) -> None:
        return None


def join_group(timeout_second: int | None = None, backend: str | None = None) -> None:
    """The process group of a model's workers, over gloo."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            backend="gloo",
            rank=int(os.environ.get("RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
            timeout=timedelta(seconds=timeout_second) if timeout_second else None,
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )


verl.utils.distributed.initialize_global_process_group_ray = join_group
