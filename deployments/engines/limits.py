"""The bounds of the live batch limits, shared by every engine."""

from __future__ import annotations


def clamp_sequences(wanted: int, largest: int) -> int:
    """Bound a batch limit by 1 and the size that the engine was started with."""
    return max(1, min(wanted, largest))


def clamp_tokens(wanted: int, *, sequences: int, tokens_per_sequence: int, largest: int) -> int:
    """Bound a step's token budget: below one step's tokens of every running sequence the last ones would starve."""
    return min(largest, max(wanted, sequences * tokens_per_sequence))
