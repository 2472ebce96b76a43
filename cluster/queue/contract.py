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

from collections.abc import Sequence
from typing import Protocol

from cluster.queue.entries import (
    Adopted,
    Holdings,
    KnownRequest,
    Mail,
    Mark,
    Marks,
    QueueEntry,
    Settlement,
    Submitted,
    UsageLine,
)
from cluster.queue.heartbeats import PoolView, ReplicaBeat, ReplicaBeatReply, RouterBeat, RouterBeatReply


class Queue(Protocol):
    """Is one pool's waiting room, lease table and replica registry.

    Every method raises QueueUnavailableError when the store does not answer in time, and is safe to cancel: a cancelled
    call may still have happened.
    """

    async def submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        """Add an entry; grant at once where a replica that this router is connected to has room and nobody is ahead.

        The same request_id again changes nothing and answers as the first time, to its owner.

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

    async def withdraw(self, router_id: str, request_id: str, used: Settlement | None) -> Mail:
        """End an own entry that runs nowhere: it leaves the line, gives back a grant that was not used, or answers an
        order. `used` is what attempts of it used, with what of that the ledger does not have; None where none ran.
        Another router's entry stays: who gives up must not stop what another has adopted. Returns grants as `release`
        does.
        """
        ...

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        """Make an entry this router's own; its old owner is sent an Order "moved" and answers with `release`. None when
        this tenant has no such entry or it was cancelled.
        """
        ...

    async def find_key(self, tenant: str, client_key: str, request_id: str, digest: str) -> KnownRequest | None:
        """Tell whose a client key is without submitting anything. None where nobody has it, or where it is this
        request's own and has no result.

        Raises:
            KeyReusedError: it belongs to a request with another digest.
        """
        ...

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        """Keep a request's result under its client key for `result_ms`; an empty one, or one that is larger than all
        that are kept may be, lets the key be used again where no result is stored. `request_id` is without the number
        of a choice. False when the key is another's.
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

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool = False) -> str | None:
        """Stop a request wherever it is, with all its choices. `target` is a request id, that of a choice, or the
        client key of `tenant`. Returns the id, for a key that of its request; None when this tenant has no such entry.

        Waits, or was ordered out of the line, is the caller's own and was never granted: removed at once. Waits
        otherwise: leaves the line, and its owner (also when it is the caller) is sent an Order "cancel" and withdraws
        it. Granted or running: keeps its slot, and the owner is sent an Order "cancel", stops the work and releases.
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

    async def holdings(self, router_id: str, after: bytes = b"", limit: int = 500) -> Holdings:
        """Read what the store has on record as this router's own: a page, from the beginning or `after` the one before.
        What moves between two pages may be missing or listed twice.
        """
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

        Thousands of entries take several calls; what is left when this is cancelled, heartbeats of others finish.
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
