"""Announced load as the API has it."""

from __future__ import annotations

from cluster.announced.load import AnnouncedLoad
from penstock.v1 import announced_pb2 as api


def load_to_wire(name: str, load: AnnouncedLoad, counts_for: float) -> api.AnnouncedLoad:
    """Convert an announcement.

    Args:
        name: of the pool or alias.
        load: the announcement.
        counts_for: the part of it that counts.
    """
    wire = api.AnnouncedLoad(
        id=load.id,
        pool=name,
        tenant=load.tenant,
        starts_at_ms=load.starts_ms,
        ends_at_ms=load.ends_ms,
        prompt_tokens=round(load.prompt_tokens),
        output_tokens=round(load.output_tokens),
        counts_for=counts_for,
    )
    if load.tokens:
        wire.tokens_per_second = load.tokens
    else:
        wire.requests_per_second = load.requests
    return wire
