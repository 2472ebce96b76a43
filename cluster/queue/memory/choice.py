"""Choice of the next entry for a replica; mirrors `choose` in redis/lua/fill.lua, which has the reasons."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from cluster.queue.memory.line import falls_behind, late_head, late_ones
from cluster.queue.memory.state import LATE_FROM, WAITING, WALL_MS, WALLS_PER_CALL, Entry, Load, PoolState
from penstock.models import RequestClass

_BATCH = int(RequestClass.BATCH)


def fits(load: Load, entry: Entry) -> bool:
    """Return whether a replica has room for an entry. A prefill larger than the window starts when it is alone."""
    windows, request = load.windows, entry.request
    return (
        load.held + load.extra < windows.sequences
        and load.kv + request.kv_tokens <= windows.kv_tokens
        and (load.prefill == 0 or load.prefill + request.prompt_tokens <= windows.prefill_tokens)
    )


def batch_full(load: Load, class_: int) -> bool:
    """Return whether the class is BATCH and has all the slots that the replica leaves it."""
    return class_ == _BATCH and load.batch_slots is not None and load.held_batch >= load.batch_slots


def suits(pool: PoolState, replica: str, load: Load, entry: Entry) -> bool:
    """Return whether an entry could be granted on this replica now if there were room."""
    return (
        entry.state == WAITING
        and (entry.start_by == 0 or pool.now <= entry.start_by)
        and entry.request.kv_tokens <= load.windows.kv_tokens
        and pool.router_live(entry.owner)
        and replica in pool.links.get(entry.owner, ())
    )


def choose(pool: PoolState, replica: str, load: Load) -> Entry | None:
    """Return the first of `lookahead` candidates that prefers the replica, else the first that fits.

    An entry that was passed over `lookahead` times is passed no more. If it needs more than what is free, it reserves
    the replica.
    """
    wanted = replica in pool.preferences
    passed: list[Entry] = []
    fallback: Entry | None = None
    fallback_at = 0

    def has_fallback() -> bool:
        return fallback is not None

    def gives_way(entry: Entry) -> bool:
        in_time = fallback is not None and not fallback.late
        return in_time and entry.late and not _worn(pool, entry)

    for entry in _candidates(pool, replica, load, gives_way, has_fallback):
        worn = _worn(pool, entry)
        if fits(load, entry):
            if not wanted or replica in entry.request.preferred_replicas:
                return _take(pool, entry, passed)
            if fallback is None:
                fallback, fallback_at = entry, len(passed)
            if worn:
                break
        elif entry.reserved:
            continue
        elif worn:
            if fallback is None:
                entry.reserved, load.reserved = replica, entry.id
                pool.put_load(replica, load)
                return None
            break
        passed.append(entry)
    return None if fallback is None else _take(pool, fallback, passed[:fallback_at])


def _take(pool: PoolState, entry: Entry, passed: list[Entry]) -> Entry:
    for other in passed:
        pool.skips[other.id] = pool.skips.get(other.id, 0) + 1
    if not entry.late and late_head(pool, entry.line) is not None:
        pool.late_skips[entry.line] = pool.late_skips.get(entry.line, 0) + 1
    return entry


def _worn(pool: PoolState, entry: Entry) -> bool:
    """Return whether an entry must not be passed over any more. A tenant's late entries count together."""
    most = pool.limits.lookahead
    return pool.skips.get(entry.id, 0) >= most or (entry.late and pool.late_skips.get(entry.line, 0) >= most)


def _class_order(pool: PoolState, load: Load) -> list[int]:
    """Return the classes in order of service on a replica: those below their reserved share, then by urgency."""
    shares = pool.limits.class_shares
    waiting = [class_ for class_ in range(3) if pool.line_counts[class_]]
    below = [c for c in waiting if shares[c] > 0 and pool.served[c] < shares[c] * pool.served_all]
    if _BATCH in below and pool.batch_yields:
        below.remove(_BATCH)
    return below + [c for c in waiting if c not in below and not batch_full(load, c)]


def _candidates(
    pool: PoolState, replica: str, load: Load, gives_way: Callable[[Entry], bool], found: Callable[[], bool]
) -> Iterator[Entry]:
    """Yield at most `lookahead` entries that suit the replica, in fair order, out of the first 8 x `lookahead`.

    After an entry that `gives_way` the rest of its tenant is left out. If these are too few and none was `found` that
    fits, entries follow that can run here wherever they stand in the line.
    """
    order, met = _class_order(pool, load), set[str]()
    if replica not in pool.beyond:
        if len(pool.beyond) >= WALLS_PER_CALL:
            return
        walled = pool.now < load.walled
        raw_limit = pool.limits.lookahead * (1 if walled else 8)
        raw = yield from _first(pool, replica, load, order, raw_limit, met, gives_way)
        if len(met) >= pool.limits.lookahead or raw < raw_limit or found():
            return
        pool.beyond[replica] = reachable(pool, replica, order, met)
        if not walled:
            load.walled = pool.now + WALL_MS
    for entry in pool.beyond[replica]:
        if len(met) >= pool.limits.lookahead:
            return
        if not gives_way(entry) and entry.line[0] in order and suits(pool, replica, load, entry):
            met.add(entry.id)
            yield entry


def _first(
    pool: PoolState,
    replica: str,
    load: Load,
    order: list[int],
    raw_limit: int,
    met: set[str],
    gives_way: Callable[[Entry], bool],
) -> Generator[Entry, None, int]:
    """Yield entries at the front of the line that suit the replica, and add them to `met`. Return the number of entries
    that it looked at.
    """
    raw = 0
    for class_ in order:
        walk = Walk(pool, class_, raw_limit)
        while len(met) < pool.limits.lookahead and raw < raw_limit:
            entry = walk.next()
            if entry is None:
                break
            raw += 1
            if gives_way(entry):
                walk.drop()
            elif suits(pool, replica, load, entry):
                met.add(entry.id)
                walk.charge(entry)
                yield entry
    return raw


def reachable(pool: PoolState, replica: str, order: list[int], known: set[str]) -> list[Entry]:
    """Return entries of the routers that reach a replica, in fair order: the oldest and the newest of each."""
    most = pool.limits.lookahead
    routers = [name for name in pool.live_names(pool.routers) if replica in pool.links.get(name, ())][: 2 * most]
    each = max(1, most // len(routers)) if routers else 0
    found: dict[str, Entry] = {}
    for router in routers:
        waiting = pool.owners[router].waiting if router in pool.owners else []
        late = bisect_left(waiting, (LATE_FROM, ""))
        for _, request_id in (*waiting[:each], *waiting[max(0, late - each) : late]):
            entry = pool.entries[request_id]
            if request_id not in known and entry.line[0] in order:
                found[request_id] = entry
    service: dict[tuple[int, str], float] = {}
    keys: dict[str, tuple[int, float, int]] = {}
    for entry in sorted(found.values(), key=lambda entry: entry.place):
        class_, tenant = entry.line
        before = service.get(entry.line, pool.active[class_].score(tenant) or 0.0)
        keys[entry.id] = order.index(class_), before, entry.place
        request = entry.request
        service[entry.line] = before + (request.prompt_tokens + request.expected_tokens) / request.weight
    return sorted(found.values(), key=lambda entry: keys[entry.id])


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    service: float
    places: list[tuple[int, str]]
    """The tenant's line itself, no copy."""
    taken: int = 0
    first: list[Entry] | None = None
    """Late entries that were passed over too often and now come first; None before they were looked up."""
    shown: set[str] = field(default_factory=set)
    """Ids of those late entries that were returned."""


class Walk:
    """Iterator over one class in fair order: the tenant of least service first, charged for what it would get."""

    def __init__(self, pool: PoolState, class_: int, limit: int) -> None:
        self._pool = pool
        self._class = class_
        self._limit = limit
        self._tenants = self._load(1)
        self._last: _Tenant | None = None

    def next(self) -> Entry | None:
        """Return the next entry; None at the end."""
        if self._last is not None and self._limit:
            # Other tenants are read only when a second entry is asked for.
            self._tenants += self._load(self._limit)[1:]
            self._limit = 0
        while self._tenants:
            best = min(self._tenants, key=lambda tenant: tenant.service)
            entry = self._pull(best)
            if entry is not None:
                self._last = best
                return entry
            self._tenants.remove(best)
        return None

    def _pull(self, tenant: _Tenant) -> Entry | None:
        pool, line = self._pool, (self._class, tenant.name)
        if tenant.first is None:
            worn = pool.late_skips.get(line, 0) >= pool.limits.lookahead
            tenant.first = late_ones(pool, line)[: pool.limits.lookahead] if worn else []
        if tenant.first:
            entry = tenant.first.pop(0)
            tenant.shown.add(entry.id)
            return entry
        while tenant.taken < len(tenant.places):
            entry = pool.entries[tenant.places[tenant.taken][1]]
            if falls_behind(pool, entry):
                continue
            tenant.taken += 1
            if entry.id not in tenant.shown:
                return entry
        return None

    def drop(self) -> None:
        """Return no more entries of the last entry's tenant."""
        if self._last is not None:
            self._tenants.remove(self._last)

    def charge(self, entry: Entry) -> None:
        """Charge the last entry's tenant for an entry."""
        if self._last is not None:
            request = entry.request
            self._last.service += (request.prompt_tokens + request.expected_tokens) / request.weight

    def _load(self, n: int) -> list[_Tenant]:
        first = self._pool.active[self._class].first(n)
        return [_Tenant(tenant, service, self._pool.lines[self._class, tenant]) for service, tenant in first]
