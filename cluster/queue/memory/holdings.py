"""Pages of what is on record for a router; mirrors redis/lua/holdings.lua."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.queue.entries import Holding, Holdings, Where
from cluster.queue.memory.state import PoolState


def holdings(pool: PoolState, router: str, after: bytes, limit: int) -> Holdings:
    """Return a page, in the order of the members in Redis."""
    members = [(member.encode(), holding) for member, holding in _members(pool, router)]
    found = sorted((each for each in members if each[0] > after), key=lambda each: each[0])[:limit]
    return Holdings(tuple(holding for _, holding in found), found[-1][0] if len(found) == limit else b"")


def _members(pool: PoolState, router: str) -> Iterator[tuple[str, Holding]]:
    owned = pool.owners.get(router)
    if owned is None:
        return
    for letter, places in (("w", owned.waiting), ("p", owned.parked)):
        for place, name in places:
            yield f"{router}\0{letter}\0{place:016d}\0{name}", Holding(name, Where.LINE)
    for name in owned.granted:
        entry = pool.entries[name]
        member = f"{router}\0g\0{name}\0{entry.attempt}\0{entry.replica}"
        yield member, Holding(name, Where.GRANT, entry.attempt)
    for name in owned.running:
        yield f"{router}\0r\0{name}", Holding(name, Where.SLOT, pool.entries[name].attempt)
    for name, letter in [*owned.orders.items(), *((name, "d") for name in owned.moved)]:
        yield f"{router}\0{letter}\0{name}", Holding(name, Where.MAIL)
