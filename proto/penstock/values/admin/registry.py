"""Entries of the registry, and changes of them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.v1 import registry_pb2
from penstock.values.fields import content_of
from penstock.wire import moment_from_wire

Content = Mapping[str, Any]
"""Content of an entry: fields as in the settings of its kind."""


@dataclass(frozen=True, slots=True)
class ReplicaAdapter:
    """State of a LoRA adapter on a replica."""

    adapter: str
    replica: str
    state: str
    """"loading", "loaded", "failed" or "unloading"."""
    why: str = ""
    """Reason why it can't be loaded."""
    digest: str = ""
    """SHA-256 of its files, in hex; empty where it is not known."""
    seconds: float = 0.0
    """Time that loading took."""
    uses: int = 0
    """Sequences that run with it."""

    @classmethod
    def from_proto(cls, found: registry_pb2.ReplicaAdapter) -> ReplicaAdapter:
        return cls(found.adapter, found.replica, found.state, found.why, found.digest, found.seconds, found.uses)


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """Entry of the registry, or of the settings."""

    kind: str
    """"tenant", "key", "adapter", "alias" or "pool"."""
    name: str
    value: Content
    version: int
    """Version of the registry in which it changed last; 0 for an entry of the settings."""
    changed_at: datetime.datetime | None
    """Time of that change, UTC; None for an entry of the settings."""
    fixed: bool
    """Whether the settings forbid to change it."""
    replicas: tuple[ReplicaAdapter, ...] = ()
    """Of an adapter: its state on each replica of its pool."""
    state: str = ""
    """Of a pool that was added, changed or removed: "starting", "serving", "failed", "draining" or "gone"; empty where
    the process that starts replicas does not say it."""
    why: str = ""
    """Reason why a pool's replicas do not start."""

    @classmethod
    def from_proto(cls, entry: registry_pb2.RegistryEntry) -> RegistryEntry:
        changed_at = moment_from_wire(entry.changed_at_ms) if entry.changed_at_ms else None
        replicas = tuple(map(ReplicaAdapter.from_proto, entry.replicas))
        content = content_of(entry.value)
        states = replicas, entry.state, entry.why
        return cls(entry.kind, entry.name, content, entry.version, changed_at, entry.fixed, *states)


@dataclass(frozen=True, slots=True)
class RegistryEdit:
    """Change of one entry."""

    kind: str
    name: str
    value: Content | None
    """New content; None deletes the entry."""
    expected_version: int | None = None
    """Version that the entry must have, 0 for none; None for any."""
    end_streams: bool = False
    """Whether what a key has begun ends too: open calls, jobs and responses in the background."""

    def to_proto(self) -> registry_pb2.RegistryEdit:
        edit = registry_pb2.RegistryEdit(
            kind=self.kind, name=self.name, expected_version=self.expected_version, end_streams=self.end_streams
        )
        if self.value is not None:
            edit.value.SetInParent()
            edit.value.update(self.value)
        return edit


@dataclass(frozen=True, slots=True)
class RegistryDifference:
    """Effect of an edit."""

    kind: str
    name: str
    before: Content | None
    """None where there was no entry."""
    after: Content | None
    """None where there is no entry."""

    @classmethod
    def from_proto(cls, found: registry_pb2.RegistryDifference) -> RegistryDifference:
        return cls(
            found.kind,
            found.name,
            content_of(found.before) if found.HasField("before") else None,
            content_of(found.after) if found.HasField("after") else None,
        )


@dataclass(frozen=True, slots=True)
class RegistryResult:
    """Result of edits."""

    differences: tuple[RegistryDifference, ...]
    """Entries that differ now."""
    version: int
    """Version of the registry with the edits."""
    behind: tuple[str, ...]
    """Routers and replicas that did not know the edits at the end of the wait."""
    adapters: tuple[ReplicaAdapter, ...] = ()
    """State of each adapter that was put, on each replica of its pool."""

    @classmethod
    def from_proto(cls, reply: registry_pb2.EditRegistryResponse) -> RegistryResult:
        differences = tuple(map(RegistryDifference.from_proto, reply.differences))
        adapters = tuple(map(ReplicaAdapter.from_proto, reply.adapters))
        return cls(differences, reply.version, tuple(reply.behind), adapters)


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """Line of the registry's history."""

    number: int
    at: datetime.datetime
    """UTC, by the clock of Redis."""
    tenant: str
    """Tenant of the caller who made the change."""
    credential: str
    """Public name of the credential that was used; empty without one."""
    difference: RegistryDifference
    version: int
    digest: str
    """Digest of this line and of all before it."""
    intact: bool
    """Whether the digest fits."""

    @classmethod
    def from_proto(cls, change: registry_pb2.RegistryChange) -> RegistryChange:
        return cls(
            change.number,
            moment_from_wire(change.at_ms),
            change.tenant,
            change.credential,
            RegistryDifference.from_proto(change.difference),
            change.version,
            change.digest,
            change.intact,
        )


@dataclass(frozen=True, slots=True)
class NewKey:
    """API key that was made."""

    key: str
    """The key itself, which nobody can read again."""
    id: str
    """Public id, the name of its entry."""
    behind: tuple[str, ...]
    """Routers that do not know it yet."""

    def __repr__(self) -> str:
        # Logs must not have the key.
        return f"NewKey(id={self.id!r})"

    @classmethod
    def from_proto(cls, reply: registry_pb2.CreateKeyResponse) -> NewKey:
        return cls(reply.key, reply.id, tuple(reply.behind))
