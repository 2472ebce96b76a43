"""Leases: which routers and replicas are alive; mirrors redis/lua/leases.lua, which has the reasons."""

from __future__ import annotations

from cluster.queue.memory.fill import forget, free_slot, order, withdraw
from cluster.queue.memory.keys import tidy_keys
from cluster.queue.memory.ledger import tidy_ledger
from cluster.queue.memory.line import enter_line, leave_line
from cluster.queue.memory.quotas import tidy_tenants
from cluster.queue.memory.state import CHUNK, IN_FLIGHT, PARKED, Entry, PoolState, insert_place


def tick(pool: PoolState, run_id: str) -> None:
    """Note a heartbeat. After a gap, a clock that ran backward or a new run id, every lease counts as live for one full
    lease.
    """
    if pool.backward or pool.now - pool.tick > pool.limits.lease_ms / 2 or run_id != pool.run_id:
        pool.amnesty = pool.now + pool.limits.lease_ms
    if pool.backward:
        pool.skew = pool.time - pool.raw
    pool.run_id = run_id
    pool.tick = pool.time = pool.now
    pool.lenient = pool.now < pool.amnesty


def mark_started(pool: PoolState, entry: Entry) -> None:
    """Take a grant out of the mail: its owner or replica lists it as started."""
    owned = pool.owned(entry.owner)
    if entry.id not in owned.granted:
        return
    owned.granted.discard(entry.id)
    owned.running.add(entry.id)
    slots = pool.slots_of(entry.replica)
    slots.started[entry.id] = slots.granted.pop(entry.id)


def part_router(pool: PoolState, router: str, due: int) -> int:
    """End a router's lease; its waiting entries go at `due` (ms). Return how many entries were freed."""
    pool.routers.discard(router)
    pool.bells.discard(router)
    pool.reports.pop(router, None)
    pool.parted.add(router, due)
    owned = pool.owners.get(router)
    freed = 0
    for request_id in [*sorted(owned.granted), *sorted(owned.running)] if owned else []:
        entry = pool.entries[request_id]
        if entry.replica not in pool.replicas:
            drop(pool, entry)
            freed += 1
    return freed


def unpark(pool: PoolState, router: str) -> None:
    """Put parked entries of a returning router back at their places, at most CHUNK of them."""
    owned = pool.owners.get(router)
    if owned is None:
        return
    some, owned.parked = owned.parked[:CHUNK], owned.parked[CHUNK:]
    for _, request_id in some:
        enter_line(pool, pool.entries[request_id])


def drop(pool: PoolState, entry: Entry) -> None:
    """Forget an entry, wherever it is."""
    if entry.state == IN_FLIGHT:
        free_slot(pool, entry)
    else:
        withdraw(pool, entry)
    forget(pool, entry)


def drop_waiting(pool: PoolState, router: str, limit: int) -> int:
    """Forget at most `limit` entries of a router that hold no slot. Return how many, 0 if none is left."""
    owned = pool.owners.get(router)
    if owned is None:
        return 0
    waiting = [name for _, name in owned.waiting[:limit]]
    parked = [name for _, name in owned.parked[:limit]]
    expired, cancelled = (sorted(name for name, kind in owned.orders.items() if kind == letter) for letter in "ec")
    owned.moved.clear()
    pool.tidy_owner(router)
    dropped = 0
    for name in (*waiting, *parked, *expired, *cancelled):
        entry = pool.entries.get(name)
        if entry is not None and entry.state != IN_FLIGHT and dropped < limit:
            drop(pool, entry)
            dropped += 1
    return dropped


def remove_replica(pool: PoolState, replica: str) -> int:
    """Remove a replica. Entries of living routers stay. Return how many entries were freed."""
    load = pool.loads.pop(replica, None)
    if load is not None and load.reserved:
        entry = pool.entries.get(load.reserved)
        if entry is not None and entry.reserved == replica:
            entry.reserved = ""
    pool.free.discard(replica)
    if pool.replicas.discard(replica):
        pool.version += 1
    slots = pool.slots.get(replica)
    freed = 0
    for request_id in [*sorted(slots.granted), *sorted(slots.started)] if slots else []:
        entry = pool.entries[request_id]
        if not pool.router_live(entry.owner):
            drop(pool, entry)
            freed += 1
    return freed


def reap(pool: PoolState) -> int:
    """Apply leases and deadlines that ended; return how many entries were freed. Do nothing while every lease counts as
    live.
    """
    if pool.lenient:
        return 0
    freed, moved = 0, 0
    for router in pool.routers.up_to(pool.now):
        till = pool.routers.score(router)
        freed += part_router(pool, router, int(till or 0) + pool.limits.attach_grace_ms)
    for replica in pool.replicas.up_to(pool.now):
        freed += remove_replica(pool, replica)
    for _, router in pool.parted.first(len(pool.parted)):
        moved += park(pool, router, CHUNK - moved)
    freed += _drop_parted(pool, CHUNK - moved)
    for request_id in pool.deadlines.up_to(pool.now - 1, CHUNK):
        order(pool, pool.entries[request_id], "e")
        freed += 1
    if freed + moved:
        pool.want_free(8)
    tidy_keys(pool)
    tidy_tenants(pool)
    tidy_ledger(pool)
    return freed


def _drop_parted(pool: PoolState, limit: int) -> int:
    gone = 0
    for router in pool.parted.up_to(pool.now):
        if gone < limit:
            dropped = drop_waiting(pool, router, limit - gone)
            gone += dropped
            if not dropped:
                pool.parted.discard(router)
                pool.links.pop(router, None)
    return gone


def park(pool: PoolState, router: str, limit: int) -> int:
    """Take at most `limit` waiting entries of a router without lease out of the line. They keep their place. Return how
    many.
    """
    owned = pool.owners.get(router)
    waiting = owned.waiting[:limit] if owned else []
    for place, request_id in waiting:
        entry = pool.entries[request_id]
        leave_line(pool, entry)
        entry.state = PARKED
        insert_place(pool.owned(router).parked, (place, request_id))
    return len(waiting)
