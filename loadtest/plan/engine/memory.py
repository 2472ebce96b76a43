"""Memory of a replica: whether a model fits, and the room for its KV cache. It rounds up needs and rounds down room."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.shapes import ModelShape

BASE_OVERHEAD = 1.1e9
"""CUDA context, NCCL, graphs and the allocator's waste, bytes per GPU."""
LEAST_OVERHEAD = 1.5e9
STARVED = 0.10
"""Part of the usable memory below which a KV cache is too small for batches."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Memory of one replica. Bytes are per GPU."""

    tensor_parallel: int
    usable: float
    weights: float
    overhead: float
    kv: float
    """Room for the KV cache. A negative value is missing memory."""
    kv_tokens: int
    """Tokens of the whole replica."""
    kv_bytes_per_token: float
    """Bytes on each GPU."""

    @property
    def fits(self) -> bool:
        """Whether the model loads."""
        return self.kv_tokens > 0

    @property
    def short_by(self) -> float:
        """Bytes per GPU that are missing; 0 where it fits."""
        return max(0.0, -self.kv) if not self.fits else 0.0

    @property
    def starved(self) -> bool:
        """Whether the model loads, but leaves hardly any room for sequences."""
        return self.fits and self.kv < STARVED * self.usable


def size(
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    *,
    kv_element_bytes: float = 2.0,
    utilization: float = 0.9,
    step_tokens: int | None = None,
    block_tokens: int = 16,
) -> Sizing:
    """Size one replica.

    Args:
        shape: the architecture.
        gpu: each of its accelerators.
        tensor_parallel: number of accelerators.
        precision: of the weights.
        kv_element_bytes: 2, or 1 for an fp8 cache.
        utilization: part of the memory that the engine may take.
        step_tokens: token budget of a step; None for vLLM's default for the accelerator.
        block_tokens: size of a block of the KV cache, tokens.
    """
    weights = weights_of(shape, precision).total_bytes / tensor_parallel
    tokens = step_tokens or gpu.step_limits[0]
    # Buffers of a full step: the residual stream on every rank, and the feed-forward part split over the ranks.
    activations = 2 * tokens * (2 * shape.hidden + 3 * shape.intermediate / tensor_parallel)
    overhead = max(LEAST_OVERHEAD, BASE_OVERHEAD + activations)
    usable = utilization * gpu.memory
    left = usable - weights - overhead
    each = shape.kv_bytes_per_rank(tensor_parallel, kv_element_bytes)
    blocks = int(max(0.0, left) // (each * block_tokens))
    return Sizing(tensor_parallel, usable, weights, overhead, left, blocks * block_tokens, each)
