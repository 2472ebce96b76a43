"""A recorded load of conversations, with the beginnings that prompts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.traces import TraceRequest, read_trace
from loadtest.traces.formats import MOONCAKE_BLOCK_TOKENS as BLOCK_TOKENS

__all__ = ["BLOCK_TOKENS", "TraceRequest", "ideal_hit_rate", "load_trace"]


def load_trace(path: Path, requests: int, longest: int) -> list[TraceRequest]:
    """Read the first requests that fit into a context of `longest` tokens, in the order of their arrival."""
    found = [each for each in read_trace(path) if each.prompt_tokens + each.output_tokens < longest]
    return [replace(each, number=number) for number, each in enumerate(found[:requests])]


def ideal_hit_rate(trace: Sequence[TraceRequest]) -> float:
    """Return the part of all prompt tokens that one endless cache would know. No placement can do better."""
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
