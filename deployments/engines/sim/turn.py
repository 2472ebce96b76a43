"""Work of one step, with the names of all its sequences or of those that changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StepResult:
    """Work of one step."""

    scheduled: tuple[str, ...]
    """Sequences in the step."""
    admitted: tuple[str, ...]
    """Sequences of the step that were waiting before."""
    produced: tuple[str, ...]
    """Sequences of the step that get a token. The others continue their prefill."""
    preempted: tuple[str, ...]
    """Sequences that lost their KV entries and wait again."""
    tokens: int
    """Tokens computed."""
    kv_tokens: int
    """Context tokens read."""


class Turn(NamedTuple):
    """Work of one step, without the names of the sequences that only decode."""

    decoded: int
    """Number of sequences that decoded before and get a token."""
    filled: tuple[str, ...]
    """Sequences with a part of their prefill in the step."""
    admitted: tuple[str, ...]
    """Sequences of `filled` that were waiting before."""
    prefilled: tuple[str, ...]
    """Sequences of `filled` whose prefill ends; they get a token."""
    preempted: tuple[str, ...]
    """Sequences that lost their KV entries and wait again."""
    starved: tuple[str, ...]
    """Decoding sequences that get no token, because the largest budget is smaller than the batch."""
    tokens: int
    """Tokens computed."""
    kv_tokens: int
    """Context tokens read."""


class Parts(NamedTuple):
    """Steps that are alike: all sequences decode, and a long prompt gets as many tokens in each."""

    turns: int
    share: int
    """Tokens of the prompt in each step."""
    computed: int
    """Tokens of the prompt that are computed before the first step."""


NO_PARTS = Parts(0, 0, 0)
