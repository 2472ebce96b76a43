"""One request of a recorded load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Is one request of a trace."""

    number: int
    """Counts from 0 in the order of arrival."""
    arrival_s: float
    """Since the first arrival."""
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """At least 1."""
    request_class: RequestClass | None = None
    """None where the trace does not say."""
    tenant: str = ""
    """Empty where the trace does not say."""
    session: str = ""
    """Requests of one conversation have the same; empty where the trace does not say."""
    block_ids: Sequence[int] = ()
    """One id per block of `block_tokens` prompt tokens, the last may be partial; prompts that begin alike begin with
    the same ids. Empty where the trace does not say."""
    block_tokens: int = 0

    @property
    def full_blocks(self) -> Sequence[int]:
        """The ids of the blocks that the prompt fills."""
        return self.block_ids[: self.prompt_tokens // self.block_tokens] if self.block_tokens else ()

    def token_ids(self) -> list[int]:
        """Make a prompt up whose beginnings are shared as the trace says."""
        ids: list[int] = []
        for block in self.block_ids:
            ids.extend([block] * self.block_tokens)
        del ids[self.prompt_tokens :]
        return ids
