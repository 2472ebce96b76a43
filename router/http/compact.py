"""JSON as streams write it: compact, and made once per kind of text where a token's share counts."""

from __future__ import annotations

import json
from collections.abc import Iterable

# `json.dumps` with these options would make an encoder for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
NULL = "null"


def compact(value: object) -> str:
    """Return a value as JSON without spaces."""
    return _ENCODER.encode(value)


def numbers(values: Iterable[int]) -> str:
    """Return a list of integers as JSON."""
    return f"[{','.join(map(str, values))}]"


def running_usage(prompt_tokens: int, output_tokens: int) -> str:
    """Return the usage so far as a field that follows others."""
    total = prompt_tokens + output_tokens
    return f',"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":{output_tokens},"total_tokens":{total}}}'
