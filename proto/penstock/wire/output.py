"""Conversion of log probabilities."""

from __future__ import annotations

from penstock.models import PositionLogprobs, TokenLogprob
from penstock.v1 import types_pb2

LOGPROB_FLOOR = -9999.0
"""Log probability that stands for minus infinity, which JSON and several client languages cannot carry, and for a value
that is not known."""


def logprobs_to_wire(position: PositionLogprobs) -> types_pb2.PositionLogprobs:
    """Convert one position. Values are clamped to [LOGPROB_FLOOR, 0]: rounding can bring an engine above 0."""
    return types_pb2.PositionLogprobs(
        chosen=_token_to_wire(position.chosen), top=map(_token_to_wire, position.top), rank=position.rank
    )


def logprobs_from_wire(position: types_pb2.PositionLogprobs) -> PositionLogprobs:
    return PositionLogprobs(
        chosen=_token_from_wire(position.chosen), top=tuple(map(_token_from_wire, position.top)), rank=position.rank
    )


def _token_to_wire(token: TokenLogprob) -> types_pb2.TokenLogprob:
    # Written so that NaN, which compares false with everything, becomes the floor.
    logprob = min(token.logprob, 0.0) if token.logprob > LOGPROB_FLOOR else LOGPROB_FLOOR
    return types_pb2.TokenLogprob(token_id=token.token_id, logprob=logprob, token_bytes=token.token_bytes)


def _token_from_wire(token: types_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token.token_id, token.logprob, token.token_bytes)
