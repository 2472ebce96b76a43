"""The store of request records, on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.clock import ManualClock
from cluster.records.contract import EndedRequest, RecordLimits
from cluster.records.redis.store import RedisRecordStore
from cluster.redis.in_process.server import InProcessRedis
from tests.cluster.queue.backends import ask
from tests.cluster.queue.servers import Server

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

LIMITS = RecordLimits(most=3, missed_ms=60_000, max_bytes=1_000)


@pytest_asyncio.fixture
async def store(target: Any, clock: ManualClock) -> AsyncIterator[RedisRecordStore]:
    found = RedisRecordStore(target, "demo", LIMITS, 10.0, clock=clock)
    yield found
    await found.close()


def ended(name: str, tenant: str = "acme", *, missed: bool = False, record: bytes = b"") -> EndedRequest:
    return EndedRequest(name, tenant, missed, record or name.encode())


async def test_a_record_is_found_by_its_id_and_others_are_not(store: RedisRecordStore) -> None:
    await store.add([ended("a"), ended("b")])
    assert await store.get("a") == b"a"
    assert await store.get("c") == b""


async def test_records_of_further_calls_are_appended(store: RedisRecordStore, clock: ManualClock) -> None:
    await store.add([ended("a", record=b"first,")])
    clock.advance(1.0)
    await store.add([ended("b"), ended("a", record=b"second")])
    assert await store.get("a") == b"first,second"
    # The first call has its place in the order.
    assert await store.newest("", 10, missed=False) == [b"b", b"first,second"]


async def test_the_newest_come_first_and_the_oldest_go(store: RedisRecordStore, clock: ManualClock) -> None:
    for name in "abcde":
        await store.add([ended(name)])
        clock.advance(0.001)
    assert await store.newest("", 10, missed=False) == [b"e", b"d", b"c"]
    assert await store.newest("", 2, missed=False) == [b"e", b"d"]
    assert await store.get("a") == b""


async def test_each_tenant_has_a_list_of_its_own(store: RedisRecordStore, clock: ManualClock) -> None:
    for name, tenant in (("a", "acme"), ("b", "acme2"), ("c", "acme")):
        await store.add([ended(name, tenant)])
        clock.advance(0.001)
    assert await store.newest("acme", 10, missed=False) == [b"c", b"a"]
    assert await store.newest("acme2", 10, missed=False) == [b"b"]
    assert await store.newest("acm", 10, missed=False) == []


async def test_what_missed_its_slo_stays_for_its_own_time(store: RedisRecordStore, clock: ManualClock) -> None:
    await store.add([ended("slow", missed=True)])
    for name in "abcd":
        clock.advance(1.0)
        await store.add([ended(name)])
    assert await store.get("slow") == b"slow"
    assert await store.newest("", 10, missed=True) == [b"slow"]
    assert await store.newest("acme", 10, missed=True) == [b"slow"]
    clock.advance(60.0)
    await store.add([ended("e")])
    assert await store.get("slow") == b""
    assert await store.newest("acme", 10, missed=True) == []


async def test_a_miss_among_the_newest_stays_after_its_time(store: RedisRecordStore, clock: ManualClock) -> None:
    await store.add([ended("slow", missed=True)])
    clock.advance(61.0)
    await store.add([ended("a")])
    assert await store.get("slow") == b"slow"
    assert await store.newest("", 10, missed=True) == []


async def test_bytes_are_bounded_and_the_oldest_go_first(store: RedisRecordStore, clock: ManualClock) -> None:
    for name in "abc":
        await store.add([ended(name, missed=True, record=name.encode() * 400)])
        clock.advance(1.0)
    assert await store.get("a") == b""
    assert await store.newest("", 10, missed=False) == [b"c" * 400, b"b" * 400]
    assert await store.newest("acme", 10, missed=True) == [b"c" * 400, b"b" * 400]


async def test_new_records_are_kept_after_the_clock_was_set_back(store: RedisRecordStore, clock: ManualClock) -> None:
    clock.jump_wall(3_600.0)
    for name in "abc":
        await store.add([ended(name)])
        clock.advance(0.001)
    clock.jump_wall(-3_600.0)
    await store.add([ended("z")])
    await store.add([ended("y"), ended("x", missed=True)])
    assert await store.newest("", 10, missed=False) == [b"x", b"y", b"z"]
    assert await store.newest("acme", 10, missed=False) == [b"x", b"y", b"z"]


async def test_a_client_that_comes_back_all_the_time_fills_nothing(target: Any) -> None:
    store = RedisRecordStore(target, "demo", RecordLimits(), 10.0)
    for _ in range(80):
        await store.add([ended("a", record=b"x" * 1_000)])
    assert len(await store.get("a")) <= 64 << 10
    await store.close()


@pytest.mark.parametrize("part", ["records", "records_recent", "records_missed", "records_tenants", "records_bytes"])
async def test_whatever_part_redis_loses_new_records_are_kept(
    store: RedisRecordStore, server: Server | InProcessRedis, part: str
) -> None:
    await store.add([ended("a"), ended("b", missed=True)])
    assert ask(server, "DEL", f"penstock:1:{{demo}}:{part}") == 1
    for name in "cdefg":
        await store.add([ended(name)])
    assert await store.get("g") == b"g"
    assert len(await store.newest("", 10, missed=False)) >= 1
    assert len(ask(server, "KEYS", "*")) <= 5


async def test_a_pool_that_keeps_no_records_writes_nothing(server: Server | InProcessRedis, target: Any) -> None:
    store = RedisRecordStore(target, "demo", RecordLimits(most=0), 10.0)
    await store.add([ended("a")])
    assert await store.newest("", 10, missed=False) == []
    assert ask(server, "KEYS", "*") == []
    await store.close()


async def test_a_lower_bound_takes_several_calls_so_that_none_keeps_redis_for_long(target: Any) -> None:
    large, small = (RedisRecordStore(target, "demo", RecordLimits(most=most), 10.0) for most in (10_000, 10))
    for first in range(0, 3_000, 500):
        await large.add([ended(f"r{first + number:04}") for number in range(500)])
    await small.add([ended("new")])
    assert len(await large.newest("", 10_000, missed=False)) > 2_000
    for number in range(12):
        await small.add([ended(f"new{number}")])
    assert len(await large.newest("", 10_000, missed=False)) == 10
    for store in (large, small):
        await store.close()


async def test_a_pool_that_keeps_no_records_any_more_forgets_those_that_it_has(
    store: RedisRecordStore, server: Server | InProcessRedis, target: Any, clock: ManualClock
) -> None:
    await store.add([ended("a"), ended("b", missed=True)])
    none = RedisRecordStore(target, "demo", RecordLimits(most=0), 10.0, clock=clock)
    clock.advance(0.001)
    await none.add([ended("c")])
    assert ask(server, "KEYS", "*") == []
    await none.close()
