"""Memory of a replica: whether a model fits, and the room for its KV cache. It rounds up needs and rounds down room."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.shapes import ModelShape

BASE_OVERHEAD = 1.1e9
"""CUDA context, NCCL, graphs and the allocator's waste, bytes per GPU."""
LEAST_OVERHEAD = 1.5e9
TOWER_OVERHEAD = 1.0e9
"""Room for the images of a profile run, where a model has an encoder of images or sound, bytes per GPU."""
NO_CACHE = 1 << 30
"""Tokens of a model that keeps none of them."""
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
    length: float | None = None,
    sequences: int = 64,
    stages: int = 1,
    groups: int = 1,
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
        length: tokens of a mean sequence, which says how much layers with a window keep; None counts them in full.
        sequences: number of sequences whose fixed states must have room, where layers have such states.
        stages: of a pipeline; each has a part of the layers, and a batch of its own.
        groups: with attention of their own; they share the experts. The result is of one group.
    """
    parts = weights_of(shape, precision)
    dense = parts.total_bytes - parts.expert_bytes + parts.vocabulary_bytes
    rest = (dense + 2.0 * shape.tower) / (tensor_parallel * stages)
    weights = rest + parts.expert_bytes / (tensor_parallel * stages * groups)
    tokens = step_tokens or gpu.step_limits[0]
    # Buffers of a full step: the residual stream on every rank, and the feed-forward part split over the ranks.
    activations = 2 * tokens * (2 * shape.hidden + 3 * shape.intermediate / tensor_parallel)
    overhead = max(LEAST_OVERHEAD, BASE_OVERHEAD + activations) + (TOWER_OVERHEAD if shape.tower else 0.0)
    if shape.recurrent is not None:
        overhead += sequences * shape.recurrent.state_bytes / tensor_parallel
    usable = utilization * gpu.memory
    left = usable - weights - overhead
    each = shape.kv_bytes_per_rank(tensor_parallel, kv_element_bytes, length)
    if not each:
        # Without a cache the steps' budget alone bounds the texts.
        return Sizing(tensor_parallel, usable, weights, overhead, left, NO_CACHE if left > 0 else 0, 0.0)
    # A stage keeps its own layers' part of every batch's tokens, and as many batches share that room.
    blocks = int(max(0.0, left) // (each * block_tokens))
    return Sizing(tensor_parallel, usable, weights, overhead, left, blocks * block_tokens, each)
