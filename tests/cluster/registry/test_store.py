"""The store of the registry, on Redis."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.clock import ManualClock
from cluster.errors import RegistryConflictError
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry.contract import Author, Edit, Position, Watcher
from cluster.registry.redis.keys import REGISTRY_KEYS
from cluster.registry.redis.store import RedisRegistryStore
from tests.cluster.queue.backends import ask
from tests.cluster.queue.servers import Server

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

ME = Author("ops", "key 1")
ROUTER = Watcher("r1", "router")


@pytest_asyncio.fixture
async def store(target: Any, clock: ManualClock) -> AsyncIterator[RedisRegistryStore]:
    found = RedisRegistryStore(target, 10.0, 3, clock=clock)
    yield found
    await found.close()


async def put(store: RedisRegistryStore, known: Position = Position(), **values: bytes | None) -> Position:  # noqa: B008
    position = await store.apply([Edit("tenant", name, value) for name, value in values.items()], ME, known)
    assert position is not None
    return position


async def test_an_empty_registry_has_no_life(store: RedisRegistryStore) -> None:
    look = await store.look(ROUTER, Position())

    assert Position() == look.position
    assert [] == list(look.entries)


async def test_changes_are_seen_once_and_in_order(store: RedisRegistryStore) -> None:
    first = await put(store, a=b"1", b=b"2\n\0\xff")
    look = await store.look(ROUTER, Position())
    await put(store, first, a=b"3", b=None)
    after = await store.look(ROUTER, look.position)

    assert [("a", 1, b"1"), ("b", 2, b"2\n\0\xff")] == [(one.name, one.version, one.value) for one in look.entries]
    assert look.whole
    assert [("a", 3, b"3"), ("b", 4, None)] == [(one.name, one.version, one.value) for one in after.entries]
    assert not after.whole
    assert 4 == after.position.version
    assert [] == list((await store.look(ROUTER, after.position)).entries)


async def test_a_long_list_comes_in_pages(store: RedisRegistryStore) -> None:
    await put(store, **{f"t{number}": b"" for number in range(7)})
    look = await store.look(ROUTER, Position())
    names = [one.name for one in look.entries]
    while look.more:
        look = await store.look(ROUTER, Position(), look.entries[-1].version)
        names += [one.name for one in look.entries]

    assert [f"t{number}" for number in range(7)] == names


async def test_edits_are_made_together_or_not_at_all(store: RedisRegistryStore) -> None:
    await put(store, a=b"1")
    edits = [Edit("tenant", "new", b"x", 0), Edit("tenant", "a", b"2", 7)]
    with pytest.raises(RegistryConflictError, match="tenant 'a' has version 1; the change expects version 7"):
        await store.apply(edits, ME, Position())
    with pytest.raises(RegistryConflictError, match="'a' has version 1; the change expects none"):
        await store.apply([Edit("tenant", "a", b"2", 0)], ME, Position())
    with pytest.raises(RegistryConflictError, match="'gone' does not exist; the change expects version 3"):
        await store.apply([Edit("tenant", "gone", b"2", 3)], ME, Position())
    await store.apply([Edit("tenant", "a", b"2", 1)], ME, Position())

    look = await store.look(ROUTER, Position())
    assert [("a", 2, b"2")] == [(one.name, one.version, one.value) for one in look.entries]


async def test_a_deleted_name_may_be_used_again(store: RedisRegistryStore) -> None:
    known = await put(store, a=b"1")
    known = await put(store, known, a=None)
    assert await put(store, known, a=None) == known, "deleting nothing changes nothing"
    await store.apply([Edit("tenant", "a", b"2", 0)], ME, known)

    look = await store.look(ROUTER, known)
    assert [("a", b"2")] == [(one.name, one.value) for one in look.entries]


async def test_an_edit_that_changes_nothing_leaves_nothing(store: RedisRegistryStore) -> None:
    """Many of them would push others out of the history."""
    known = await put(store, a=b"1")
    assert await put(store, known, a=b"1") == known
    assert 1 == len((await store.history("", "", 10, None)).changes)


async def test_what_redis_lost_comes_back_from_those_who_know_it(
    store: RedisRegistryStore, server: Server | InProcessRedis
) -> None:
    known = await put(store, a=b"1", b=b"2")
    known = await put(store, known, b=None)
    entries = (await store.look(ROUTER, Position())).entries
    ask(server, "DEL", *REGISTRY_KEYS)

    assert Position() == (await store.look(ROUTER, known)).position
    assert await store.apply([Edit("tenant", "c", b"3")], ME, known) is None, "it would be mixed with older ones"
    assert len(entries) == await store.restore(known, entries)
    assert 0 == await store.restore(known, entries), "the second router gives nothing new"
    look = await store.look(ROUTER, Position())
    assert known == look.position
    assert [("a", 1, b"1"), ("b", 3, None)] == [(one.name, one.version, one.value) for one in look.entries]


async def test_a_revocation_wins_over_the_key_that_an_older_process_knows(
    store: RedisRegistryStore, server: Server | InProcessRedis
) -> None:
    early = await put(store, key=b"valid")
    old = (await store.look(ROUTER, Position())).entries
    late = await put(store, early, key=None)
    new = (await store.look(ROUTER, Position())).entries
    ask(server, "DEL", *REGISTRY_KEYS)

    await store.restore(late, new)
    await store.restore(early, old)

    assert [None] == [one.value for one in (await store.look(ROUTER, Position())).entries]


async def test_a_registry_begun_anew_keeps_what_it_has(
    store: RedisRegistryStore, server: Server | InProcessRedis
) -> None:
    known = await put(store, a=b"old", b=b"old", c=b"old")
    known = await put(store, known, c=None)
    entries = (await store.look(ROUTER, Position())).entries
    ask(server, "DEL", *REGISTRY_KEYS)
    await put(store, a=b"new")

    await store.restore(known, entries)

    look = await store.look(ROUTER, known)
    assert look.whole
    assert {"a": b"new", "b": b"old"} == {one.name: one.value for one in look.entries}


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_registry_that_lost_a_part_is_given_back_whole(
    store: RedisRegistryStore, server: Server | InProcessRedis, lost: int
) -> None:
    known = await put(store, a=b"1", b=b"2")
    entries = (await store.look(ROUTER, Position())).entries
    ask(server, "DEL", REGISTRY_KEYS[lost])

    assert "" == (await store.look(ROUTER, known)).position.life
    await store.restore(known, entries)
    assert {"a": b"1", "b": b"2"} == {one.name: one.value for one in (await store.look(ROUTER, Position())).entries}


async def test_the_history_names_author_and_both_values(store: RedisRegistryStore, clock: ManualClock) -> None:
    known = await put(store, a=b"1")
    clock.advance(5.0)
    await store.apply([Edit("key", "k", b"9")], Author("acme"), known)
    known = await put(store, known, a=b"2")
    await put(store, known, a=None)

    past = await store.history("", "", 10)
    changes = past.changes
    assert [4, 3, 2, 1] == [one.number for one in changes]
    assert [(b"2", None), (b"1", b"2"), (None, b"9"), (None, b"1")] == [(one.before, one.after) for one in changes]
    assert [ME, ME, Author("acme"), ME] == [one.author for one in changes]
    assert 5_000 == changes[0].at_ms - changes[-1].at_ms
    assert all(one.intact for one in changes)
    assert 0 == past.before
    assert [2] == [one.number for one in (await store.history("key", "", 10)).changes]
    assert [3, 1] == [one.number for one in (await store.history("tenant", "a", 2, before=4)).changes]
    some = await store.history("", "", 3)
    assert ([4, 3, 2], 2) == ([one.number for one in some.changes], some.before)
    assert [1] == [one.number for one in (await store.history("", "", 3, some.before)).changes]


async def test_a_look_at_a_long_history_says_where_to_go_on(store: RedisRegistryStore) -> None:
    known: Position | None = await put(store, a=b"1")
    for number in range(17):
        edits = [Edit("key", f"k{each}", b"%d" % number) for each in range(1_000)]
        known = await store.apply(edits, ME, known or Position())
    past = await store.history("tenant", "", 10)
    assert 0 == len(past.changes)
    assert 1 < past.before < 1_000
    past = await store.history("tenant", "", 10, past.before)
    assert ([1], 0) == ([one.number for one in past.changes], past.before)


async def test_a_line_that_was_changed_shows(store: RedisRegistryStore, server: Server | InProcessRedis) -> None:
    if isinstance(server, InProcessRedis):
        pytest.skip("nobody writes there by hand")
    known = await put(store, a=b"one")
    known = await put(store, known, a=b"two")
    await put(store, known, a=b"three")
    with contextlib.closing(server.client()) as client:
        line: bytes = client.lindex(REGISTRY_KEYS[4], 1)
        client.lset(REGISTRY_KEYS[4], 1, line.replace(b"two", b"TWO"))

    assert [True, False, True] == [one.intact for one in (await store.history("", "", 10)).changes]


async def test_a_watcher_that_ended_before_the_clock_was_set_back_hides_no_others(
    store: RedisRegistryStore, clock: ManualClock
) -> None:
    clock.jump_wall(3_600.0)
    await store.look(Watcher("ended", "router"), Position())
    clock.jump_wall(-3_600.0)
    # Each look takes one of them, by chance.
    for _ in range(100):
        await store.look(Watcher("p1", "replica", "small"), Position())
        await store.look(ROUTER, Position())
    assert {("p1", 0), ("r1", 0)} == {(each.watcher.id, each.age_ms) for each in await store.watchers()}


async def test_watchers_are_known_with_what_they_reported(store: RedisRegistryStore, clock: ManualClock) -> None:
    known = await put(store, a=b"1")
    await store.look(Watcher("p1", "replica", "demo", b"\0:\nloaded"), Position())
    clock.advance(30.0)
    await store.look(ROUTER, known)

    seen = {each.watcher.id: each for each in await store.watchers()}
    assert b"\0:\nloaded" == seen["p1"].watcher.report
    assert ("replica", "demo", 0, 30_000) == (
        seen["p1"].watcher.kind,
        seen["p1"].watcher.pool,
        seen["p1"].version,
        seen["p1"].age_ms,
    )
    assert known.version == seen["r1"].version
    clock.advance(40.0)
    await store.look(ROUTER, known)
    assert ["r1"] == [each.watcher.id for each in await store.watchers()]
