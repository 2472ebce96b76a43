"""Slots: `fill` and `grant`, the only code that grants; mirrors redis/lua/fill.lua, which has the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cluster.queue.memory.choice import batch_full, choose, fits, suits
from cluster.queue.memory.keys import close_key
from cluster.queue.memory.line import enter_line, know_router, leave_line, next_place, note_estimate, serve
from cluster.queue.memory.quotas import leave_tenant
from cluster.queue.memory.state import (
    GRANTS_PER_CALL,
    GRANTS_PER_REPLICA,
    IN_FLIGHT,
    ORDERED,
    OWED_GRANTS,
    OWED_LEAST,
    PARKED,
    REPLICAS_TRIED,
    WAITING,
    Entry,
    Load,
    PoolState,
    remove_place,
)
from penstock.models import ReplicaState, RequestClass

_BATCH = int(RequestClass.BATCH)


def takes_grants(pool: PoolState, replica: str, load: Load | None) -> bool:
    """Return whether a replica can take a grant now."""
    return (
        load is not None
        and load.state is ReplicaState.READY
        and not load.closed
        and load.held + load.extra < load.windows.sequences
        and pool.replica_live(replica)
    )


def grant(pool: PoolState, entry: Entry, replica: str, load: Load, *, alone: bool) -> None:
    """Give an entry a slot under its next attempt. `alone`: no other entry waits, so no class competes."""
    request = entry.request
    tokens = 0
    if entry.charged < 0:
        tokens = 0 if request.resume else request.prompt_tokens + request.expected_tokens
        entry.charged = tokens
        note_estimate(pool, entry, 1)
        if not alone:
            _account(pool, entry, tokens)
    serve(pool, entry, tokens / request.weight, at_grant=True)
    if entry.state == WAITING:
        if entry.late:
            pool.late_skips.pop(entry.line, None)
        leave_line(pool, entry)
    pool.granted += 1
    pool.granted_ever[entry.line[0]] += 1
    entry.number += 1
    entry.attempt = f"{request.attempt_base}.{entry.number}"
    entry.replica, entry.state, entry.granted, entry.beats = replica, IN_FLIGHT, pool.now, 0
    entry.prefilled = False
    pool.entries[entry.id] = entry
    pool.owned(entry.owner).granted.add(entry.id)
    pool.slots_of(replica).granted[entry.id] = entry.attempt
    pool.slot_count += 1
    load.held += 1
    load.held_batch += entry.line[0] == _BATCH
    load.kv += request.kv_tokens
    load.prefill += request.prompt_tokens
    pool.put_load(replica, load)
    if pool.caused is not None and entry.owner == pool.caller:
        pool.caused.append(entry)
    else:
        pool.ring(entry.owner)


def fill(pool: PoolState, replica: str, limit: int) -> None:
    """Grant up to `limit` entries on a replica."""
    load = pool.loads.get(replica)
    for _ in range(limit):
        if load is None or not takes_grants(pool, replica, load) or not any(pool.line_counts):
            return
        entry = _reservation(pool, replica, load)
        if entry is not None and not fits(load, entry):
            return
        entry = entry or choose(pool, replica, load)
        if entry is None:
            return
        grant(pool, entry, replica, load, alone=False)


def run_fills(pool: PoolState) -> None:
    """Fill the replicas that the call marked."""
    while pool.todo and pool.granted < GRANTS_PER_CALL:
        fill(pool, pool.todo.pop(0), GRANTS_PER_REPLICA)


def find_room(pool: PoolState, entry: Entry, use: Callable[[str, Load], bool]) -> None:
    """Offer `use` each replica where an entry may start now: those that it prefers, then the least loaded. `use`
    returns True to stop.
    """
    for replica in _asked(pool, entry):
        load = pool.loads.get(replica)
        if (
            load is not None
            and takes_grants(pool, replica, load)
            and load.reserved in ("", entry.id)
            and suits(pool, replica, load, entry)
            and fits(load, entry)
            and not batch_full(load, entry.line[0])
            and use(replica, load)
        ):
            return


def _asked(pool: PoolState, entry: Entry) -> Iterator[str]:
    yield from entry.request.preferred_replicas
    # Read only now: the preferred replicas may have been filled with other entries meanwhile.
    for _, replica in pool.free.first(REPLICAS_TRIED):
        yield replica


def place(pool: PoolState, entry: Entry) -> None:
    """Grant a waiting entry at once if its turn allows it."""
    tries = 0

    def use(replica: str, _: Load) -> bool:
        nonlocal tries
        fill(pool, replica, 1)
        tries += 1
        return entry.state != WAITING or tries == 4

    find_room(pool, entry, use)


def free_slot(pool: PoolState, entry: Entry) -> None:
    """Free the slot of an entry in flight; `run_fills` looks at its replica."""
    replica, entry.replica = entry.replica, ""
    owned = pool.owned(entry.owner)
    owned.granted.discard(entry.id)
    owned.running.discard(entry.id)
    pool.tidy_owner(entry.owner)
    slots = pool.slots_of(replica)
    slots.granted.pop(entry.id, None)
    slots.started.pop(entry.id, None)
    pool.tidy_slots(replica)
    pool.slot_count -= 1
    if entry.order == "f":
        clear_order(pool, entry)
    load = pool.loads.get(replica)
    if load is not None:
        load.held = max(0, load.held - 1)
        load.held_batch = max(0, load.held_batch - (entry.line[0] == _BATCH))
        load.kv = max(0, load.kv - entry.request.kv_tokens)
        if not entry.prefilled:
            load.prefill = max(0, load.prefill - entry.request.prompt_tokens)
        pool.put_load(replica, load)
        pool.want_fill(replica)


def clear_order(pool: PoolState, entry: Entry) -> None:
    """Remove an entry's order from its owner's mail."""
    pool.owned(entry.owner).orders.pop(entry.id, None)
    pool.tidy_owner(entry.owner)
    if entry.order == "f":
        pool.yielding -= 1
    entry.order = ""


def forget(pool: PoolState, entry: Entry, *, ended: bool = False) -> None:
    """Remove an entry that is neither in the line nor in a slot. With the last entry the counters are reset. `ended`:
    its owner says that it is over.
    """
    pool.entries.pop(entry.id, None)
    if entry.order:
        clear_order(pool, entry)
    if entry.request.client_key:
        close_key(pool, entry, ended=ended)
    leave_tenant(pool, entry)
    note_estimate(pool, entry, -1)
    if not pool.entries:
        for idle in pool.idle:
            idle.clear()
        pool.virtual, pool.served, pool.served_all = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0.0
        pool.moved_at = 0


def withdraw(pool: PoolState, entry: Entry) -> None:
    """Take a waiting or parked entry out of the line or its parking place."""
    if entry.state == WAITING:
        leave_line(pool, entry)
    elif entry.state == PARKED:
        remove_place(pool.owned(entry.owner).parked, (entry.place, entry.id))
        pool.tidy_owner(entry.owner)


def order(pool: PoolState, entry: Entry, kind: str) -> None:
    """Order the owner of an entry to end it: "c" cancel, "e" expired. A waiting entry leaves the line. "f" orders an
    entry in flight to give way.
    """
    if entry.order == "f" and kind != "f":
        clear_order(pool, entry)
    if entry.order:
        return
    if entry.state != IN_FLIGHT:
        withdraw(pool, entry)
        entry.state = ORDERED
    entry.order = kind
    if kind == "f":
        pool.yielding += 1
    pool.owned(entry.owner).orders[entry.id] = kind
    pool.ring(entry.owner)


def give_back(pool: PoolState, entry: Entry) -> None:
    """Move an entry from its slot back to the head of its tenant's list."""
    know_router(pool, entry.owner)
    free_slot(pool, entry)
    if entry.order:
        entry.state = ORDERED
        return
    entry.place = next_place(pool, at_head=True)
    enter_line(pool, entry)


def tell_moved(pool: PoolState, request_id: str, old: str, new: str) -> None:
    """Tell the old router that the new one has an entry now, unless the old one is gone."""
    if new in pool.owners:
        pool.owners[new].moved.discard(request_id)
        pool.tidy_owner(new)
    if old in pool.routers:
        pool.owned(old).moved.add(request_id)
        pool.ring(old)


def move(pool: PoolState, entry: Entry, router: str) -> None:
    """Give an entry to another router, and tell the old router."""
    old, request_id = pool.owned(entry.owner), entry.id
    was = entry.owner
    started = request_id in old.running
    order_kind = old.orders.pop(request_id, "")
    if entry.state == IN_FLIGHT:
        old.granted.discard(request_id)
        old.running.discard(request_id)
    else:
        withdraw(pool, entry)
    tell_moved(pool, request_id, was, router)
    pool.tidy_owner(was)
    entry.owner = router
    new = pool.owned(router)
    if entry.state == IN_FLIGHT:
        (new.running if started else new.granted).add(request_id)
        if order_kind:
            new.orders[request_id] = order_kind
        entry.beats = 0
    else:
        enter_line(pool, entry)
    know_router(pool, router)


def _account(pool: PoolState, entry: Entry, tokens: int) -> None:
    competes = [bool(count) for count in pool.line_counts]
    competes[_BATCH] = competes[_BATCH] and not pool.batch_yields
    if sum(competes) < 2:
        return
    class_, shares = entry.line[0], pool.limits.class_shares
    entry.counted = True
    pool.served_all += tokens
    pool.served[class_] += tokens
    for other in range(3):
        if not competes[other]:
            pool.served[other] = shares[other] * pool.served_all
    least = shares[class_] * pool.served_all - OWED_GRANTS * max(OWED_LEAST, tokens)
    pool.served[class_] = max(pool.served[class_], least)


def _reservation(pool: PoolState, replica: str, load: Load) -> Entry | None:
    """Return the entry that a replica is reserved for. Drop a reservation whose entry can no longer run there."""
    if not load.reserved:
        return None
    entry = pool.entries.get(load.reserved)
    held = entry is not None and entry.reserved == replica
    full = entry is not None and batch_full(load, entry.line[0])
    if entry is not None and held and suits(pool, replica, load, entry) and not full:
        return entry
    if entry is not None and held:
        entry.reserved = ""
    load.reserved = ""
    pool.put_load(replica, load)
    return None
