"""Commands on their way out: who waits, and what leaves together."""

from __future__ import annotations

import asyncio

import pytest

from penstock.internal.v1 import replica_pb2 as pb
from router.links import outbox as module
from router.links.outbox import Outbox


def ping(nonce: int) -> pb.LinkCommand:
    return pb.LinkCommand(ping=pb.Ping(nonce=nonce))


async def batch(outbox: Outbox) -> list[int]:
    async with asyncio.timeout(5):
        return [command.ping.nonce for command in await outbox.batch()]


async def test_what_waits_leaves_with_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEISURE_S", 3600.0)
    outbox = Outbox()
    outbox.send_soon(ping(1))
    outbox.send_soon(ping(2))
    outbox.send(ping(3))
    assert [1, 2, 3] == await batch(outbox)


async def test_what_waits_leaves_alone_after_a_moment() -> None:
    outbox = Outbox()
    outbox.send_soon(ping(1))
    assert [1] == await batch(outbox)


async def test_a_flush_is_over_when_what_came_during_a_write_has_left_too() -> None:
    outbox = Outbox()
    outbox.send(ping(1))
    assert [1] == await batch(outbox)
    outbox.send_soon(ping(2))
    flushed = asyncio.create_task(outbox.flush(5.0))
    await asyncio.sleep(0)
    outbox.wrote()
    assert [2] == await batch(outbox)
    assert not flushed.done()
    outbox.wrote()
    assert await flushed


async def test_a_flush_that_nobody_serves_ends() -> None:
    outbox = Outbox()
    assert await outbox.flush(0.01)
    outbox.send(ping(1))
    assert not await outbox.flush(0.01)
    assert [1] == [command.ping.nonce for command in outbox.clear()]
