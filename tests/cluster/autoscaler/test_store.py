"""The autoscaler's store: one leader, fenced writes, bounded records, orders that heartbeats bring."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from cluster.autoscaler.redis.keys import control_keys, fits_key
from cluster.autoscaler.store import Commit, StoredRecord
from cluster.errors import LeadershipLostError
from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.redis.script import load_scripts
from penstock.models import ReplicaState
from penstock.values.steps import Relief
from tests.cluster.autoscaler.conftest import Backend

pytestmark = pytest.mark.every_store("scripts that no random walk runs")

LEASE_S = 10.0


def commit(target: int = 3, **changes: object) -> Commit:
    fields = {
        "state": b"state",
        "target": target,
        "relief": Relief.NONE,
        "relief_until_ms": 0,
        "record": b"{}",
        "keep": 100,
    }
    return Commit(**{**fields, **changes})  # type: ignore[arg-type]


async def test_one_leads_until_its_lease_ends(backend: Backend) -> None:
    first, second = backend.store(), backend.store()

    assert ("a", 1) == ((lead := await first.lead("a", LEASE_S)).holder, lead.fence)
    backend.clock.advance(LEASE_S - 1)
    waiting = await second.lead("b", LEASE_S)
    assert ("a", 1, 1.0) == (waiting.holder, waiting.fence, waiting.left_s)
    assert (await first.lead("a", LEASE_S)).fence == 1
    backend.clock.advance(LEASE_S)
    assert ("b", 2) == ((lead := await second.lead("b", LEASE_S)).holder, lead.fence)
    assert (await first.lead("a", LEASE_S)).holder == "b"


async def test_a_deposed_leader_can_write_nothing(backend: Backend) -> None:
    first, second = backend.store(), backend.store()
    await first.lead("a", LEASE_S)
    await first.commit("a", 1, commit(3))
    backend.clock.advance(LEASE_S)
    await second.lead("b", LEASE_S)
    await second.commit("b", 2, commit(5))

    for fence in (1, 2):
        with pytest.raises(LeadershipLostError):
            await first.commit("a", fence, commit(9))
    with pytest.raises(LeadershipLostError):
        await second.commit("b", 1, commit(9))

    assert (await second.load()).target == 5
    assert [2, 1] == [record.number for record in await second.decisions(10)]
    assert [1] == [record.number for record in await second.decisions(10, skip=1)]
    assert [] == await second.decisions(10, skip=2)


async def test_a_lease_that_is_given_back_is_free_at_once(backend: Backend) -> None:
    store = backend.store()
    await store.lead("a", LEASE_S)
    await store.resign("b")
    assert (await store.lead("b", LEASE_S)).holder == "a"
    await store.resign("a")

    assert ("b", 2) == ((lead := await store.lead("b", LEASE_S)).holder, lead.fence)


async def test_a_clock_that_was_set_back_leaves_no_lease_for_hours(backend: Backend) -> None:
    store = backend.store()
    await store.lead("a", LEASE_S)
    backend.clock.jump_wall(-3600)

    assert (await store.lead("b", LEASE_S)).holder == "b"


async def test_a_new_store_has_nothing(backend: Backend) -> None:
    store = backend.store()
    stored = await store.load()

    assert (None, None, 0, "") == (stored.state, stored.target, stored.failed_starts, stored.failure)
    assert ([], None, None) == (await store.decisions(5), await store.point(), await store.fit("group"))


async def test_records_are_bounded_and_newest_first(backend: Backend) -> None:
    store = backend.store()
    await store.lead("a", LEASE_S)
    for n in range(1, 6):
        assert n == await store.commit("a", 1, commit(record=b'{"n": %d}' % n, keep=3))

    assert [StoredRecord(n, b'{"n": %d}' % n) for n in (5, 4, 3)] == await store.decisions(10)
    assert [5] == [record.number for record in await store.decisions(1)]


async def test_fewer_records_are_left_once_fewer_are_kept(backend: Backend) -> None:
    store = backend.store()
    await store.lead("a", LEASE_S)
    for keep in (5, 5, 5, 5, 2):
        await store.commit("a", 1, commit(keep=keep))
    assert [5, 4] == [record.number for record in await store.decisions(10)]
    await store.commit("a", 1, commit(keep=5))
    assert [6, 5, 4] == [record.number for record in await store.decisions(10)]
    assert [] == await store.decisions(0)


async def test_fits_and_failures_are_kept(backend: Backend) -> None:
    store = backend.store()
    await store.store_fit("group", "one")
    await store.store_fit("group", "two")
    await store.note_failed_start("no memory")
    await store.note_failed_start("no weights")

    assert ("two", None) == (await store.fit("group"), await store.fit("other"))
    stored = await store.load()
    assert (2, "no weights") == (stored.failed_starts, stored.failure)


async def test_heartbeats_bring_the_point_and_the_relief_while_it_holds(backend: Backend) -> None:
    store, queue = backend.store(), backend.queue()
    beat = ReplicaBeat("r1", b"record", ReplicaState.READY, Windows(1, 1, 1), ())

    reply = await queue.heartbeat_replica(beat)
    assert (None, "none") == (reply.point, reply.relief)
    await store.set_point(b"point")
    await store.lead("a", LEASE_S)
    # In the pool's time, which goes on where Redis' clock is set back.
    backend.clock.jump_wall(-600)
    now_ms = (await queue.observe()).time_ms
    await store.commit("a", 1, commit(relief=Relief.SHED, relief_until_ms=now_ms + 5000))
    for reply in (await queue.heartbeat_replica(beat), await queue.heartbeat_router(RouterBeat("A", ()))):
        assert (b"point", "shed") == (reply.point, reply.relief)
    backend.clock.advance(5)
    # The leader is gone, or has seen that there is room again.
    reply = await queue.heartbeat_router(RouterBeat("A", ()))
    assert (b"point", "none") == (reply.point, reply.relief)
    assert (await queue.observe()).point == b"point"


async def test_a_point_is_given_back_only_where_it_is_missing(backend: Backend) -> None:
    store = backend.store()

    assert 1 == await store.set_point(b"one", if_missing=True)
    assert 0 == await store.set_point(b"old", if_missing=True)
    assert 2 == await store.set_point(b"two")
    assert b"two" == await store.point()


async def test_only_the_leader_stores_the_record_of_the_load(backend: Backend) -> None:
    first, second = backend.store(), backend.store()
    await first.lead("a", LEASE_S)
    assert await first.forecast() is None
    await first.store_forecast("a", 1, b"\x00one")
    assert await second.forecast() == b"\x00one"
    backend.clock.advance(LEASE_S)
    await second.lead("b", LEASE_S)
    await first.store_forecast("a", 1, b"late")
    await second.store_forecast("b", 1, b"of an older fence")

    assert await second.forecast() == b"\x00one"
    await second.store_forecast("b", 2, b"two")
    assert await first.forecast() == b"two"


def test_all_keys_are_in_the_pools_slot() -> None:
    assert all(key.startswith("penstock:1:{demo}:") for key in (*control_keys("demo"), fits_key("demo")))


@pytest.mark.parametrize("name", load_scripts("cluster.autoscaler.redis"))
def test_a_script_builds_no_key_and_says_what_it_takes(name: str) -> None:
    text = (files("cluster.autoscaler.redis") / "lua" / f"{name}.lua").read_text(encoding="utf-8")

    assert "-- Keys: " in text
    assert "-- Reply: " in text
    assert re.findall(r"call\('[A-Z]+', (?!CONTROL|DECISIONS|FORECAST)", text) == []


async def test_a_full_redis_lets_the_leader_lead(backend: Backend) -> None:
    """It orders the replicas that would empty the queue."""
    if backend.server is None:
        pytest.skip("Redis in process is never full")
    store, standby = backend.store(), backend.store()
    with backend.server.full():
        first = await store.lead("a", LEASE_S)
        assert await store.set_point(b"point") == 1
        assert await store.commit("a", first.fence, commit(target=4)) == 1
        await store.note_failed_start("no node")
        await store.resign("a")
        assert (await standby.lead("b", LEASE_S)).fence == first.fence + 1
        stored = await standby.load()

    assert (stored.target, stored.failed_starts) == (4, 1)
