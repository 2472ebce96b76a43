"""A bell wakes the router that has mail; losing it costs only time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from cluster.errors import QueueUnavailableError
from cluster.models import Windows
from cluster.queue.entries import Settlement
from cluster.queue.redis import bell as module
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.keys import bell_channel
from tests.cluster.queue import servers
from tests.cluster.queue.backends import POOL, Backend, Scene, entry, turns
from tests.support.waiting import until

pytestmark = pytest.mark.every_store("publishing, and its connections")

ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)


async def _listening(backend: Backend, router: str) -> tuple[object, asyncio.Task[str]]:
    bell = backend.bell(router)
    if hasattr(bell, "start"):
        await bell.start()
    waiting = asyncio.create_task(bell.wait())
    await turns()
    return bell, waiting


async def test_a_grant_by_another_router_rings(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE}, routers=("A", "B"))
    grant = (await scene.queue.submit("A", entry("a"))).grant
    await scene.queue.submit("B", entry("b"))
    _, ring = await _listening(backend, "B")
    assert not ring.done()

    await scene.queue.release("A", "a", grant.attempt, Settlement(1))

    assert await asyncio.wait_for(ring, 10) == POOL


async def test_an_order_to_cancel_rings(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE}, routers=("A", "B"))
    await scene.queue.submit("A", entry("a"))
    _, ring = await _listening(backend, "A")

    await scene.queue.cancel("B", "acme", "a")

    assert await asyncio.wait_for(ring, 10) == POOL


async def test_nothing_is_kept_of_a_bell_that_nobody_hears(scene: Scene, backend: Backend) -> None:
    """A dead router's request keeps its place for the grace, and is cancelled meanwhile."""
    await scene.start({"r1": ONE}, routers=("A", "B"))
    await scene.queue.submit("B", entry("b"))
    await scene.queue.submit("A", entry("a"))
    await scene.queue.retire_router("A", keep=True)

    await scene.queue.cancel("B", "acme", "a")

    assert 0 == backend.sizes().get("bells", 0)


async def test_rings_are_merged_until_the_router_looks(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": Windows(2, 1000, 1000)}, routers=("A", "B"))
    for name in ("a1", "a2"):
        await scene.queue.submit("A", entry(name))
    bell, ring = await _listening(backend, "A")

    await scene.queue.cancel("B", "acme", "a1")
    assert await asyncio.wait_for(ring, 10) == POOL
    await scene.queue.cancel("B", "acme", "a2")
    second = asyncio.create_task(bell.wait())  # type: ignore[attr-defined]
    mail = await scene.queue.collect("A")
    assert len(mail.orders) == 2
    assert not second.done()

    for order in mail.orders:
        await scene.queue.release("A", order.request_id, f"base-{order.request_id}.1", Settlement(0))
    await scene.queue.submit("A", entry("a3"))
    await scene.queue.cancel("B", "acme", "a3")
    assert await asyncio.wait_for(second, 10) == POOL


async def test_without_the_bell_the_heartbeat_brings_the_mail(scene: Scene) -> None:
    await scene.start({"r1": ONE}, routers=("A", "B"))
    grant = (await scene.queue.submit("A", entry("a"))).grant
    await scene.queue.submit("B", entry("b"))
    await scene.queue.release("A", "a", grant.attempt, Settlement(1))

    reply = await scene.beat_router("B")

    assert [granted.request_id for granted in reply.mail.grants] == ["b"]


async def test_a_routers_own_answer_does_not_ring_it(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE})
    grant = (await scene.queue.submit("A", entry("a"))).grant
    await scene.queue.submit("A", entry("b"))
    _, ring = await _listening(backend, "A")

    assert (await scene.queue.release("A", "a", grant.attempt, Settlement(1))).grants

    await scene.queue.cancel("A", "other tenant", "b")
    await turns(10)
    assert not ring.done()
    ring.cancel()


async def test_closing_ends_a_wait(backend: Backend) -> None:
    bell, ring = await _listening(backend, "A")

    await bell.close()  # type: ignore[attr-defined]

    with pytest.raises(QueueUnavailableError):
        await asyncio.wait_for(ring, 10)
    with pytest.raises(QueueUnavailableError):
        await bell.wait()  # type: ignore[attr-defined]


async def test_the_bell_listens_again_after_its_connection_broke(redis_backend: Backend) -> None:
    backend = redis_backend
    scene = Scene(backend.queue(), backend.clock)
    await scene.start({"r1": ONE}, routers=("A", "B"))
    _, ring = await _listening(backend, "A")
    assert backend.server is not None
    client = backend.server.client()
    try:
        assert client.client_kill_filter(_type="pubsub") == 1
        await until(lambda: client.pubsub_numsub(bell_channel("A"))[0][1] == 1)
    finally:
        client.close()

    await scene.queue.submit("A", entry("a"))
    await scene.queue.cancel("B", "acme", "a")

    assert await asyncio.wait_for(ring, 10) == POOL


@pytest.mark.slow
async def test_a_bell_asks_less_and_less_often_for_a_server_that_stays_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And soon again for one that was back."""
    mortal = servers.Mortal("redis-6.2", tmp_path)
    bell = RedisBell(mortal.server.url, "A")

    def waits() -> list[float]:
        return [getattr(record, "retry_s", 0.0) for record in caplog.records if record.msg == "queue.bell_lost"]

    try:
        await bell.start()
        for _ in range(2):
            with contextlib.closing(mortal.server.client()) as client:
                await until(lambda client=client: client.pubsub_numsub(bell_channel("A"))[0][1] == 1)
            caplog.clear()
            mortal.kill()
            await until(lambda: len(waits()) >= 4)
            assert [0.05, 0.1, 0.2, 0.4] == waits()[:4]
            mortal.revive()
    finally:
        await bell.close()
        mortal.kill()


async def test_silence_while_this_process_stood_still_does_not_end_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Redis said meanwhile has not been read."""
    looks = iter((False, False, True))

    async def slept(_seconds: float) -> bool:
        return next(looks)

    for name, value in (("_PING_S", 0.0), ("_SILENT_S", -1.0), ("slept_awake", slept)):
        monkeypatch.setattr(module, name, value)
    connection = AsyncMock()
    await RedisBell("redis://127.0.0.1:1", "A")._watch(connection)
    assert ["send_command", "send_command", "disconnect"] == [name for name, *_ in connection.mock_calls]


async def test_a_server_that_greets_nobody_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        bell = RedisBell(f"redis://:secret@127.0.0.1:{port}", "A", timeout_s=0.05)
        starting = asyncio.create_task(bell.start())
        with caplog.at_level(logging.WARNING):
            await until(lambda: any(record.msg == "queue.bell_lost" for record in caplog.records))
        await bell.close()
        with pytest.raises(QueueUnavailableError):
            await starting
        ended.set()
