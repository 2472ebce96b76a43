"""Translates vLLM's log probabilities."""

from __future__ import annotations

from typing import Any

from penstock.models import PositionLogprobs, TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON and most clients cannot carry."""


def to_positions(token_ids: Any, logprobs: Any, alternatives: int) -> list[PositionLogprobs]:
    """Translate vLLM's two arrays, one row per new token. The rows of a step are as wide as the sequence that asks for
    the most needs them.

    Args:
        token_ids: integers; the drawn token is first in its row, then the most likely ones in order.
        logprobs: natural logarithms, shaped like `token_ids`.
        alternatives: how many of the most likely ones this sequence asks for.
    """
    ids, values = token_ids[:, : 1 + alternatives].tolist(), logprobs[:, : 1 + alternatives].tolist()
    return [_position(*row) for row in zip(ids, values, strict=True)]


def _position(ids: list[int], values: list[float]) -> PositionLogprobs:
    drawn, *top = (TokenLogprob(token, max(value, FLOOR)) for token, value in zip(ids, values, strict=True))
    return PositionLogprobs(drawn, tuple(top))
