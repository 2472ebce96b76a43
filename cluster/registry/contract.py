"""The contract of the registry's store.

An entry has a kind, a name and a value that is opaque to the store. Every change gives its entries a new version, a
number of the whole registry, so a process learns what has changed by one number. Edits that belong together are made
together or not at all. Every change stays in the history, each line with the hash of the one before it.

A registry has a life: a random name that it gets with its first change. A process that meets another life, or an
earlier version of the same life, knows that the store has lost data, and gives back what it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of the registry."""

    kind: str
    name: str
    version: int
    at_ms: int
    """Time of its last change, milliseconds since the Unix epoch by the clock of Redis."""
    value: bytes | None
    """Its value; None for an entry that was deleted."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Change of one entry."""

    kind: str
    name: str
    value: bytes | None
    """New value; None deletes the entry."""
    expected: int | None = None
    """Version that the entry must have, 0 for an entry that must not exist; None for any."""


@dataclass(frozen=True, slots=True)
class Author:
    """Caller who changes the registry."""

    tenant: str
    credential: str = ""
    """Public name of the key, certificate or token that was used; empty without one."""


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a registry a process knows."""

    life: str = ""
    """Life of the registry; empty before its first change."""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Watcher:
    """Process that follows the registry."""

    id: str
    kind: str
    """Kind of the process: "router", "replica", "autoscaler" or "launcher"."""
    pool: str = ""
    """Pool of a replica; empty for others, which serve all."""
    report: bytes = b""
    """What the process made of the entries, in a form of its own."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Last look of a watcher."""

    watcher: Watcher
    version: int
    """Version that it knew."""
    age_ms: int


@dataclass(frozen=True, slots=True)
class Look:
    """Result of a look at the registry."""

    position: Position
    """Position of the store. Its version is that of the registry, also where more entries are to come."""
    entries: Sequence[Entry]
    """Changed entries in order of their versions, deleted ones included."""
    whole: bool
    """Whether the entries begin at the first one, because the position looked from is of no use."""
    more: bool
    """Whether further entries are to come, after the last one of these."""


@dataclass(frozen=True, slots=True)
class Change:
    """Line of the history."""

    number: int
    """Number of the line; grows by one."""
    at_ms: int
    author: Author
    kind: str
    name: str
    version: int
    before: bytes | None
    """Value before the change; None where there was none."""
    after: bytes | None
    """Value after the change; None where the entry was deleted."""
    digest: str
    """SHA-1 of the digest of the line before and of this line, in hex."""
    intact: bool
    """Whether the digest fits the line and, where it was read too, the line before."""


@dataclass(frozen=True, slots=True)
class Past:
    """Part of the history."""

    changes: Sequence[Change]
    """Changes, newest first."""
    before: int
    """Number of the oldest line that was looked at. Older ones may follow; 0 where none is kept."""


class RegistryStore(Protocol):
    """Store of the registry. Every method may raise QueueUnavailableError."""

    async def look(self, watcher: Watcher, since: Position, after: int | None = None) -> Look:
        """Return what has changed, and note that a watcher has looked.

        Args:
            watcher: process that looks.
            since: what it knows.
            after: version to go on from where the last look had more; None for the first look.
        """
        ...

    async def apply(self, edits: Sequence[Edit], author: Author, known: Position) -> Position | None:
        """Make edits, all or none. Return the new position.

        Args:
            edits: at most one for each entry.
            author: caller who makes them.
            known: what the process that makes them knows. None is returned, and nothing is changed, where the store has
                lost what the process knows; the process then gives it back and tries again.

        Raises:
            RegistryConflictError: an entry does not have the version that was expected.
        """
        ...

    async def restore(self, known: Position, entries: Sequence[Entry]) -> int:
        """Give back entries that the store may have lost; newer ones in the store stay. Return how many came back."""
        ...

    async def watchers(self) -> Sequence[Sighting]:
        """Return the watchers that looked within the last minute."""
        ...

    async def history(self, kind: str, name: str, limit: int, before: int | None = None) -> Past:
        """Return changes. There may be fewer than the limit although older ones follow: a look has bounds.

        Args:
            kind: empty for all.
            name: empty for all.
            limit: most changes to return.
            before: number of a line; only older ones are returned.
        """
        ...

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        ...
