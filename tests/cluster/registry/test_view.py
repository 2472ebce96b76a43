"""A process' view of the registry, over Redis in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry import view as module
from cluster.registry.contract import Author, Edit, Entry, Look, Position, Watcher
from cluster.registry.redis.keys import REGISTRY_KEYS
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from tests.support.halt import answered_in_halt
from tests.support.waiting import until

ME = Author("ops")


@asynccontextmanager
async def views(redis: InProcessRedis, *names: str) -> AsyncIterator[list[RegistryView]]:
    clock = ManualClock()
    made = [RegistryView(RedisRegistryStore(redis, clock=clock), Watcher(name, "router")) for name in names]
    yield made
    for one in made:
        await one.close()


def values(view: RegistryView) -> dict[str, bytes | None]:
    return {name: entry.value for name, entry in view.entries("tenant").items()}


async def test_a_change_is_known_everywhere_after_the_next_look() -> None:
    async with views(InProcessRedis(ManualClock()), "a", "b") as (one, other):
        await other.refresh()
        version = await one.apply([Edit("tenant", "acme", b"1"), Edit("key", "k", b"2")], ME)
        assert {"acme": b"1"} == values(one)
        assert {} == values(other)
        assert ["b"] == await one.behind(version, 0.0)
        await other.refresh()
        assert {"acme": b"1"} == values(other)
        await other.refresh()
        assert [] == await one.behind(version, 0.0), "its second look told what it knows"


async def test_a_change_that_is_held_counts_as_in_force_only_after_its_release() -> None:
    async with views(InProcessRedis(ManualClock()), "a", "b") as (one, other):
        heard: list[str] = []

        def listen(entry: Entry) -> None:
            heard.append(entry.name)
            other.hold()

        other.listen("tenant", listen)
        version = await one.apply([Edit("tenant", "acme", b"1")], ME)
        for _ in range(3):
            await other.refresh()
        assert (version, ["acme"], {"acme": b"1"}) == (other.version, heard, values(other))
        assert ["b"] == await one.behind(version, 0.0)
        other.release()
        await other.refresh()
        assert [] == await one.behind(version, 0.0)


async def test_listeners_hear_of_what_is_known_and_of_each_change() -> None:
    heard: list[tuple[str, bytes | None]] = []

    def listen(entry: Entry) -> None:
        heard.append((entry.name, entry.value))

    async with views(InProcessRedis(ManualClock()), "a", "b") as (one, other):
        await one.apply([Edit("tenant", "acme", b"1")], ME)
        one.listen("tenant", listen)
        await other.apply([Edit("tenant", "acme", b"2"), Edit("key", "k", b"")], ME)
        await one.refresh()
        await other.apply([Edit("tenant", "acme", None)], ME)
        await one.refresh()

    assert [("acme", b"1"), ("acme", b"2"), ("acme", None)] == heard


async def test_a_redis_that_lost_all_gets_it_back_from_whoever_lives() -> None:
    redis = InProcessRedis(ManualClock())
    async with views(redis, "a", "b", "new") as (one, other, new):
        await one.apply([Edit("tenant", "acme", b"1"), Edit("tenant", "old", b"1")], ME)
        await other.refresh()
        await one.apply([Edit("tenant", "old", None)], ME)
        redis.execute("DEL", *REGISTRY_KEYS)
        await new.refresh()
        assert {} == values(new)
        await other.refresh()
        await one.refresh()
        await new.refresh()
        assert {"acme": b"1"} == values(new) == values(one)
        await other.refresh()
        assert {"acme": b"1"} == values(other)


async def test_an_edit_on_a_redis_that_lost_all_comes_after_what_was_known() -> None:
    redis = InProcessRedis(ManualClock())
    async with views(redis, "a", "new") as (one, new):
        await one.apply([Edit("tenant", "acme", b"1")], ME)
        redis.execute("DEL", *REGISTRY_KEYS)
        await one.apply([Edit("tenant", "other", b"2")], ME)
        await new.refresh()
        assert {"acme": b"1", "other": b"2"} == values(new)


async def test_a_registry_begun_anew_meets_the_one_before() -> None:
    redis = InProcessRedis(ManualClock())
    async with views(redis, "a", "new") as (one, new):
        await one.apply([Edit("tenant", "acme", b"1"), Edit("tenant", "both", b"old")], ME)
        redis.execute("DEL", *REGISTRY_KEYS)
        await new.apply([Edit("tenant", "both", b"new")], ME)
        await one.refresh()
        await new.refresh()
        assert {"acme": b"1", "both": b"new"} == values(one) == values(new)


async def test_a_view_keeps_what_it_knows_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    async with views(InProcessRedis(ManualClock()), "a") as (one,):
        await one.apply([Edit("tenant", "acme", b"1")], ME)
        looked = 0

        async def away(watcher: Watcher, since: Position, after: int | None = None) -> None:
            nonlocal looked
            looked += 1
            raise QueueUnavailableError("gone")

        monkeypatch.setattr(one._store, "look", away)
        with caplog.at_level(logging.WARNING):
            task = asyncio.ensure_future(one.watch())
            await until(lambda: looked > 3)
            task.cancel()
        assert {"acme": b"1"} == values(one)
        assert 1 == sum(record.message == "registry.away" for record in caplog.records)


@pytest.mark.parametrize("first", [True, False])
async def test_an_edit_that_redis_lost_before_it_was_read_is_made_again(
    monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    redis = InProcessRedis(ManualClock())
    async with views(redis, "a", "b", "new") as (one, other, new):
        if not first:
            await one.apply([Edit("tenant", "acme", b"1"), Edit("key", "k", b"1")], ME)
            await other.refresh()
        real, calls = one._store.apply, 0

        async def lost(*arguments: Any) -> Position | None:
            nonlocal calls
            calls += 1
            position = await real(*arguments)
            if calls == 1:
                redis.execute("DEL", *REGISTRY_KEYS)
            return position

        monkeypatch.setattr(one._store, "apply", lost)
        await one.apply([Edit("tenant", "acme", b"2"), Edit("key", "k", None)], ME)
        await other.refresh()
        await new.refresh()
        assert {"acme": b"2"} == values(one) == values(other) == values(new)
        assert new.get("key", "k") is None
        assert 2 == calls


async def test_a_process_that_stands_still_at_its_start_waits_for_what_it_has_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with views(InProcessRedis(ManualClock()), "a") as (one,):
        real, owner = one._store.look, TaskOwner("test")

        async def look(*arguments: Any) -> Look:
            await answered_in_halt(None, 0.6)
            await asyncio.sleep(0)
            return await real(*arguments)

        monkeypatch.setattr(one._store, "look", look)
        await one.start(owner, 0.2)
        assert one.known.is_set()
        await owner.close()
