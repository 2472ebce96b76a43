"""Messages behind their length, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cluster.wire import framing
from cluster.wire.framing import FrameError, FrameProtocol
from tests.support.waiting import settled_transports, until


class End(FrameProtocol):
    """Keeps what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = framing.MAX_FRAME
        self.got: list[bytes] = []

    def on_message(self, payload: bytes) -> None:
        self.got.append(payload)
        if payload == b"a bug":
            raise RuntimeError("a bug")


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[End, End]]:
    """Connect two ends that have met."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Queue[End] = asyncio.Queue()

    class Accepted(End):
        def on_met(self) -> None:
            self.send_preface()
            accepted.put_nowait(self)

    server = await loop.create_server(Accepted, "127.0.0.1", 0)
    _, client = await loop.create_connection(End, "127.0.0.1", server.sockets[0].getsockname()[1])
    client.send_preface()
    other = await accepted.get()
    yield client, other
    client.break_off()
    other.break_off()
    server.close()
    await until(lambda: client.lost and other.lost)
    await settled_transports()


async def test_messages_of_all_sizes_come_whole_and_in_order() -> None:
    sizes = [0, 1, 3, 70_000, 5, 4 << 20, 2]
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    async with pair() as (one, other):
        for payload in sent:
            one.send(payload)
            other.send(payload)
        await until(lambda: (len(one.got), len(other.got)) == (len(sent), len(sent)))
        assert (sent, sent) == (one.got, other.got)


async def test_messages_that_came_together_leave_turns_to_others() -> None:
    async with pair() as (one, other):
        one.hold()
        for _ in range(200):
            other.send(b"x" * 4_096)
        await until(lambda: other.unsent == 0)
        one.go_on()
        turns = []
        while len(one.got) < 200:
            turns.append(len(one.got))
            await asyncio.sleep(0)
        assert max(after - before for before, after in itertools.pairwise(turns)) <= 1 + (framing.TURN_BYTES // 4_096)


async def test_nothing_is_read_while_anything_holds() -> None:
    async with pair() as (one, other):
        one.hold()
        one.hold()
        other.send(b"x")
        one.go_on()
        await settled_transports()
        assert [] == one.got
        one.go_on()
        await until(lambda: [b"x"] == one.got)


async def test_a_message_that_is_too_large_ends_the_connection_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as (one, other):
        with pytest.raises(FrameError, match=f"at most {framing.MAX_FRAME} fit"):
            one.send(bytes(framing.MAX_FRAME + 1))
        one.most = 10
        other.send(b"x" * 10)
        await until(lambda: len(one.got) == 1)
        other.send(b"x" * 11)
        await until(lambda: one.lost and other.lost)
        assert "a message of 11 bytes; at most 10 may come" == str(one.failure)


async def test_after_the_end_nothing_more_is_handled() -> None:
    """A peer that proved nothing could have a thousand messages answered with a refusal each."""
    async with pair() as (one, other):
        one.hold()
        for _ in range(100):
            other.send(b"x")
        await until(lambda: other.unsent == 0)
        heard = one.on_message

        def refuse(payload: bytes) -> None:
            heard(payload)
            one.finish()

        one.on_message = refuse  # type: ignore[method-assign]
        one.go_on()
        await until(lambda: one.lost and other.lost)
        assert [b"x"] == one.got


async def test_an_error_of_the_receiver_ends_its_connection() -> None:
    async with pair() as (one, other):
        other.send(b"a bug")
        other.send(b"more")
        await until(lambda: one.lost)
        assert ([b"a bug"], "a bug") == (one.got, str(one.failure))
