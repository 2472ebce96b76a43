"""Translation of vLLM's log probabilities."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from cluster.models import PromptLogprobs
from penstock.models import PositionLogprobs, TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity and NaN, which JSON and most clients cannot carry."""


def to_positions(token_ids: Any, logprobs: Any, ranks: Any, alternatives: int) -> list[PositionLogprobs]:
    """Translate vLLM's arrays, which have one row per new token.

    All rows of a step are as wide as the largest number of alternatives that one of its sequences needs.

    Args:
        token_ids: integers; the drawn token is first in its row, then the most likely ones in order.
        logprobs: natural logarithms, shaped like `token_ids`.
        ranks: rank of each drawn token among all tokens, from 1.
        alternatives: number of most likely tokens that this sequence asks for.
    """
    ids, values = token_ids[:, : 1 + alternatives].tolist(), logprobs[:, : 1 + alternatives].tolist()
    return [_position(*row) for row in zip(ids, values, ranks.tolist(), strict=True)]


def _position(ids: list[int], values: list[float], rank: int) -> PositionLogprobs:
    # Not `max`: NaN, of a model whose numbers overflow, becomes the floor too.
    drawn, *top = (
        TokenLogprob(token, value if value > FLOOR else FLOOR) for token, value in zip(ids, values, strict=True)
    )
    return PositionLogprobs(drawn, tuple(top), rank)


def to_prompt(tensors: Any, rows: int) -> PromptLogprobs:
    """Translate the log probabilities of a prompt.

    Args:
        tensors: vLLM's LogprobsTensors, with a row for each token but the first.
        rows: number of rows to keep. A resumed sequence has more: its earlier output is the end of vLLM's prompt.
    """
    ids, values, ranks = (np.asarray(part)[:rows] for part in tensors[:3])
    # NaN becomes the floor too.
    known = np.where(values > FLOOR, np.minimum(values, 0.0), FLOOR)
    return PromptLogprobs(
        width=ids.shape[1],
        token_ids=array("I", ids.astype(np.uint32).tobytes()),
        logprobs=array("f", known.astype(np.float32).tobytes()),
        ranks=array("I", ranks.astype(np.uint32).tobytes()),
    )
