"""Does a model fit, and what is left for its KV cache. Rounds against itself: what is close is too little."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.shapes import ModelShape

BASE_OVERHEAD = 1.1e9
"""CUDA context, NCCL, graphs and the allocator's waste, bytes per GPU."""
LEAST_OVERHEAD = 1.5e9
STARVED = 0.10
"""A KV cache below this part of the usable memory is too little to batch with."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Is the memory of one replica. Bytes are per GPU."""

    tensor_parallel: int
    usable: float
    weights: float
    overhead: float
    kv: float
    """Left for the KV cache; negative: so much is missing."""
    kv_tokens: int
    """Of the whole replica."""
    kv_bytes_per_token: float
    """On each GPU."""

    @property
    def fits(self) -> bool:
        """Whether it loads."""
        return self.kv_tokens > 0

    @property
    def short_by(self) -> float:
        """Bytes per GPU that are missing; 0 where it fits."""
        return max(0.0, -self.kv) if not self.fits else 0.0

    @property
    def starved(self) -> bool:
        """Whether it loads, but has hardly any room for sequences."""
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
        tensor_parallel: how many.
        precision: of the weights.
        kv_element_bytes: 2, or 1 for an fp8 cache.
        utilization: part of the memory that the engine may take.
        step_tokens: token budget of a step; default: vLLM's for the accelerator.
        block_tokens: the cache is counted in blocks of so many.
    """
    weights = weights_of(shape, precision).total_bytes / tensor_parallel
    tokens = step_tokens or gpu.step_limits[0]
    # Buffers of a full step: the residual stream on every rank, the feed-forward part split over them.
    activations = 2 * tokens * (2 * shape.hidden + 3 * shape.intermediate / tensor_parallel)
    overhead = max(LEAST_OVERHEAD, BASE_OVERHEAD + activations)
    usable = utilization * gpu.memory
    left = usable - weights - overhead
    each = shape.kv_bytes_per_rank(tensor_parallel, kv_element_bytes)
    blocks = int(max(0.0, left) // (each * block_tokens))
    return Sizing(tensor_parallel, usable, weights, overhead, left, blocks * block_tokens, each)
