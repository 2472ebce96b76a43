"""Heartbeats of routers and replicas, the queue's replies, and the autoscaler's view of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.models import Windows
from cluster.queue.entries import Mail
from penstock.models import DrainReason, ReplicaState

POSITIONS = 256
"""Most entries whose position one heartbeat may ask for."""
DRAIN_CODES = {DrainReason.STOPPED: 1.0, DrainReason.ENGINE_LOST: 2.0, DrainReason.SUPERSEDED: 3.0}
"""Reasons as the statistics of a heartbeat have them, which are numbers."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Registry's record of a replica."""

    replica_id: str
    record: bytes
    """Address, model and group, signed by the replica; opaque to the queue (`cluster.trust.announcement`)."""
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
    """Report of a router in each heartbeat."""

    router_id: str
    connected: tuple[str, ...]
    """Replicas that it has a healthy link to; it gets grants for these only."""
    started: tuple[tuple[str, str], ...] = ()
    """(request id, attempt) of grants that it started since its last acknowledged heartbeat."""
    registry_version: int = -1
    """Version of the registry that it has, -1 for none."""
    report: bytes = b""
    """Counters of its requests, for `observe`; opaque to the queue."""
    positions_of: tuple[str, ...] = ()
    """Waiting entries of its own whose position it wants, at most `POSITIONS`."""
    busy: bool = False
    """Whether it has had no time for its mail since its last heartbeat. Grants that it has not started are not taken
    back then."""


@dataclass(frozen=True, slots=True)
class RouterBeatReply:
    """Answer to a router's heartbeat."""

    mail: Mail
    replicas: tuple[ReplicaRecord, ...] | None
    """All replicas with a live lease. In pools of more than 64 replicas None while the registry has not changed since
    `registry_version`; but every few seconds they are sent all the same, for their load."""
    registry_version: int
    waiting: tuple[int, int, int]
    """Waiting entries per class, without those of routers that have no lease."""
    running: int
    routers: tuple[str, ...]
    """Routers with a live lease."""
    positions: Mapping[str, int]
    """Waiting entries ahead of each entry asked for, if it waits and belongs to this router."""
    run_id: str
    """Identity of the store. It changes after a restart or a loss of all data: the store may have forgotten
    something."""
    granted: tuple[int, int, int] = (0, 0, 0)
    """Grants ever made per class."""
    time_ms: int = 0
    """Pool time."""
    point: bytes | None = None
    """Operating point in force, as stored by `cluster.autoscaler`; None while that of the settings holds."""
    relief: str = "none"
    """Relief of the pool now, a `penstock.values.steps.Relief`."""
    marks: int = 0
    """As `Marks.count`."""


@dataclass(frozen=True, slots=True)
class ReplicaTimes:
    """GPU-seconds of a replica by kind, counted since its process began. They only grow, except `running`."""

    gpus: int
    price_per_gpu_s: float
    """Price of a GPU-second, in the currency of the settings."""
    total: float
    """Wall time on all its GPUs."""
    starting: float = 0.0
    """Time before it took work."""
    idle: float = 0.0
    """Time without an engine step, while it took work."""
    draining: float = 0.0
    """Time without an engine step, after it took no new work any more."""
    ended: float = 0.0
    """Use by attempts that have ended, whether or not a router took their end."""
    running: float = 0.0
    """Use so far by attempts that run."""
    standby: float = 0.0
    """Time without an engine step, while it stood by."""


@dataclass(frozen=True, slots=True)
class ReplicaBeat:
    """Report of a replica in each heartbeat."""

    replica_id: str
    record: bytes
    state: ReplicaState
    windows: Windows
    running: tuple[tuple[str, str], ...]
    """(request id, attempt) of everything that holds a slot there now."""
    prefilled: tuple[str, ...] = ()
    """Request ids whose first token came since the last acknowledged heartbeat; they leave the prefill window."""
    kv_tokens: int | None = None
    """KV tokens in use; None if unknown. It replaces the estimates of all in `running`, up or down. So a replica that
    keeps room for their growth counts that room too."""
    stats: Mapping[str, float] = field(default_factory=dict)
    produced: tuple[int, ...] = ()
    """Output tokens so far of each in `running`, -1 for one that must not give way. An attempt without a number counts
    as one that has produced nothing."""
    batch_slots: int | None = None
    """Most slots that class BATCH gets here beyond its reserved share; None is no bound."""
    times: ReplicaTimes | None = None
    """Account of its time; None from a replica that keeps none, whose time is in no line of costs."""
    told: ReplicaTimes | None = None
    """Account in the last heartbeat that was answered. A store that lost its own counts from here."""


@dataclass(frozen=True, slots=True)
class ReplicaBeatReply:
    """Answer to a replica's heartbeat."""

    routers: tuple[str, ...]
    """Routers with a live lease."""
    run_id: str
    point: bytes | None = None
    """As in `RouterBeatReply`."""
    relief: str = "none"
    standby: bool | None = None
    """Whether the autoscaler orders this replica to stand by; None while no order is in force."""
    most_cells: int = 1
    """Most cells that the pool ever had, as the cell that answers knows."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """Last report of a router about its requests."""

    router_id: str
    age_ms: int
    report: bytes


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as its autoscaler sees it."""

    time_ms: int
    """Pool time."""
    run_id: str
    replicas: tuple[ReplicaRecord, ...]
    """All replicas with a live lease."""
    reports: tuple[RouterReport, ...]
    """Last report of each router that has a live lease and ever reported."""
    waiting: tuple[int, int, int]
    """Waiting entries per class."""
    longest_wait_ms: tuple[int, int, int]
    """Longest wait in each class, among the 64 tenants that are next."""
    running: int
    """Slots held."""
    point: bytes | None
    """As in `RouterBeatReply`."""
    routers: tuple[str, ...]
    """Routers with a live lease."""
    away: tuple[int, ...] = ()
    """Cells that do not answer. What they have is as it was when they were seen last."""
    unseen: bool = False
    """Whether one of these was never seen, so that what it has is missing here."""
