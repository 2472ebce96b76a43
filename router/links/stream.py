"""Connections to replicas on plain streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from itertools import groupby

from cluster.errors import LinkLostError
from cluster.lifecycle import timeout_awake
from cluster.wire.framing import MAX_FRAME, FrameError, FrameProtocol, OtherProtocolError
from penstock.internal.v1 import replica_pb2 as pb
from router.links.ends import LinkEnds, WireNews


class ReplicaStream(FrameProtocol):
    """Connection to one replica: a hello and its answer, then all work, or one question."""

    def __init__(self) -> None:
        super().__init__()
        self._news: WireNews | None = None
        self._answer: asyncio.Future[pb.LinkResponse] | None = None
        self._closed = asyncio.Event()

    async def ask(self, request: pb.LinkRequest) -> pb.LinkResponse:
        """Send a message, and return the answer.

        Raises:
            OtherProtocolError: the peer speaks another protocol.
            LinkLostError: the connection ended.
        """
        self._answer = asyncio.get_running_loop().create_future()
        if self.lost:
            raise self._loss()
        self.send(request.SerializeToString())
        return await self._answer

    def carry(self, news: WireNews) -> None:
        """Report from now on."""
        self._news = news

    def write(self, commands: Sequence[pb.LinkCommand]) -> None:
        """Send commands, in one message where they fit. One with images goes alone: many of them would take more bytes
        than a message can have, and a copy of each for nothing.
        """
        for images, some in groupby(commands, lambda each: bool(each.start.images)):
            for each in ([one] for one in some) if images else [list(some)]:
                self._write(each)

    def _write(self, commands: Sequence[pb.LinkCommand]) -> None:
        try:
            payload = pb.LinkRequest(commands=commands).SerializeToString()
            if len(payload) <= MAX_FRAME:
                self.send(payload)
                return
            for command in commands:
                self.send(pb.LinkRequest(commands=[command]).SerializeToString())
        except FrameError as error:
            self.break_off(error)

    async def wait_closed(self) -> None:
        """Wait for the end of the connection.

        Raises:
            LinkLostError: always, at the end, with its reason.
        """
        await self._closed.wait()
        raise self._loss()

    def _loss(self) -> Exception:
        if isinstance(self.failure, OtherProtocolError):
            return self.failure
        if self._news is None or self.failure is None or isinstance(self.failure, OSError | FrameError):
            return LinkLostError(f"the replica closed the link: {self.failure or 'end of the stream'}")
        # An error of ours, with its traceback.
        return self.failure

    # --- FrameProtocol ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send_preface()

    def on_message(self, payload: bytes) -> None:
        frame = pb.LinkResponse.FromString(payload)
        if self._news is not None:
            self._news.on_frame(frame)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)
        else:
            raise FrameError("a message that nobody asked for")

    def on_lost(self) -> None:
        self._closed.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._loss())

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._news is not None:
            self._news.on_full()

    def on_writable(self) -> None:
        if self._news is not None:
            self._news.on_writable()


async def open_stream(ends: LinkEnds, seconds: float) -> ReplicaStream:
    """Connect to a replica and have it welcome this router, within `seconds`.

    Raises:
        OtherProtocolError: the replica speaks another protocol: it is of release 0.2.
        LinkError: nobody answers, or the peer does not belong to this cluster.
    """
    claim, answer = ends.claim()
    try:
        async with timeout_awake(seconds):
            stream = await ends.dialer.connect(ends.address, ReplicaStream)
            try:
                first = await stream.ask(ends.hello(claim))
                ends.check_welcome(first, answer)
                stream.most = MAX_FRAME
            except BaseException:
                stream.break_off()
                raise
    except TimeoutError:
        # A peer that is connected but silent (stopped, or behind a dead network) would stop the grace from ending.
        raise LinkLostError(f"{ends.replica_id} did not answer within {seconds:g} s") from None
    except ssl.SSLCertVerificationError as error:
        shown = f"{ends.replica_id} at {ends.address} shows a certificate that is not accepted: {error.verify_message}"
        raise LinkLostError(f"{shown}; look at its replica.tls.certificate_file, and at ca_file here") from error
    except OSError as error:
        raise LinkLostError(f"{ends.replica_id} at {ends.address}: {error}") from error
    return stream
