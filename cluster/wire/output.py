"""Converts what comes out of engines: log probabilities and resume records."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.v1 import replica_pb2, types_pb2

from cluster.models import PositionLogprobs, ResumeRecord, TokenLogprob

LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON and several client languages cannot carry, and for what is not known."""


def logprobs_to_wire(position: PositionLogprobs) -> types_pb2.PositionLogprobs:
    """Convert one position. Values are brought into [LOGPROB_FLOOR, 0]: rounding can leave an engine above 0."""
    return types_pb2.PositionLogprobs(chosen=_token_to_wire(position.chosen), top=map(_token_to_wire, position.top))


def logprobs_from_wire(position: types_pb2.PositionLogprobs) -> PositionLogprobs:
    """Convert one position."""
    return PositionLogprobs(
        chosen=TokenLogprob(position.chosen.token_id, position.chosen.logprob),
        top=_tokens_from_wire(position.top),
    )


def resume_record_to_wire(record: ResumeRecord) -> replica_pb2.ResumeRecord:
    """Convert a record."""
    return replica_pb2.ResumeRecord(
        prior_token_ids=record.prior_token_ids,
        prior_text_length=record.prior_text_length,
        model_digest=record.model_digest,
        prior_text=record.prior_text,
        delta_tokens=[tokens for tokens, _ in record.prior_deltas],
        delta_characters=[characters for _, characters in record.prior_deltas],
    )


def resume_record_from_wire(record: replica_pb2.ResumeRecord) -> ResumeRecord:
    """Convert a record."""
    prior = tuple(record.prior_token_ids)
    deltas = tuple(zip(record.delta_tokens, record.delta_characters, strict=False))
    if (sum(tokens for tokens, _ in deltas), sum(characters for _, characters in deltas)) != (
        len(prior),
        len(record.prior_text),
    ):
        deltas = ()
    return ResumeRecord(prior, record.prior_text_length, record.model_digest, record.prior_text, deltas)


def _token_to_wire(token: TokenLogprob) -> types_pb2.TokenLogprob:
    # Written so that NaN, which compares false with everything, becomes the floor.
    logprob = min(token.logprob, 0.0) if token.logprob > LOGPROB_FLOOR else LOGPROB_FLOOR
    return types_pb2.TokenLogprob(token_id=token.token_id, logprob=logprob)


def _tokens_from_wire(tokens: Iterable[types_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token.token_id, token.logprob) for token in tokens)
