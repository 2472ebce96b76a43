"""Announced load: what tenants say they will send."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from penstock.v1 import announced_pb2
from penstock.wire import moment_from_wire


@dataclass(frozen=True, slots=True)
class AnnouncedLoad:
    """Load that a tenant says it will send to a pool."""

    id: str
    pool: str
    tenant: str
    start: datetime.datetime
    """UTC, like the end."""
    end: datetime.datetime
    requests_per_second: float | None
    """None where tokens are announced."""
    tokens_per_second: float | None
    """Tokens of prompts and outputs together; None where requests are announced."""
    prompt_tokens: int
    """Mean prompt of a request; 0 where it is not known."""
    output_tokens: int
    """Mean output of a request; 0 where it is not known."""
    counts_for: float
    """Part of the rate that counts, 0 to 1: what the tenant's quota lets through."""

    @classmethod
    def from_proto(cls, found: announced_pb2.AnnouncedLoad) -> AnnouncedLoad:
        return cls(
            id=found.id,
            pool=found.pool,
            tenant=found.tenant,
            start=moment_from_wire(found.starts_at_ms),
            end=moment_from_wire(found.ends_at_ms),
            requests_per_second=found.requests_per_second if found.HasField("requests_per_second") else None,
            tokens_per_second=found.tokens_per_second if found.HasField("tokens_per_second") else None,
            prompt_tokens=found.prompt_tokens,
            output_tokens=found.output_tokens,
            counts_for=found.counts_for,
        )
