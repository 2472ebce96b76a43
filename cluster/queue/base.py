"""The waiting room's contract. Two implementations: Redis for production, memory for tests and simulations.

What it promises while the store keeps its data:

* A submitted entry is waiting, granted, running or gone; it is never in two places.
* At most one attempt of an entry holds a slot. An attempt is fenced by equality: a call that names another attempt than
  the entry's own changes nothing and returns False.
* A replica never holds more than its windows allow, however many routers share it.
* Grants are state. The bell only says "look now"; a lost bell costs at most one heartbeat.
* A router or replica that stops its heartbeats loses its lease; its slots go back to the pool. After a gap in which
  nobody could renew (outage, restart, clock jump) nobody loses anything for one full lease.

Times inside are pool time: the store's clock, never going back, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.models import ReplicaState, RequestClass, Windows

MAX_CHOICES = 16
"""Most choices of one request."""


def choice_ids(request_id: str) -> tuple[str, ...]:
    """Name the entries that a request of several choices may have; a request of one has its own id."""
    return tuple(f"{request_id}/{index}" for index in range(MAX_CHOICES))


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Are the constants of a pool, the same at every router."""

    lease_ms: int = 4_000
    attach_grace_ms: int = 5_000
    """How long a dead router's waiting entries keep their place, and a broken link's output is kept."""
    max_waiting: int = 100_000
    lookahead: int = 16
    """How many candidates `fill` looks at, and how often one may be passed over."""
    grant_heartbeats: int = 3
    """A grant that its router has not listed as started after so many heartbeats is revoked."""
    class_shares: tuple[float, float, float] = (0.0, 0.2, 0.05)
    """Reserved part of the served tokens per RequestClass; the rest goes to the most urgent class."""
    preempt_after_ms: int = 500
    """BATCH gives way where INTERACTIVE waited so long; 0 is never."""
    preempt_quantum_ms: int = 2_000
    """A sequence runs at least so long before it gives way."""
    max_preemptions: int = 2
    """A request gives way at most so often."""
    result_ms: int = 600_000
    """How long the result of a request with a client key is kept; 0 keeps none."""
    max_result_bytes: int = 256 << 20
    """Of all kept results together; the oldest go first."""
    ledger_days: int = 62
    """How long the ledger is kept; 0 keeps none."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Is what a tenant may use of a pool; 0 is no bound."""

    tokens_per_minute: int = 0
    """Prompt and output tokens. The bucket holds one minute's worth."""
    requests_per_minute: int = 0
    concurrency: int = 0
    """Requests that wait or run at a time."""
    strict: bool = False
    """Reserve all that a request may produce, and return nothing: what is granted in any T minutes never passes
    (1 + T) x tokens_per_minute. Otherwise what is likely is reserved and corrected at the end, debt allowed."""
    max_waiting: int = 0
    """Requests of one class that wait at a time."""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """Is what the queue knows of a request: about 200 bytes, never the prompt."""

    request_id: str
    """Minted by the router, unguessable. [A-Za-z0-9._/-] only."""
    attempt_base: str
    """Random, from the owner; the queue appends its own number per grant."""
    tenant: str
    request_class: RequestClass
    prompt_tokens: int
    expected_tokens: int
    """Estimated output tokens; what the tenant is charged at the grant, corrected at release."""
    kv_tokens: int
    """Estimated KV cache use in tokens; must fit the replica's KV window."""
    start_within_ms: int = 0
    """Not granted later than this after submit; 0 is no bound."""
    client_key: str = ""
    """The client's idempotency key, unique per tenant; empty for none."""
    preferred_replicas: tuple[str, ...] = ()
    weight: float = 1.0
    """The tenant's share weight, above 0."""
    resume: bool = False
    """Comes back from a failed attempt: head of its tenant's list, not charged again."""
    max_tokens: int = 0
    """The most output tokens it may produce; for quotas."""
    quota: Quota = NO_QUOTA
    digest: str = ""
    """Identifies what the client asked for; a client key goes with one digest."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Is a slot on a replica for one attempt."""

    request_id: str
    attempt: str
    replica_id: str


@dataclass(frozen=True, slots=True)
class Order:
    """Tells an owner what to do with one of its requests; asked for by another router or by `fill`."""

    request_id: str
    kind: str
    """"cancel"; "expired"; "preempt": give way and `requeue`; "moved": another router adopted it."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """Is the request that a client key already belongs to; it runs, or has ended not long ago."""

    request_id: str
    """Without the number of a choice."""
    result: bytes | None
    """As given to `finish_key`; None while it runs, or when there is none."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Answers `submit`: a grant when there was room and nobody ahead, else the place in line."""

    grant: Grant | None
    position: int
    """Waiting entries ahead; 0 when granted."""
    known: KnownRequest | None = None
    """Nothing was submitted: the client key belongs to this request."""
    marks: int = 0
    """As `Marks.count`."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Says that a content kills engines."""

    content: bytes
    """A digest of it."""
    incident: str
    left_ms: int
    """How long it still stays marked."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Are the contents of a pool that kill engines."""

    count: int
    """Counts the writes: who knows the marks of one count, knows all."""
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """Answers `adopt`: where the entry is."""

    grant: Grant | None
    """Its slot."""
    position: int
    started: bool = False
    """Whether the attempt of `grant` is known to run."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Is everything the queue wants a router to know."""

    grants: tuple[Grant, ...] = ()
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """Is what an attempt really used; corrects the tenant's charge and goes into the ledger."""

    output_tokens: int
    """Of all attempts of the entry."""
    requests: int = 0
    """1 in the entry that stands for its request in the ledger."""
    prompt_tokens: int = 0
    """As they count in the ledger: once per request."""
    cached_tokens: int = 0
    gpu_seconds: float = 0.0
    """Of this attempt."""
    cost: float = 0.0
    """Of this attempt, in the currency of the settings."""


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Is what a tenant used on one day of pool time."""

    day: int
    """Days since 1970-01-01."""
    tenant: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Is a replica as the registry shows it."""

    replica_id: str
    record: bytes
    """Signed by the replica, opaque to the queue: address, model, group (see `cluster.registry`)."""
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
    """Waiting entries ahead, for each of this router's waiting entries (the first 256 of them)."""
    run_id: str
    """The store's identity; changes when it restarted, or lost everything, and may have forgotten something."""
    granted: tuple[int, int, int] = (0, 0, 0)
    """Grants ever made per class."""
    time_ms: int = 0
    """Pool time."""
    point: bytes | None = None
    """The operating point in force, as stored by `cluster.autoscaler`; None where nobody changed the settings'."""
    relief: str = "none"
    """What the pool gives up now, a `cluster.control.decision.Relief`."""
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
    """Output tokens so far of each in `running`; without them nothing here gives way."""
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


class Queue(Protocol):
    """Is one pool's waiting room, lease table and replica registry.

    Every method raises QueueUnavailableError when the store does not answer in time, and is safe to cancel: a cancelled
    call may still have happened.
    """

    async def submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        """Add an entry; grant at once where a replica that this router is connected to has room and nobody is ahead.

        The same request_id again changes nothing and answers as the first time.

        A client key that is known already submits nothing and tells whose it is.

        Raises:
            QueueFullError: `max_waiting` entries wait already, or as many of this tenant as its quota allows.
            QuotaExceededError: the tenant's quota does not allow it now, or ever.
            KeyReusedError: the client key belongs to a request with another digest.
        """
        ...

    async def release(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        """End an attempt: free the slot, correct the tenant's charge, forget the entry, and fill the slot again.

        Returns the grants to this router that this call caused; `collect` has all its mail. Naming a stale attempt
        changes nothing. An entry that left the line by an order (cancel, expired) is forgotten with attempt "" or its
        last one.
        """
        ...

    async def requeue(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        """End an attempt whose request goes on: free the slot; the entry waits for another one at the head of its
        tenant's list, its charge kept and without a bound on its wait. Returns grants as `release` does.
        """
        ...

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        """Make an entry this router's own; its old owner is sent an Order "moved" and answers with `release`. None when
        this tenant has no such entry or it was cancelled.
        """
        ...

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        """Keep a request's result under its client key for `result_ms`; an empty one lets the key be used again.
        `request_id` is without the number of a choice. False when the key is another request's.
        """
        ...

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int = 10_000) -> Sequence[UsageLine]:
        """Read the ledger, ordered by day and tenant; tenant "" reads all."""
        ...

    async def refuse(self, router_id: str, request_id: str, attempt: str) -> Mail:
        """Give a grant back that could not be started: the entry goes to the head of its tenant's list, and the
        replica's window is closed until the replica's next heartbeat. An entry with an order pending leaves the line
        instead; its owner answers the order.
        """
        ...

    async def cancel(
        self, router_id: str, tenant: str, target: str, *, by_key: bool = False, own: bool = False
    ) -> str | None:
        """Stop a request wherever it is, with all its choices. `target` is a request id, that of a choice, or the
        client key of `tenant`. Returns the id, for a key that of its request; None when this tenant has no such entry.
        With `own` only what the caller owns: a router that gives up must not stop what another one has adopted.

        Waits, or was ordered out of the line, and is the caller's own: removed at once. Waits and is another router's:
        leaves the line, and its owner is sent an Order "cancel". Granted or running: keeps its slot, and the owner
        (also when it is the caller) is sent an Order "cancel", stops the work and releases.
        """
        ...

    async def collect(self, router_id: str) -> Mail:
        """Return the router's whole mailbox: every grant not yet reported as started, and every order whose entry is
        still there. An owner answers an order with `release` (attempt "" when the entry never had a grant), which
        removes both; so a lost reply loses nothing, and an owner ignores mail that it already acted on.
        """
        ...

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        """Renew a router's lease and return all of its mail. Also reaps and fills."""
        ...

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        """Renew a replica's lease, publish its record, windows and state, correct its load, and fill it."""
        ...

    async def observe(self) -> PoolView:
        """Read what an autoscaler must know. Renews nothing."""
        ...

    async def quarantine(self, router_id: str, mark: Mark | None = None) -> Marks:
        """Mark a content that kills engines, for all routers, and return all marks; None only reads. At most 256 are
        kept; those that end first make room.
        """
        ...

    async def retire_router(self, router_id: str, *, keep: bool = False) -> None:
        """End a router's lease now; its waiting entries go at once. For an orderly end, after its streams. With `keep`
        its entries stay for `attach_grace`, as after its death, so that other routers can adopt them.
        """
        ...

    async def retire_replica(self, replica_id: str) -> None:
        """Remove a replica from the registry now. For an orderly end, after its streams."""
        ...

    async def reap(self) -> int:
        """Apply expired leases and expired entries; returns how many entries were freed. Heartbeats call it too."""
        ...

    async def close(self) -> None:
        """Close connections. Calls in flight end with QueueUnavailableError."""
        ...


class Bell(Protocol):
    """Wakes a router when mail waits for it."""

    async def wait(self) -> str:
        """Return the pool that rang; waits until one does. Rings may be merged or lost."""
        ...

    async def close(self) -> None:
        """Stop listening; a pending `wait` ends with QueueUnavailableError."""
        ...
