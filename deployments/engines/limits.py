"""The bounds of the live batch limits, shared by every engine."""

from __future__ import annotations

PREFILL_WINDOW_STEPS = 4
"""Size of the prefill window in token budgets: large enough for full steps, small enough for an early first token."""


def clamp_sequences(wanted: int, largest: int) -> int:
    """Bound a batch limit by 1 and the size that the engine was started with."""
    return max(1, min(wanted, largest))


def clamp_tokens(wanted: int, *, sequences: int, tokens_per_sequence: int, largest: int) -> int:
    """Bound a step's token budget. Each running sequence needs room for its tokens of one step, or the last ones
    starve.
    """
    return min(largest, max(wanted, sequences * tokens_per_sequence))


def prefill_window(token_budget: int) -> int:
    """Return how many prompt tokens may be outstanding at a replica, from its engine's token budget per step.

    A few steps of work keep the engine busy between two reports. More would form a queue inside the engine, where the
    router cannot order it. A longer prompt goes alone.
    """
    return PREFILL_WINDOW_STEPS * token_budget


def token_budget(window: int) -> int:
    """Return the token budget per step that belongs to this prefill window."""
    return window // PREFILL_WINDOW_STEPS
