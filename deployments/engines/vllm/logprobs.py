"""Translation of vLLM's log probabilities."""

from __future__ import annotations

from typing import Any

from penstock.models import PositionLogprobs, TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON and most clients cannot carry."""


def to_positions(token_ids: Any, logprobs: Any, alternatives: int) -> list[PositionLogprobs]:
    """Translate vLLM's two arrays, which have one row per new token.

    All rows of a step are as wide as the largest number of alternatives that one of its sequences needs.

    Args:
        token_ids: integers; the drawn token is first in its row, then the most likely ones in order.
        logprobs: natural logarithms, shaped like `token_ids`.
        alternatives: number of most likely tokens that this sequence asks for.
    """
    ids, values = token_ids[:, : 1 + alternatives].tolist(), logprobs[:, : 1 + alternatives].tolist()
    return [_position(*row) for row in zip(ids, values, strict=True)]


def _position(ids: list[int], values: list[float]) -> PositionLogprobs:
    drawn, *top = (TokenLogprob(token, max(value, FLOOR)) for token, value in zip(ids, values, strict=True))
    return PositionLogprobs(drawn, tuple(top))
