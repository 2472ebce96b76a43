"""Waiting line and the tenants' service counters; mirrors redis/lua/line.lua, which has the reasons."""

from __future__ import annotations

import math
from bisect import bisect_left

from cluster.queue.memory.state import (
    LATE_FROM,
    LATE_LEAST,
    LATE_PER_CALL,
    LATE_PER_MS,
    LATE_SHIFT,
    WAITING,
    Entry,
    PoolState,
    insert_place,
    remove_place,
)


def floor_of(pool: PoolState, class_: int) -> tuple[float, bool]:
    """Return the settled service of the tenant that is next, or the virtual time if no tenant waits; and whether one
    waits.
    """
    head = pool.active[class_].first(1)
    if not head:
        return pool.virtual[class_], False
    service, tenant = head[0]
    return service - pool.outstanding.get((class_, tenant), 0) / 1000, True


def note_estimate(pool: PoolState, entry: Entry, sign: int) -> None:
    """Add an entry's estimated charge to its tenant's unsettled charges (sign 1), or take it off (sign -1)."""
    if entry.charged <= 0:
        return
    amount = math.floor(entry.charged / entry.request.weight * 1000 + 0.5)
    left = pool.outstanding.get(entry.line, 0) + sign * amount
    if left > 0:
        pool.outstanding[entry.line] = left
    else:
        pool.outstanding.pop(entry.line, None)


def serve(pool: PoolState, entry: Entry, amount: float, *, at_grant: bool) -> None:
    """Add weighted tokens to a tenant's service."""
    class_, tenant = entry.line
    active, idle = pool.active[class_], pool.idle[class_]
    floor, any_active = floor_of(pool, class_)
    score = active.score(tenant)
    if score is not None:
        if at_grant:
            pool.virtual[class_] = max(pool.virtual[class_], floor)
        if amount:
            active.add(tenant, score + amount)
        return
    score = _lifted(idle.score(tenant), floor)
    if at_grant:
        pool.virtual[class_] = max(pool.virtual[class_], floor if any_active else score)
        if not any_active:
            floor = pool.virtual[class_]
    score += amount
    if score > floor:
        idle.add(tenant, score)
    else:
        idle.discard(tenant)
    idle.prune(floor)


def next_place(pool: PoolState, *, at_head: bool) -> int:
    """Return the place for a return (head) or an arrival (tail)."""
    pool.time = pool.now
    if at_head:
        pool.head -= 1
        return pool.head
    pool.tail += 1
    return pool.tail - 1


def know_router(pool: PoolState, router: str) -> None:
    """Give a router that is unknown, or retired, a lease that starts now."""
    if router not in pool.routers and router not in pool.parted:
        pool.routers.add(router, pool.now + pool.limits.lease_ms)


def enter_line(pool: PoolState, entry: Entry) -> None:
    """Put an entry into the line at its place. A returning tenant's service is raised to the floor."""
    class_, tenant = entry.line
    active, idle = pool.active[class_], pool.idle[class_]
    if tenant not in active:
        floor, _ = floor_of(pool, class_)
        active.add(tenant, _lifted(idle.score(tenant), floor))
        idle.discard(tenant)
    entry.state = WAITING
    insert_place(pool.lines.setdefault(entry.line, []), (entry.place, entry.id))
    pool.line_counts[class_] += 1
    insert_place(pool.owned(entry.owner).waiting, (entry.place, entry.id))
    for replica in entry.request.preferred_replicas:
        pool.preferences[replica] = pool.preferences.get(replica, 0) + 1
    if entry.start_by:
        pool.deadlines.add(entry.id, entry.start_by)
    pool.entries[entry.id] = entry


def leave_line(pool: PoolState, entry: Entry) -> None:
    """Take an entry out of the line. The caller sets its next state."""
    class_, tenant = entry.line
    places = pool.lines[entry.line]
    remove_place(places, (entry.place, entry.id))
    pool.line_counts[class_] -= 1
    remove_place(pool.owned(entry.owner).waiting, (entry.place, entry.id))
    pool.tidy_owner(entry.owner)
    pool.skips.pop(entry.id, None)
    for replica in entry.request.preferred_replicas:
        pool.preferences[replica] -= 1
        if not pool.preferences[replica]:
            del pool.preferences[replica]
    pool.deadlines.discard(entry.id)
    _drop_reservation(pool, entry)
    if entry.late and late_head(pool, entry.line) is None:
        pool.late_skips.pop(entry.line, None)
    if not places:
        del pool.lines[entry.line]
        _deactivate(pool, class_, tenant)


def late_head(pool: PoolState, line: tuple[int, str]) -> Entry | None:
    """Return the oldest late entry of a class and tenant."""
    places = pool.lines.get(line, [])
    first = bisect_left(places, (LATE_FROM, ""))
    return pool.entries[places[first][1]] if first < len(places) else None


def late_ones(pool: PoolState, line: tuple[int, str]) -> list[Entry]:
    """Return the late entries of a class and tenant, oldest first."""
    places = pool.lines.get(line, [])
    return [pool.entries[id_] for _, id_ in places[bisect_left(places, (LATE_FROM, "")) :]]


def falls_behind(pool: PoolState, entry: Entry) -> bool:
    """Move a waiting entry that has become late behind its tenant's other entries; return whether it was moved."""
    if not entry.late_at or pool.now < entry.late_at or entry.late or pool.fell_behind >= _may_fall(pool):
        return False
    pool.fell_behind += 1
    pool.moved_at = pool.now
    waiting, places = pool.owned(entry.owner).waiting, pool.lines[entry.line]
    remove_place(places, (entry.place, entry.id))
    remove_place(waiting, (entry.place, entry.id))
    entry.place += LATE_SHIFT
    insert_place(places, (entry.place, entry.id))
    insert_place(waiting, (entry.place, entry.id))
    pool.skips.pop(entry.id, None)
    return True


def _may_fall(pool: PoolState) -> int:
    if pool.may_fall is None:
        pool.may_fall = min(LATE_PER_CALL, LATE_LEAST + LATE_PER_MS * max(0, pool.now - pool.moved_at))
    return pool.may_fall


def position(pool: PoolState, entry: Entry) -> int:
    """Estimate the number of waiting entries ahead; exact if only one tenant of the class waits."""
    if entry.state != WAITING:
        return 0
    class_, tenant = entry.line
    places = pool.lines[entry.line]
    mine = bisect_left(places, (entry.place, entry.id))
    others = pool.line_counts[class_] - len(places)
    rounds = pool.active[class_].rank(tenant) + mine * (len(pool.active[class_]) - 1)
    return sum(pool.line_counts[:class_]) + mine + min(others, rounds)


def _lifted(score: float | None, floor: float) -> float:
    return floor if score is None or score < floor else score


def _drop_reservation(pool: PoolState, entry: Entry) -> None:
    replica, entry.reserved = entry.reserved, ""
    load = pool.loads.get(replica) if replica else None
    if load is not None and load.reserved == entry.id:
        load.reserved = ""
        pool.put_load(replica, load)
        pool.want_fill(replica)


def _deactivate(pool: PoolState, class_: int, tenant: str) -> None:
    active, idle = pool.active[class_], pool.idle[class_]
    score = active.score(tenant)
    active.discard(tenant)
    floor, _ = floor_of(pool, class_)
    if score is not None and score > floor:
        idle.add(tenant, score)
    idle.prune(floor)
