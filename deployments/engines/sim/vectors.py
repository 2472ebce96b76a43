"""Vectors without a model. They depend only on the tokens; texts that share tokens have similar vectors."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from functools import lru_cache

from cluster.errors import EngineRequestError
from cluster.models import PoolingSpec
from penstock.models import ModelTask, PoolingFeatures


def sim_features(task: ModelTask, size: int) -> PoolingFeatures:
    """Describe what a simulated engine gives."""
    match task:
        case ModelTask.EMBED:
            return PoolingFeatures(size, shorter_vectors=True)
        case ModelTask.CLASSIFY:
            return PoolingFeatures(size, labels=tuple(f"LABEL_{number}" for number in range(size)))
        case _:
            return PoolingFeatures()


def sim_vector(prompt: Sequence[int], pooling: PoolingSpec, features: PoolingFeatures) -> bytes:
    """Make up the vector of an input: float32 numbers, the lowest byte first.

    Raises:
        EngineRequestError: more dimensions are asked for than there are.
    """
    size = pooling.dimensions or features.size
    if size > features.size:
        raise EngineRequestError(f"dimensions must be at most {features.size}, got {size}")
    sums = [math.fsum(column) for column in zip(*(_of_token(token, size) for token in prompt), strict=True)]
    if pooling.activation is not False:
        sums = _unit(sums) if pooling.task is ModelTask.EMBED else _probabilities(sums)
    return struct.pack(f"<{size}f", *sums)


def _unit(numbers: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]


def _probabilities(numbers: list[float]) -> list[float]:
    if len(numbers) == 1:
        return [1.0 / (1.0 + math.exp(-numbers[0]))]
    largest = max(numbers)
    powers = [math.exp(number - largest) for number in numbers]
    return [power / math.fsum(powers) for power in powers]


@lru_cache(maxsize=65_536)
def _of_token(token: int, size: int) -> tuple[float, ...]:
    drawn = hashlib.shake_128(token.to_bytes(8, "little")).digest(2 * size)
    return tuple(number / 32_768 for number in struct.unpack(f"<{size}h", drawn))
