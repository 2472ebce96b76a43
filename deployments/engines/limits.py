"""The bounds of the live batch limits, shared by every engine."""

from __future__ import annotations

PREFILL_WINDOW_STEPS = 4


def clamp_sequences(wanted: int, largest: int) -> int:
    """Bound a batch limit by 1 and the size that the engine was started with."""
    return max(1, min(wanted, largest))


def clamp_tokens(wanted: int, *, sequences: int, tokens_per_sequence: int, largest: int) -> int:
    """Bound a step's token budget: below one step's tokens of every running sequence the last ones would starve."""
    return min(largest, max(wanted, sequences * tokens_per_sequence))


def prefill_window(token_budget: int) -> int:
    """Return how many prompt tokens may be outstanding at a replica whose engine does so many per step.

    A few steps' worth keeps the engine busy between two reports; more would be a queue inside the engine, which nobody
    orders. A longer prompt goes alone.
    """
    return PREFILL_WINDOW_STEPS * token_budget


def token_budget(window: int) -> int:
    """Return how many tokens an engine does per step whose prefill window this is."""
    return window // PREFILL_WINDOW_STEPS
