"""Where attempts run."""

from __future__ import annotations

from dataclasses import dataclass

from router.links.link import ReplicaLink


@dataclass(frozen=True, slots=True)
class Group:
    """Is where outputs are comparable; empty strings where it is not known."""

    group_id: str
    """Same weights, hardware, tensor parallel size and dtype."""
    model_digest: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Is where an attempt runs."""

    link: ReplicaLink
    group_id: str
    price_per_s: float
    model_digest: str
    tokenizer_digest: str = ""
    """Of the ids that its engine reads; empty where it is not known."""

    @property
    def group(self) -> Group:
        """Where its output is comparable."""
        return Group(self.group_id, self.model_digest)
