"""The store of responses, on Redis."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from cluster.clock import ManualClock
from cluster.errors import ResponseLimitError
from cluster.redis.in_process.server import InProcessRedis
from cluster.responses.contract import ResponseClaim, ResponseLimits, ResponseName
from cluster.responses.redis.store import RedisResponseStore
from tests.cluster.queue.backends import ask
from tests.cluster.queue.servers import Server

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

NAME = ResponseName("acme", "resp_1")
CLAIM = ResponseClaim(NAME, "first")
LIMITS = ResponseLimits(ttl_ms=60_000, lease_ms=2_000, tenant_responses=3, tenant_bytes=1_000)


@pytest_asyncio.fixture
async def store(target: Any, clock: ManualClock) -> AsyncIterator[RedisResponseStore]:
    found = RedisResponseStore(target, LIMITS, 10.0, clock=clock)
    yield found
    await found.close()


async def test_a_response_is_stored_run_and_read_by_its_tenant_only(store: RedisResponseStore) -> None:
    assert await store.create(CLAIM, b"asked", leased=False)
    assert not await store.create(ResponseClaim(NAME, "other"), b"other", leased=False)
    found = await store.get(NAME)
    assert found is not None
    assert (found.request, found.result, found.started, found.ended, found.leased) == (
        b"asked",
        b"",
        False,
        False,
        False,
    )
    assert await store.finish(CLAIM, b"answer" * 100)
    found = await store.get(NAME)
    assert found is not None
    assert (found.request, found.result, found.ended) == (b"", b"answer" * 100, True)
    assert await store.get(ResponseName("other", "resp_1")) is None
    assert not await store.delete(ResponseName("other", "resp_1"))
    assert await store.delete(NAME)
    assert await store.get(NAME) is None


async def test_nothing_is_left_of_what_was_deleted(server: Server | InProcessRedis, store: RedisResponseStore) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    await store.note(CLAIM, 1, 0, b"x", started=True)
    await store.delete(NAME)
    await store.create(CLAIM, b"asked", leased=True)
    await store.finish(CLAIM, b"y")
    await store.delete(NAME)
    assert ask(server, "KEYS", "*") == []


async def test_a_silent_owner_is_found_and_replaced(store: RedisResponseStore, clock: ManualClock) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    assert await store.sweep() == []
    assert await store.claim(NAME) is None
    clock.advance(1.5)
    assert await store.renew(CLAIM) is not None
    clock.advance(1.5)
    assert await store.sweep() == []
    clock.advance(1.0)
    assert await store.sweep() == [NAME]
    taken = await store.claim(NAME)
    assert taken is not None
    assert await store.renew(taken) is not None
    # The first one does not hold it any more.
    assert await store.renew(CLAIM) is None
    assert not await store.note(CLAIM, 1, 0, b"x", started=True)
    assert not await store.finish(CLAIM, b"first")
    assert await store.finish(taken, b"second")
    clock.advance(10)
    assert await store.sweep() == []
    assert await store.claim(NAME, force=True) is None


async def test_what_is_given_back_may_be_claimed_at_once(store: RedisResponseStore) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    await store.release(CLAIM)
    assert await store.sweep() == [NAME]
    taken = await store.claim(NAME)
    assert taken is not None
    await store.release(CLAIM)
    assert await store.sweep() == []


async def test_a_response_without_a_lease_is_claimed_by_whoever_wants_it(
    store: RedisResponseStore, clock: ManualClock
) -> None:
    await store.create(CLAIM, b"asked", leased=False)
    clock.advance(10)
    assert await store.sweep() == []
    assert await store.claim(NAME) is not None
    assert await store.claim(NAME) is None
    assert await store.claim(NAME, force=True) is not None


async def test_a_journal_is_read_on_and_a_newer_one_from_its_beginning(store: RedisResponseStore) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    for number, chunk in enumerate((b"a", b"b", b"c")):
        assert await store.note(CLAIM, 1, number, chunk, started=bool(number))
    found = await store.follow(NAME, 0, 0)
    assert found is not None
    assert (found.chunks, found.record.journal, found.record.started, found.owned) == (
        [b"a", b"b", b"c"],
        1,
        True,
        True,
    )
    found = await store.follow(NAME, 1, 2)
    assert found is not None
    assert found.chunks == [b"c"]
    await store.note(CLAIM, 2, 0, b"abcd", started=True)
    found = await store.follow(NAME, 1, 3)
    assert found is not None
    assert (found.chunks, found.record.journal) == ([b"abcd"], 2)
    await store.note(CLAIM, 2, 1, b"", started=True, run="r1", place=b"token")
    noted = await store.get(NAME)
    assert noted is not None
    assert (noted.run, noted.place) == ("r1", b"token")
    await store.finish(CLAIM, b"done")
    found = await store.follow(NAME, 2, 1)
    assert found is not None
    assert (found.chunks, found.record.result, found.owned) == ([], b"done", False)


async def test_who_asks_for_no_output_is_sent_none(store: RedisResponseStore) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    for number in range(3):
        assert await store.note(CLAIM, 1, number, b"output", started=True)
    found = await store.follow(NAME, 0, 1 << 31)
    assert found is not None
    assert (found.chunks, found.owned, found.record.journal) == ([], True, 1)


async def test_who_knows_what_was_asked_is_not_sent_it_again(store: RedisResponseStore) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    await store.note(CLAIM, 1, 0, b"output", started=True)
    found = await store.follow(NAME, 0, 0, request=False)
    assert found is not None
    assert (b"", [b"output"], True) == (found.record.request, found.chunks, found.owned)
    found = await store.follow(NAME, 1, 0)
    assert found is not None
    assert b"asked" == found.record.request


async def test_the_owner_hears_of_readers_and_of_a_cancel(store: RedisResponseStore, clock: ManualClock) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    clock.advance(1)
    held = await store.renew(CLAIM)
    assert held is not None
    assert (held.unread_s, held.cancelled) == (1.0, False)
    await store.follow(NAME, 0, 0)
    await store.cancel(NAME)
    held = await store.renew(CLAIM)
    assert held is not None
    assert (held.unread_s, held.cancelled) == (0.0, True)


async def test_the_oldest_make_room(store: RedisResponseStore, clock: ManualClock) -> None:
    names = [ResponseName("acme", f"resp_{index}") for index in range(5)]
    for name in names:
        claim = ResponseClaim(name, "t")
        assert await store.create(claim, b"asked", leased=False)
        assert await store.finish(claim, b"answer")
        clock.advance(1)
    assert [await store.get(name) is not None for name in names] == [False, False, True, True, True]
    # Others have bounds of their own.
    other = ResponseClaim(ResponseName("other", "resp_x"), "t")
    assert await store.create(other, b"asked", leased=False)


async def many(store: RedisResponseStore, count: int, size: int = 0) -> None:
    """Store responses of so many bytes that have ended."""
    store.limits = ResponseLimits()
    for first in range(0, count, 100):
        claims = [ResponseClaim(ResponseName("acme", f"resp_{first + index}"), "t") for index in range(100)]
        await asyncio.gather(*(store.create(each, b"asked", leased=False) for each in claims))
        await asyncio.gather(*(store.finish(each, secrets.token_bytes(size)) for each in claims))


@pytest.mark.parametrize("ends", [False, True])
async def test_a_bound_that_was_lowered_by_much_is_kept_step_by_step(
    store: RedisResponseStore, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """One call names few, as a pipeline holds so many calls, and Redis does nothing else meanwhile."""
    await many(store, 1_500)
    claim = ResponseClaim(ResponseName("acme", "resp_x"), "t")
    assert not ends or await store.create(claim, b"asked", leased=False)
    store.limits, named = LIMITS, list[int]()
    delete_all = store._delete_all

    async def counted(tenant: str, ids: Sequence[bytes]) -> None:
        named.append(len(ids))
        await delete_all(tenant, ids)

    monkeypatch.setattr(store, "_delete_all", counted)
    assert await (store.finish(claim, b"answer") if ends else store.create(claim, b"asked", leased=False))

    assert max(named) <= 512
    assert sum(named) >= 512


async def test_a_large_response_takes_the_room_of_many_small_ones(store: RedisResponseStore) -> None:
    await many(store, 1_000, 1_000)
    claim = ResponseClaim(ResponseName("acme", "resp_x"), "t")
    store.limits = ResponseLimits(tenant_bytes=1_000_000)
    assert await store.create(claim, secrets.token_bytes(700_000), leased=False)


async def test_what_runs_makes_no_room(store: RedisResponseStore) -> None:
    for index in range(3):
        assert await store.create(ResponseClaim(ResponseName("acme", f"resp_{index}"), "t"), b"asked", leased=True)
    with pytest.raises(ResponseLimitError, match="3 responses"):
        await store.create(ResponseClaim(ResponseName("acme", "resp_x"), "t"), b"asked", leased=True)


async def test_bytes_are_bounded(store: RedisResponseStore, clock: ManualClock) -> None:
    for index in range(3):
        claim = ResponseClaim(ResponseName("acme", f"resp_{index}"), "t")
        await store.create(claim, b"asked", leased=False)
        await store.finish(claim, secrets.token_bytes(450))
        clock.advance(1)
    left = [await store.get(ResponseName("acme", f"resp_{index}")) is not None for index in range(3)]
    assert left == [False, False, True] or left == [False, True, True]
    with pytest.raises(ResponseLimitError):
        await store.create(ResponseClaim(ResponseName("acme", "resp_x"), "t"), secrets.token_bytes(2_000), leased=True)


async def test_a_stream_whose_router_died_counts_for_a_day_unless_another_one_goes_on_with_it(
    server: Server | InProcessRedis, store: RedisResponseStore, clock: ManualClock
) -> None:
    """Without a lease nobody knows that its router is gone, and what runs makes no room for others."""
    store.limits = ResponseLimits(tenant_responses=3)
    names = [ResponseName("acme", f"resp_{index}") for index in range(3)]
    for name in names:
        assert await store.create(ResponseClaim(name, "t"), b"asked", leased=name is names[0])
    clock.advance(86_000)
    taken = await store.claim(names[1])
    assert taken is not None
    clock.advance(600)
    await store.sweep()
    assert [await store.get(name) is not None for name in names] == [True, True, False]
    assert await store.create(ResponseClaim(names[2], "t"), b"asked", leased=False)
    assert await store.finish(taken, b"answer")
    clock.advance(29 * 86_400)
    await store.sweep()
    assert [await store.get(name) is not None for name in names] == [False, True, False]
    clock.advance(86_400)
    await store.sweep()
    assert ask(server, "KEYS", "*") == []


async def test_what_is_due_is_deleted(
    server: Server | InProcessRedis, store: RedisResponseStore, clock: ManualClock
) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    clock.advance(30)
    await store.finish(CLAIM, b"answer")
    clock.advance(50)
    await store.sweep()
    assert await store.get(NAME) is not None
    clock.advance(20)
    await store.sweep()
    assert ask(server, "KEYS", "*") == []


async def test_a_lost_record_does_not_stand_in_the_way(
    server: Server | InProcessRedis, store: RedisResponseStore, clock: ManualClock
) -> None:
    await store.create(CLAIM, b"asked", leased=True)
    assert ask(server, "DEL", "penstock:1:{responses}:response:resp_1") == 1
    clock.advance(10)
    assert await store.sweep() == [NAME]
    assert await store.claim(NAME) is None
    assert await store.sweep() == []
