"""The place of an attempt: a replica, and the group whose outputs are comparable."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.queue.heartbeats import ReplicaRecord
from router.links.link import ReplicaLink


@dataclass(frozen=True, slots=True)
class Group:
    """Group of replicas whose outputs are comparable; empty strings where it is unknown."""

    group_id: str
    """Same weights, hardware, tensor parallel size and dtype."""
    model_digest: str
    tokenizer_digest: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Replica of an attempt, as the router knows it."""

    link: ReplicaLink
    group_id: str
    price_per_s: float
    """Price of the replica's accelerators, per second."""
    model_digest: str
    tokenizer_digest: str = ""
    """Digest of the tokenizer whose ids its engine reads; empty where it is unknown."""
    record: ReplicaRecord | None = None
    """Last record of the replica in the registry."""

    @property
    def group(self) -> Group:
        """Group of the replica."""
        return Group(self.group_id, self.model_digest, self.tokenizer_digest)
