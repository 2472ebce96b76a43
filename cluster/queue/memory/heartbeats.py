"""Heartbeats; mirrors redis/lua/heartbeat_router.lua and redis/lua/heartbeat_replica.lua, which have the reasons."""

from __future__ import annotations

from cluster.queue.entries import Grant, Mail, Order
from cluster.queue.heartbeats import (
    PoolView,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaRecord,
    RouterBeat,
    RouterBeatReply,
    RouterReport,
)
from cluster.queue.memory.fill import give_back, run_fills
from cluster.queue.memory.leases import drop, mark_started, reap, tick, unpark
from cluster.queue.memory.line import late_head, position
from cluster.queue.memory.preempt import preempt
from cluster.queue.memory.state import IN_FLIGHT, REPLICAS_SHOWN, TENANTS_SEEN, WAITING, Load, PoolState, Slots
from penstock.models import ReplicaState, RequestClass

_ORDER_KINDS = {"c": "cancel", "d": "moved", "e": "expired", "f": "preempt"}


def mailbox(pool: PoolState, router: str) -> Mail:
    """Read a router's mailbox and let its bell ring again."""
    pool.bells.discard(router)
    owned = pool.owners.get(router)
    if owned is None:
        return Mail()
    entries = [pool.entries[name] for name in sorted(owned.granted)]
    orders = sorted([*((kind, name) for name, kind in owned.orders.items()), *(("d", name) for name in owned.moved)])
    return Mail(
        tuple(Grant(entry.id, entry.attempt, entry.replica) for entry in entries),
        tuple(Order(name, _ORDER_KINDS[kind]) for kind, name in orders),
    )


def beat_router(pool: PoolState, beat: RouterBeat, run_id: str) -> RouterBeatReply:
    """Apply a router's heartbeat."""
    router = beat.router_id
    tick(pool, run_id)
    pool.reads_mail = True
    pool.routers.add(router, pool.now + pool.limits.lease_ms)
    pool.parted.discard(router)
    unpark(pool, router)
    if beat.report:
        pool.reports[router] = pool.now, beat.report
    old = pool.links.get(router, set())
    for replica in beat.connected:
        if replica not in old:
            pool.want_fill(replica)
    pool.links[router] = set(beat.connected)
    for request_id, attempt in beat.started:
        entry = pool.entries.get(request_id)
        if entry and entry.state == IN_FLIGHT and entry.attempt == attempt and entry.owner == router:
            mark_started(pool, entry)
    _revoke_stale(pool, router, busy=beat.busy)
    reap(pool)
    pool.want_free(8)
    run_fills(pool)
    asked = ((name, pool.entries.get(name)) for name in beat.positions_of)
    waiting = {name: entry for name, entry in asked if entry and entry.state == WAITING and entry.owner == router}
    return RouterBeatReply(
        mail=mailbox(pool, router),
        replicas=_registry(pool, beat.registry_version),
        registry_version=pool.version,
        waiting=(pool.line_counts[0], pool.line_counts[1], pool.line_counts[2]),
        running=pool.slot_count,
        routers=tuple(sorted(pool.live_names(pool.routers))),
        positions={name: position(pool, entry) for name, entry in waiting.items()},
        run_id=pool.store_id,
        granted=(pool.granted_ever[0], pool.granted_ever[1], pool.granted_ever[2]),
        time_ms=pool.now,
        point=pool.orders()[0],
        relief=pool.orders()[1],
        marks=pool.marks,
    )


def beat_replica(pool: PoolState, beat: ReplicaBeat, run_id: str) -> ReplicaBeatReply:
    """Apply a replica's heartbeat."""
    replica = beat.replica_id
    tick(pool, run_id)
    pool.replicas.add(replica, pool.now + pool.limits.lease_ms)
    load = pool.loads.get(replica)
    fresh = load is None
    if load is None:
        load = pool.loads[replica] = Load()
    if fresh or (load.record, load.state, load.windows) != (beat.record, beat.state, beat.windows):
        pool.version += 1
    last_beat, load.beat = load.beat, pool.now
    load.record, load.stats = beat.record, dict(beat.stats)
    load.windows, load.state, load.closed = beat.windows, beat.state, False
    load.batch_slots = beat.batch_slots
    if beat.state is not ReplicaState.READY and load.reserved:
        entry = pool.entries.get(load.reserved)
        if entry is not None and entry.reserved == replica:
            entry.reserved = ""
        load.reserved = ""
    for request_id in beat.prefilled:
        entry = pool.entries.get(request_id)
        if entry and entry.state == IN_FLIGHT and entry.replica == replica and not entry.prefilled:
            entry.prefilled = True
            load.prefill = max(0, load.prefill - entry.request.prompt_tokens)
    _reconcile(pool, beat, load, last_beat, fresh=fresh)
    pool.put_load(replica, load)
    reap(pool)
    pool.want_fill(replica)
    run_fills(pool)
    produced = (*beat.produced, *(0 for _ in beat.running))
    preempt(pool, replica, load, dict(zip(beat.running, produced, strict=False)))
    return ReplicaBeatReply(tuple(sorted(pool.live_names(pool.routers))), pool.store_id, *pool.orders())


def view(pool: PoolState) -> PoolView:
    """Return the autoscaler's view of a pool; mirrors redis/lua/observe.lua."""
    routers = tuple(sorted(pool.live_names(pool.routers)))
    return PoolView(
        time_ms=pool.now,
        run_id=pool.store_id,
        replicas=tuple(_record(pool, name, pool.loads[name]) for name in sorted(pool.live_names(pool.replicas))),
        reports=tuple(
            RouterReport(name, pool.now - pool.reports[name][0], pool.reports[name][1])
            for name in routers
            if name in pool.reports
        ),
        waiting=(pool.line_counts[0], pool.line_counts[1], pool.line_counts[2]),
        longest_wait_ms=(_longest(pool, 0), _longest(pool, 1), _longest(pool, 2)),
        running=pool.slot_count,
        point=pool.orders()[0],
        routers=routers,
    )


def _longest(pool: PoolState, class_: int) -> int:
    waits = [0]
    for _, tenant in pool.active[class_].first(TENANTS_SEEN):
        line = class_, tenant
        oldest = (pool.entries[pool.lines[line][0][1]], late_head(pool, line))
        waits += [pool.now - entry.submitted for entry in oldest if entry is not None]
    return max(waits)


def _revoke_stale(pool: PoolState, router: str, *, busy: bool) -> None:
    owned = pool.owners.get(router)
    for request_id in sorted(owned.granted) if owned else []:
        entry = pool.entries[request_id]
        entry.beats += not busy
        if entry.beats >= pool.limits.grant_heartbeats:
            give_back(pool, entry)


def _reconcile(pool: PoolState, beat: ReplicaBeat, load: Load, last_beat: int, *, fresh: bool) -> None:
    """Compare the slots on record with what the replica says it runs, and correct its load."""
    replica = beat.replica_id
    running = set(beat.running)
    unknown = len(running)
    recount = fresh or (beat.kv_tokens is None and load.reported)
    held = unlisted_kv = kv = prefill = batch = 0
    slots = pool.slots.get(replica) or Slots()
    # The script reads started slots first, then granted ones.
    started, granted = sorted(slots.started.items()), sorted(slots.granted.items())
    for request_id, attempt in [*started, *granted]:
        listed = (request_id, attempt) in running
        entry = pool.entries[request_id]
        if listed:
            unknown -= 1
            mark_started(pool, entry)
        elif entry.granted < last_beat and not pool.router_live(entry.owner):
            drop(pool, entry)
            continue
        held += 1
        batch += entry.request.request_class is RequestClass.BATCH
        unlisted_kv += 0 if listed else entry.request.kv_tokens
        kv += entry.request.kv_tokens
        prefill += 0 if entry.prefilled else entry.request.prompt_tokens
    load.held, load.extra, load.held_batch = held, unknown, batch
    if fresh:
        load.prefill = prefill
    if beat.kv_tokens is not None:
        load.kv = beat.kv_tokens + unlisted_kv
    elif recount:
        load.kv = kv
    load.reported = beat.kv_tokens is not None


def _registry(pool: PoolState, known: int) -> tuple[ReplicaRecord, ...] | None:
    names = pool.live_names(pool.replicas)
    if known == pool.version and len(names) > REPLICAS_SHOWN and pool.now // 1000 % 4:
        return None
    return tuple(_record(pool, name, pool.loads[name]) for name in sorted(names))


def _record(pool: PoolState, name: str, load: Load) -> ReplicaRecord:
    return ReplicaRecord(
        replica_id=name,
        record=load.record or b"",
        state=load.state or ReplicaState.STARTING,
        windows=load.windows,
        sequences=load.held + load.extra,
        kv_tokens=load.kv,
        prefill_tokens=load.prefill,
        heartbeat_age_ms=pool.now - load.beat,
        stats=load.stats,
    )
