"""Conversion of resume records, which routers send to replicas."""

from __future__ import annotations

from cluster.models import ResumeRecord
from penstock.internal.v1 import replica_pb2


def resume_record_from_wire(record: replica_pb2.ResumeRecord) -> ResumeRecord:
    """Convert a record. Deltas that do not add up to the prior tokens and text are dropped."""
    prior = tuple(record.prior_token_ids)
    deltas = tuple(zip(record.delta_tokens, record.delta_characters, strict=False))
    if (sum(tokens for tokens, _ in deltas), sum(characters for _, characters in deltas)) != (
        len(prior),
        len(record.prior_text),
    ):
        deltas = ()
    text, files = record.prior_text, record.adapter_files
    return ResumeRecord(prior, record.prior_text_length, record.model_digest, text, deltas, files)
