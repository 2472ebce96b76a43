"""A recorded conversation load: which prompts share which beginnings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512
"""Tokens that one id of the trace stands for."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Is one request of the trace."""

    number: int
    session: str
    """The trace has no sessions. Every prompt begins with the same block, so those with the same second one are taken
    as one session."""
    prompt_tokens: int
    output_tokens: int
    block_ids: Sequence[int]
    """One id per block of BLOCK_TOKENS, the last may be partial."""

    def token_ids(self) -> list[int]:
        """Make a prompt up whose beginnings are shared as the trace says."""
        ids: list[int] = []
        for block in self.block_ids:
            ids.extend([block] * BLOCK_TOKENS)
        del ids[self.prompt_tokens :]
        return ids


def load_trace(path: Path, requests: int, longest: int) -> list[TraceRequest]:
    """Read the first requests that fit into a context of `longest` tokens, in the order of their arrival."""
    found: list[TraceRequest] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if len(found) == requests:
                break
            fields = json.loads(line)
            prompt, output = int(fields["input_length"]), max(1, int(fields["output_length"]))
            if prompt + output < longest:
                blocks = fields["hash_ids"]
                found.append(TraceRequest(len(found), f"s{blocks[:2][-1]}", prompt, output, blocks))
    return found


def ideal_hit_rate(trace: Sequence[TraceRequest]) -> float:
    """Return the part of all prompt tokens that one endless cache would know: no placement can do better."""
    seen: set[int] = set()
    cached = total = 0
    for request in trace:
        full = request.block_ids[: (request.prompt_tokens - 1) // BLOCK_TOKENS]
        for block in full:
            if block not in seen:
                break
            cached += BLOCK_TOKENS
        total += request.prompt_tokens
        seen.update(full)
    return cached / total if total else 0.0
