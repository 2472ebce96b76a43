"""Settings of the parts of a cluster that are off by default."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.errors import SettingsError

KV_BYTES = 131_072
"""KV cache of a token in bytes: 32 layers, 8 KV heads of 128 values, keys and values in bfloat16."""

MOST_DRAFTED = 16
"""Longest draft, as in a pool's settings."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Memory below a replica's GPU that keeps KV blocks."""

    name: str
    tokens: int
    """Capacity."""
    gb_per_s: float
    """Bandwidth to the GPU, in 10^9 bytes per second."""
    latency_s: float = 0.0
    """Seconds of a load beside the bandwidth."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise SettingsError(f"{self.name}-cache must be at least 1 token, got {self.tokens}")
        if not self.gb_per_s > 0:
            raise SettingsError(f"{self.name}-cache must have a bandwidth above 0 GB/s, got {self.gb_per_s:g}")
        if not 0 <= self.latency_s < math.inf:
            raise SettingsError(f"{self.name}-cache must have a latency of at least 0 s, got {self.latency_s:g}")


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Beginnings that prompts share, for a trace that tells none."""

    tokens: int
    part: float = 1.0
    """Part of the prompts that are longer than this which begin so."""
    number: int = 1
    """Number of different beginnings, all equally frequent."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise SettingsError(f"shared-prefix must be at least 1 token, got {self.tokens}")
        if not 0 < self.part <= 1:
            raise SettingsError(f"shared-prefix must have a part above 0 of at most 1, got {self.part:g}")
        if self.number < 1:
            raise SettingsError(f"shared-prefix must have at least 1 beginning, got {self.number}")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding."""

    draft_tokens: int
    """Length of a draft."""
    acceptance: float
    """Probability that a draft token is accepted when all before it are."""
    draft_s: float = 0.0
    """Seconds of one pass of the draft model, which gives each sequence a draft token."""
    draft_per_sequence_s: float = 0.0
    verify_s: float | None = None
    """Seconds of one draft token in the model's step; None for those of any token."""

    def __post_init__(self) -> None:
        if not 1 <= self.draft_tokens <= MOST_DRAFTED:
            raise SettingsError(f"draft-tokens must be 1 to {MOST_DRAFTED}, got {self.draft_tokens}")
        if not 0 <= self.acceptance <= 1:
            raise SettingsError(f"acceptance must be 0 to 1, got {self.acceptance:g}")

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens that a step gives a sequence."""
        return sum(self.acceptance**place for place in range(self.draft_tokens + 1))


@dataclass(frozen=True, slots=True)
class Split:
    """Disaggregation of prefill and decode."""

    prefill_replicas: int
    decode_replicas: int
    gb_per_s: float
    """Bandwidth of each replica's network link, in 10^9 bytes per second."""
    latency_s: float = 0.0
    """Seconds of a transfer beside the bandwidth."""

    def __post_init__(self) -> None:
        for name in ("prefill_replicas", "decode_replicas"):
            if (count := getattr(self, name)) < 1:
                raise SettingsError(f"{name} must be at least 1, got {count}")
        if not self.gb_per_s > 0:
            raise SettingsError(f"kv-link must have a bandwidth above 0 GB/s, got {self.gb_per_s:g}")
        if not 0 <= self.latency_s < math.inf:
            raise SettingsError(f"kv-link must have a latency of at least 0 s, got {self.latency_s:g}")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a simulated cluster has besides. The default is nothing."""

    kv_bytes: int = KV_BYTES
    """Of a token, for transfers."""
    tiers: tuple[Tier, ...] = ()
    """Below the GPU, the fastest first."""
    shared: SharedPrefix | None = None
    """What the trace was given."""
    speculation: Speculation | None = None
    split: Split | None = None

    @property
    def prefixes(self) -> bool:
        """Whether the result tells where the beginnings of prompts were found."""
        return bool(self.tiers) or self.shared is not None

    @property
    def beside(self) -> int:
        """Number of replicas that are there beside those of the pool."""
        return 0 if self.split is None else self.split.prefill_replicas

    @property
    def any(self) -> bool:
        """Whether replicas differ from plain ones."""
        return self.prefixes or self.speculation is not None or self.split is not None
