"""Settings of roll-outs."""

from __future__ import annotations

from pydantic import Field

from cluster.settings.section import Section


class RolloutSettings(Section):
    """Change of a pool's model or engine settings while it runs, one replica at a time (`penstock rollout`)."""

    surge: int = Field(default=0, ge=0, le=64)
    """Replicas that the pool may have beyond its number meanwhile. 0 needs no further GPU: each replica ends before its
    successor starts. Above 0 an active autoscaler must look after the pool."""
    judge_s: float = Field(default=30.0, ge=0, le=86_400)
    """Seconds for which a new replica must serve well before the next one changes. Up to five
    times as long where fewer than three of its requests have ended, failed or were late."""
    max_failed: float = Field(default=0.02, ge=0, le=1)
    """Part of a new replica's requests that may fail. Beyond it, and with three or more, the roll-out goes back."""
    max_late: float = Field(default=0.1, ge=0, le=1)
    """Part of a new replica's requests that may miss a latency target of the pool, beyond that of the old replicas.
    Times count from the request's arrival at the replica. Beyond it, and with three or more, the roll-out goes back."""
    attempts: int = Field(default=2, ge=1, le=100)
    """Replicas of the new revision that may fail to start, or die, before the roll-out goes back."""
    drain_s: float = Field(default=600.0, ge=0, le=86_400)
    """Seconds that a replica may take to finish its requests before it gives way. What runs then goes on at a replica
    with the same weights, and fails where there is none."""
