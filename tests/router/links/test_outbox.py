"""Commands on their way out: who waits, and what leaves together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.internal.v1 import replica_pb2 as pb
from router.links import outbox as module
from router.links.outbox import Outbox
from tests.support.waiting import until


def ping(nonce: int) -> pb.LinkCommand:
    return pb.LinkCommand(ping=pb.Ping(nonce=nonce))


class Written:
    """Messages that left, each as the numbers of its commands."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []

    def __call__(self, commands: Sequence[pb.LinkCommand]) -> None:
        self.messages.append([command.ping.nonce for command in commands])


async def test_commands_of_one_turn_share_a_message() -> None:
    outbox, written = Outbox(), Written()
    outbox.attach(written)
    for number in range(3):
        outbox.send(ping(number))
    assert [] == written.messages
    await asyncio.sleep(0)
    outbox.send(ping(3))
    await asyncio.sleep(0)
    assert [[0, 1, 2], [3]] == written.messages


async def test_what_waits_leaves_with_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEISURE_S", 3600.0)
    outbox, written = Outbox(), Written()
    outbox.attach(written)
    outbox.send_soon(ping(1))
    outbox.send_soon(ping(2))
    await asyncio.sleep(0)
    assert [] == written.messages
    outbox.send(ping(3))
    await until(lambda: [[1, 2, 3]] == written.messages)


async def test_what_waits_leaves_alone_after_a_moment() -> None:
    outbox, written = Outbox(), Written()
    outbox.attach(written)
    outbox.send_soon(ping(1))
    await until(lambda: [[1]] == written.messages)


async def test_what_comes_without_a_connection_leaves_with_the_next_one() -> None:
    outbox, written = Outbox(), Written()
    outbox.send(ping(1))
    outbox.attach(written)
    await until(lambda: [[1]] == written.messages)
    outbox.detach()
    outbox.send(ping(2))
    await asyncio.sleep(0)
    assert [2] == [command.ping.nonce for command in outbox.clear()]


async def test_nothing_leaves_while_the_connection_is_full() -> None:
    outbox, written = Outbox(), Written()
    outbox.attach(written)
    outbox.pause()
    outbox.send(ping(1))
    outbox.flush()
    await asyncio.sleep(0)
    outbox.send(ping(2))
    await asyncio.sleep(0)
    assert [] == written.messages
    outbox.resume()
    await until(lambda: [[1, 2]] == written.messages)


async def test_a_flush_takes_along_what_is_not_urgent() -> None:
    outbox, written = Outbox(), Written()
    outbox.attach(written)
    outbox.send_soon(ping(1))
    outbox.flush()
    assert ([[1]], 0) == (written.messages, len(outbox))
