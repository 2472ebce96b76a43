"""Bounds of the simulated engine's batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """Bounds of the batch."""

    sequences: int
    """Largest batch."""
    tokens: int
    """Largest token budget of a step."""
    kv_tokens: int
    block_size: int
    """Tokens per KV block."""
