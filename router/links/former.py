"""Connections to replicas of release 0.2, which only speak gRPC. For one release, so that a cluster can be updated step
by step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from cluster.errors import LinkLostError
from cluster.grpc_options import INNER_CHANNEL_OPTIONS
from cluster.lifecycle import TaskOwner, timeout_awake
from cluster.wire.former_name import FormerNameChannel
from penstock.internal.v1 import replica_pb2 as pb
from penstock.internal.v1 import replica_pb2_grpc as pb_grpc
from router.links.ends import LinkEnds, WireNews

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
_ERRORS = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)


class FormerCall:
    """Call that carries all work, like a `ReplicaStream`."""

    def __init__(self, channel: grpc.aio.Channel, call: Any, replica_id: str) -> None:
        self._channel = channel
        self._call = call
        self._replica_id = replica_id
        self._owner = TaskOwner(f"link.{replica_id}.former")
        self._commands: asyncio.Queue[pb.LinkRequest] = asyncio.Queue()
        self._news: WireNews | None = None

    def carry(self, news: WireNews) -> None:
        """Report from now on."""
        self._news = news
        self._owner.spawn(self._send(), "send")

    def write(self, commands: Sequence[pb.LinkCommand]) -> None:
        """Send commands in one message."""
        self._commands.put_nowait(pb.LinkRequest(commands=commands))

    @property
    def unsent(self) -> int:
        """Number of messages that wait to be sent."""
        return self._commands.qsize()

    def break_off(self) -> None:
        """End the call at once."""
        self._call.cancel()

    async def wait_closed(self) -> None:
        """Read frames until the end of the call.

        Raises:
            LinkLostError: always, at the end, with its reason.
        """
        try:
            while (frame := await self._call.read()) is not _EOF:
                if self._news is not None:
                    self._news.on_frame(frame)
            raise LinkLostError(f"{self._replica_id} closed the link: {await self._call.code()}")
        except _ERRORS as error:
            raise LinkLostError(f"{self._replica_id}: {error}") from error
        except asyncio.CancelledError:
            # gRPC raises this also when the call was cancelled. Only the cancellation of this task may end the link.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkLostError(f"{self._replica_id}: the stream broke") from None
        finally:
            self._call.cancel()
            await self._owner.close()
            await self._channel.close(None)

    async def _send(self) -> None:
        try:
            while True:
                await self._call.write(await self._commands.get())
        except _ERRORS:
            self._call.cancel()


@asynccontextmanager
async def _stub(ends: LinkEnds) -> AsyncIterator[tuple[grpc.aio.Channel, Any]]:
    """Open a channel and a stub; the channel is closed after an error."""
    channel = ends.dialer.dial(ends.address, INNER_CHANNEL_OPTIONS)
    named: Any = FormerNameChannel(channel)
    try:
        yield channel, pb_grpc.ReplicaServiceStub(named)
    except BaseException:
        await channel.close(None)
        raise


async def open_former(ends: LinkEnds) -> FormerCall:
    """Have a replica of release 0.2 welcome this router.

    Raises:
        LinkError: nobody answers, or the peer does not belong to this cluster.
    """
    claim, answer = ends.claim()
    async with _stub(ends) as (channel, stub):
        call = stub.Link(metadata=claim.metadata())
        try:
            async with timeout_awake(ends.ping_s):
                await call.write(ends.hello())
                first = await call.read()
            ends.check_welcome(pb.LinkResponse() if first is _EOF else first, answer)
        except TimeoutError:
            call.cancel()
            raise LinkLostError(f"{ends.replica_id} did not answer within {ends.ping_s:g} s") from None
        except _ERRORS as error:
            raise LinkLostError(f"{ends.replica_id}: {error}") from error
        except BaseException:
            call.cancel()
            raise
        return FormerCall(channel, call, ends.replica_id)


async def ask_former(ends: LinkEnds, question: pb.LinkCommand, seconds: float) -> pb.LinkResponse:
    """Ask a replica of release 0.2 a question, and return its answer.

    Raises:
        LinkLostError: it is gone, took too long, does not know the question, or has no answer.
    """
    metadata = ends.claim()[0].metadata()
    async with _stub(ends) as (channel, stub):
        try:
            if question.HasField("get_tokenizer"):
                found = await stub.GetTokenizer(question.get_tokenizer, metadata=metadata, timeout=seconds)
                answer = pb.LinkResponse(tokenizer=found)
            else:
                found = await stub.CheckConstraint(question.check_constraint, metadata=metadata, timeout=seconds)
                answer = pb.LinkResponse(judgement=found)
        except grpc.aio.AioRpcError as error:
            raise LinkLostError(f"{ends.replica_id}: {error.code().name}: {error.details()}") from error
        await channel.close(None)
        return answer
