"""One request of a recorded load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    number: int
    """Number in the order of arrival, from 0."""
    arrival_s: float
    """Seconds since the first arrival."""
    prompt_tokens: int
    """Prompt tokens, at least 1."""
    output_tokens: int
    """Output tokens, at least 1."""
    request_class: RequestClass | None = None
    """Class; None where the trace has none."""
    tenant: str = ""
    """Tenant; empty where the trace has none."""
    session: str = ""
    """Id shared by the requests of one conversation; empty where the trace has none."""
    block_ids: Sequence[int] = ()
    """One id per block of `block_tokens` prompt tokens. The last block may be partial.

    Prompts that begin alike begin with the same ids. Empty where the trace has none.
    """
    block_tokens: int = 0

    @property
    def full_blocks(self) -> Sequence[int]:
        """Ids of the blocks that the prompt fills."""
        return self.block_ids[: self.prompt_tokens // self.block_tokens] if self.block_tokens else ()

    def token_ids(self) -> list[int]:
        """Make up a prompt that shares its beginning as recorded in the trace."""
        ids: list[int] = []
        for block in self.block_ids:
            ids.extend([block] * self.block_tokens)
        del ids[self.prompt_tokens :]
        return ids
