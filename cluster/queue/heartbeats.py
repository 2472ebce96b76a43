"""What routers and replicas tell the waiting room with their heartbeats, what they hear, and what operators see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.models import Windows
from cluster.queue.entries import Mail
from penstock.models import ReplicaState

POSITIONS = 256
"""Entries whose position one heartbeat may ask for."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Is a replica as the registry shows it."""

    replica_id: str
    record: bytes
    """Signed by the replica, opaque to the queue: address, model, group (see `cluster.trust.announcement`)."""
    state: ReplicaState
    windows: Windows
    sequences: int
    """Slots held."""
    kv_tokens: int
    prefill_tokens: int
    heartbeat_age_ms: int
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterBeat:
    """Is what a router reports in each heartbeat."""

    router_id: str
    connected: tuple[str, ...]
    """Replicas it has a healthy link to; it gets grants for these only."""
    started: tuple[tuple[str, str], ...] = ()
    """(request id, attempt) of grants that it started since its last acknowledged heartbeat."""
    registry_version: int = -1
    """The version of the registry it has, -1 for none."""
    report: bytes = b""
    """What it counted of its requests, for `observe`; opaque to the queue."""
    positions_of: tuple[str, ...] = ()
    """Waiting entries of its own whose position it wants, at most `POSITIONS`."""
    busy: bool = False
    """It has had no time for its mail since its last heartbeat: grants that it has not started are not taken back."""


@dataclass(frozen=True, slots=True)
class RouterBeatReply:
    """Answers a router's heartbeat."""

    mail: Mail
    replicas: tuple[ReplicaRecord, ...] | None
    """All replicas with a live lease. None when the registry did not change since `registry_version`, in pools of more
    than 64 replicas; these too are sent every few seconds, for their load."""
    registry_version: int
    waiting: tuple[int, int, int]
    """Waiting entries per class, without those of routers that have no lease."""
    running: int
    routers: tuple[str, ...]
    """Routers with a live lease."""
    positions: Mapping[str, int]
    """Waiting entries ahead, for each of those asked for that waits and is this router's."""
    run_id: str
    """The store's identity; changes when it restarted, or lost everything, and may have forgotten something."""
    granted: tuple[int, int, int] = (0, 0, 0)
    """Grants ever made per class."""
    time_ms: int = 0
    """Pool time."""
    point: bytes | None = None
    """The operating point in force, as stored by `cluster.autoscaler`; None where nobody changed the settings'."""
    relief: str = "none"
    """What the pool gives up now, a `penstock.values.steps.Relief`."""
    marks: int = 0
    """As `Marks.count`."""


@dataclass(frozen=True, slots=True)
class ReplicaBeat:
    """Is what a replica reports in each heartbeat."""

    replica_id: str
    record: bytes
    state: ReplicaState
    windows: Windows
    running: tuple[tuple[str, str], ...]
    """(request id, attempt) of everything that holds a slot there now."""
    prefilled: tuple[str, ...] = ()
    """Request ids whose first token came since the last acknowledged heartbeat; they leave the prefill window."""
    kv_tokens: int | None = None
    """KV tokens in use; None where unknown. Takes the place of the estimates of all in `running`, up or down, so a
    replica that keeps room for what they will still grow counts that room too."""
    stats: Mapping[str, float] = field(default_factory=dict)
    produced: tuple[int, ...] = ()
    """Output tokens so far of each in `running`, -1 where it must not give way; without them nothing here does."""
    batch_slots: int | None = None
    """Most slots that class BATCH gets here beyond its reserved share; None is no bound."""


@dataclass(frozen=True, slots=True)
class ReplicaBeatReply:
    """Answers a replica's heartbeat."""

    routers: tuple[str, ...]
    """Routers with a live lease."""
    run_id: str
    point: bytes | None = None
    """As in `RouterBeatReply`."""
    relief: str = "none"


@dataclass(frozen=True, slots=True)
class RouterReport:
    """Is what a router last reported of its requests."""

    router_id: str
    age_ms: int
    report: bytes


@dataclass(frozen=True, slots=True)
class PoolView:
    """Is a pool as its autoscaler sees it."""

    time_ms: int
    """Pool time."""
    run_id: str
    replicas: tuple[ReplicaRecord, ...]
    """All with a live lease."""
    reports: tuple[RouterReport, ...]
    """Of routers with a live lease that ever reported."""
    waiting: tuple[int, int, int]
    """Waiting entries per class."""
    longest_wait_ms: tuple[int, int, int]
    """Of the waiting entries of each class; of the 64 tenants that are next."""
    running: int
    """Slots held."""
    point: bytes | None
    """As in `RouterBeatReply`."""
    routers: tuple[str, ...]
    """Routers with a live lease."""
