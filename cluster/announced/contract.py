"""The contract of the store of announced load."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

from cluster.announced.load import AnnouncedLoad

MOST_OF_POOL = 4_096
"""Most announcements that a pool keeps, of all tenants."""


class Put(enum.Enum):
    """Outcome of an announcement."""

    STORED = 1
    TENANT_FULL = 0
    """The tenant has as many others as it may."""
    POOL_FULL = -1
    """The pool has as many as it keeps."""


class AnnouncedStore(Protocol):
    """Announced load of one pool, or of one alias. It is gone when its time is over. Every method raises
    QueueUnavailableError if the store does not answer in time.
    """

    async def put(self, load: AnnouncedLoad, most: int) -> Put:
        """Keep an announcement, in place of the tenant's one of the same id.

        Args:
            load: the announcement.
            most: announcements that the tenant may have.
        """
        ...

    async def read(self) -> Sequence[AnnouncedLoad]:
        """Read all that are not over, in order of their beginning."""
        ...

    async def withdraw(self, tenant: str, load_id: str) -> bool:
        """Remove an announcement; return whether there was one."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class AnnouncedReader(Protocol):
    """What is announced for one pool."""

    async def read(self) -> Sequence[AnnouncedLoad]:
        """Read all that is not over.

        Raises:
            QueueUnavailableError: the store does not answer in time.
        """
        ...


class AliasParts(Protocol):
    """Aliases of now, as announced load is divided by them."""

    def leading_to(self, pool: str) -> Sequence[str]:
        """Return the aliases with a target in a pool."""
        ...

    def parts(self, name: str, tenant: str) -> Mapping[str, float]:
        """Return the parts of a tenant's requests that the targets of an alias get, by pool."""
        ...
