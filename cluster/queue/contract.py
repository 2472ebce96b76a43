"""The queue's contract. Two implementations: Redis for production, memory for tests and simulations.

Promises while the store keeps its data:

* A submitted entry is waiting, granted, running or gone; it is never in two places.
* At most one attempt of an entry holds a slot. An attempt is fenced by equality: a call that names another attempt than
  the entry's own changes nothing.
* A replica never holds more than its windows allow, however many routers share it.
* Grants are state. The bell only says "look now"; a lost bell costs at most one heartbeat.
* A router or replica that stops its heartbeats loses its lease; its slots go back to the pool. After a gap in which
  no process could renew (outage, restart, clock jump) none loses anything for one full lease.

Times inside are pool time: the store's clock, never going back, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cluster.queue.entries import (
    Adopted,
    CostLine,
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
from cluster.queue.heartbeats import (
    PoolView,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaTimes,
    RouterBeat,
    RouterBeatReply,
)
from cluster.queue.line import Line


class Ledger(Protocol):
    """Usage of tenants and GPU time of replicas of one pool. Errors as of `Queue`."""

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int = 10_000) -> Sequence[UsageLine]:
        """Read the ledger, ordered by day and tenant; tenant "" reads all tenants."""
        ...

    async def costs(self, first_hour: int, last_hour: int) -> Sequence[CostLine]:
        """Read the pool's costs by hour of pool time, in hours since 1970, in order. Hours without a replica have no
        line.
        """
        ...


class ReplicaQueue(Protocol):
    """Queue as a replica uses it. Errors as of `Queue`."""

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        """Renew a replica's lease, publish its record, windows and state, correct its load, and fill it."""
        ...

    async def account(self, replica_id: str, times: ReplicaTimes, told: ReplicaTimes | None = None) -> None:
        """Report the time of a replica that has no lease: it starts, or has just left. Fields as in `ReplicaBeat`."""
        ...

    async def retire_replica(self, replica_id: str) -> None:
        """Remove a replica from the registry now. For an orderly end, after its streams."""
        ...

    async def close(self) -> None:
        """Close connections. Calls in flight raise QueueUnavailableError."""
        ...


class Queue(Ledger, ReplicaQueue, Protocol):
    """Queue, lease table and replica registry of one pool.

    Every method raises QueueUnavailableError when the store does not answer in time. Every method is safe to cancel; a
    cancelled call may still take effect.
    """

    async def submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        """Add an entry. Grant it at once if a replica that this router is connected to has room and no entry is ahead.

        A request_id that its owner has submitted before changes nothing and gets the same answer.

        With a client key that is already known nothing is submitted; the answer names the request that has the key.

        Raises:
            QueueFullError: `max_waiting` entries wait already, or as many of this tenant as its quota allows.
            QuotaExceededError: the tenant's quota does not allow it now, or ever.
            KeyReusedError: the client key belongs to a request with another digest.
        """
        ...

    async def release(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        """End an attempt: free the slot, correct the tenant's charge, forget the entry, and fill the slot again.

        Return the grants to this router that this call caused; `collect` returns all its mail. A stale attempt changes
        nothing. To forget an entry that left the line by an order (cancel, expired), pass attempt "" or its last one.
        """
        ...

    async def requeue(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        """End an attempt whose request goes on: free its slot. The entry waits for another slot at the head of its
        tenant's list. It keeps its charge and has no bound on its wait. Return grants as `release` does.
        """
        ...

    async def withdraw(
        self, router_id: str, request_id: str, used: Settlement | None, *, refused: bool = False
    ) -> Mail:
        """End an own entry that runs nowhere: take it out of the line, give back its unused grant, or answer its order.

        `used`: what its attempts used, as far as the ledger does not have it yet; None if none ran. `refused`: its
        request is refused after all, and counts for no rate unless it was granted. An entry of another router stays: a
        router that gives up must not stop what another one has adopted. Return grants as `release` does.
        """
        ...

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        """Make an entry this router's own. Its old owner gets an Order "moved" and answers it with `release`. Return
        None if this tenant has no such entry, or it was cancelled.
        """
        ...

    async def find_key(self, tenant: str, client_key: str, request_id: str, digest: str) -> KnownRequest | None:
        """Return the request that has a client key, without submitting anything. None if no request has it, or if it is
        this request's own key and there is no result.

        Raises:
            KeyReusedError: the key belongs to a request with another digest.
        """
        ...

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        """Keep a request's result under its client key for `result_ms`. An empty result, or one larger than
        `max_result_bytes`, is not kept: it frees the key unless a result is stored already. `request_id` is without the
        number of a choice. Return False if the key belongs to another request.
        """
        ...

    async def await_key(self, tenant: str, client_key: str, request_id: str, *, note: bool) -> bool:
        """Return whether a call has waited for the result of the key's request within the last lease. With `note` one
        does now. False if the key belongs to another request.
        """
        ...

    async def refuse(self, router_id: str, request_id: str, attempt: str) -> Mail:
        """Give back a grant that could not be started. The entry goes to the head of its tenant's list, and the replica
        takes no more grants until its next heartbeat. An entry with a pending order leaves the line instead; its owner
        answers the order.
        """
        ...

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool = False) -> str | None:
        """Stop a request wherever it is, with all its choices.

        `target` is a request id, the id of one choice, or a client key of `tenant`. Return the id (for a key, that of
        its request), or None if this tenant has no such entry.

        * An entry of the caller that was never granted and waits, or was ordered out of the line, is removed at once.
        * Any other entry that waits leaves the line. Its owner, which may be the caller, gets an Order "cancel" and
          withdraws it.
        * An entry that is granted or runs keeps its slot. Its owner gets an Order "cancel", stops the work and
          releases the slot.
        * The owner ends all choices of the request that it has, also those of cells that are away.
        """
        ...

    async def collect(self, router_id: str) -> Mail:
        """Return the router's whole mailbox: every grant not yet reported as started, and every order whose entry still
        exists. An owner answers an order with `release` (attempt "" if the entry never had a grant), which removes
        entry and order. So a lost reply loses nothing. An owner ignores mail that it already acted on.
        """
        ...

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        """Renew a router's lease and return all its mail. Reap and fill, too."""
        ...

    async def holdings(self, router_id: str, after: bytes = b"", limit: int = 500) -> Holdings:
        """Read one page of what the store has on record for this router: the first page, or the one after the page that
        ended with `after`. Entries that move between two reads may be missing or listed twice.
        """
        ...

    async def observe(self, *, whole: bool = True) -> PoolView:
        """Read what an autoscaler must know. Renew no lease. Without `whole` the view is also given while a part of the
        pool does not answer, and says so (`PoolView.away`).
        """
        ...

    async def line(self, ask: Sequence[str] = ()) -> Line:
        """Read who waits, by class and tenant, who holds the slots, and what tenants used of their quotas. Renew no
        lease, change nothing. `ask`: waiting entries of which to tell what is ahead; those beyond `ASKED` are left out.
        """
        ...

    async def quarantine(self, router_id: str, mark: Mark | None = None) -> Marks:
        """Mark a content that kills engines, for all routers, and return all marks. With None only read. At most 256
        marks are kept; those that end first make room.
        """
        ...

    async def retire_router(self, router_id: str, *, keep: bool = False) -> None:
        """End a router's lease now and remove its waiting entries. For an orderly end, after its streams. With `keep`
        its entries stay for `attach_grace`, as after its death, so that other routers can adopt them.

        Thousands of entries take several calls. If this is cancelled, other processes' heartbeats finish the rest.
        """
        ...

    async def reap(self) -> int:
        """Apply expired leases and expired entries; return how many entries were freed. Heartbeats do it too."""
        ...


class Bell(Protocol):
    """Wake-up call of a router that has mail."""

    async def wait(self) -> str:
        """Wait for a ring and return the pool that rang. Rings may be merged or lost."""
        ...

    async def close(self) -> None:
        """Stop listening; a pending `wait` raises QueueUnavailableError."""
        ...
