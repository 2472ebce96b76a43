"""Routers of release 0.2, which connect with gRPC to the same port. For one release, so that a cluster can be updated
step by step.

The first of them starts a gRPC server behind the port, on a Unix socket. Its bytes are passed on, out of TLS where the
port has it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc

from cluster.grpc_options import MAX_INNER_MESSAGE, SERVER_OPTIONS
from cluster.lifecycle import TaskOwner
from cluster.short_folders import short_folder
from cluster.trust.link_proof import LinkClaim
from cluster.wire.former_name import FormerNameServer
from deployments.replica.links.questions import QuestionRejected
from deployments.replica.links.session import LinkSession
from deployments.replica.links.side import UNPROVED, ReplicaSide
from penstock.internal.v1 import replica_pb2 as pb
from penstock.internal.v1 import replica_pb2_grpc as pb_grpc

_LOG = logging.getLogger(__name__)

GRPC_PREFACE = b"PRI * HTTP/2.0"
"""First bytes of a gRPC client."""
_SOCKET = "/penstock-former-12345678/grpc"
_STATUS = {
    pb.REJECTION_REASON_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    pb.REJECTION_REASON_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REJECTION_REASON_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    pb.REJECTION_REASON_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
}


class FormerDoor:
    """The gRPC server behind the port; it starts when the first router needs it."""

    def __init__(self, side: ReplicaSide) -> None:
        self._side = side
        self._server: grpc.aio.Server | None = None
        self._folder: Path | None = None
        self._starting = asyncio.Lock()
        self._pipes: set[_Pipe] = set()
        self._owner = TaskOwner("former")

    def let_in(self, transport: asyncio.Transport, head: bytes) -> None:
        """Pass a connection on; `head` is what was read from it."""
        outer = _Pipe(self._pipes)
        outer.connection_made(transport)
        outer.data_received(head)
        transport.set_protocol(outer)
        self._owner.spawn(self._connect(outer), "connect")

    async def _connect(self, outer: _Pipe) -> None:
        try:
            path = await self._start()
            _, inner = await asyncio.get_running_loop().create_unix_connection(lambda: _Pipe(self._pipes), path)
        except BaseException:
            outer.abort()
            raise
        outer.join(inner)

    async def _start(self) -> str:
        async with self._starting:
            if self._folder is None:
                _LOG.info("link.former_routers")
                # A folder that only this user can enter.
                folder = Path(tempfile.mkdtemp(prefix="penstock-former-", dir=short_folder(len(_SOCKET))))
                server = grpc.aio.server(
                    options=[*SERVER_OPTIONS, ("grpc.max_receive_message_length", MAX_INNER_MESSAGE)]
                )
                named: Any = FormerNameServer(server)
                pb_grpc.add_ReplicaServiceServicer_to_server(FormerServicer(self._side), named)
                server.add_insecure_port(f"unix:{folder}/grpc")
                await server.start()
                self._folder, self._server = folder, server
            return f"{self._folder}/grpc"

    async def stop(self, grace_s: float) -> None:
        """End all connections; calls have `grace_s` to end by themselves."""
        if self._server is not None:
            await self._server.stop(grace_s or None)
        for pipe in self._pipes.copy():
            pipe.abort()
        await self._owner.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Pipe(asyncio.Protocol):
    """One end of a connection whose bytes go to the other end."""

    def __init__(self, pipes: set[_Pipe]) -> None:
        self._pipes = pipes
        self._other: _Pipe | None = None
        self._early = bytearray()
        """What came before the other end was there: a client's first words, which wait for an answer."""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pipes.add(self)

    def join(self, other: _Pipe) -> None:
        self._other, other._other = other, self
        for one, peer in ((self, other), (other, self)):
            peer.write(bytes(one._early))
            if one._transport is None:
                peer.end()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def go_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def hold(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)
        else:
            self._early += data

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.hold()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.go_on()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._pipes.discard(self)
        if self._other is not None:
            self._other.end()


class FormerServicer(pb_grpc.ReplicaServiceServicer):
    """Service for routers of release 0.2."""

    def __init__(self, side: ReplicaSide) -> None:
        self._side = side

    async def Link(self, requests: AsyncIterator[pb.LinkRequest], context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """Carry all requests of one router."""
        router_id, proof = await self._authenticate(context)
        first = await anext(aiter(requests), None)
        hello = first.commands[0].hello if first is not None and first.commands else None
        welcome = self._side.welcome(proof, hello)
        if isinstance(welcome, pb.Rejection):
            await _abort(context, welcome.reason, welcome.detail)
            return
        wire = _CallWire(context)
        session = LinkSession(
            self._side.table,
            router_id,
            wire,
            self._side.questions.tokenizer_digest,
            reads_text_deltas=hello is not None and hello.reads_text_deltas,
        )
        wire.session = session
        wire.write(pb.LinkResponse(welcome=welcome))
        try:
            await wire.run(requests)
        finally:
            session.end()
            await session.close()

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> pb.GetTokenizerResponse:  # noqa: N802
        await self._authenticate(context)
        try:
            return self._side.questions.tokenizer(request)
        except QuestionRejected as rejected:
            await _abort(context, rejected.reason, str(rejected))
            raise

    async def CheckConstraint(  # noqa: N802
        self, request: pb.CheckConstraintRequest, context: Any
    ) -> pb.CheckConstraintResponse:
        await self._authenticate(context)
        try:
            return await self._side.questions.judge(request)
        except QuestionRejected as rejected:
            await _abort(context, rejected.reason, str(rejected))
            raise

    async def _authenticate(self, context: Any) -> tuple[str, bytes]:
        claim = LinkClaim.of_metadata(context.invocation_metadata())
        proof = self._side.prove(claim)
        if proof is None:
            _LOG.warning("link.refused", extra={"peer": context.peer(), "error": UNPROVED.detail})
            await _abort(context, UNPROVED.reason, UNPROVED.detail)
            raise AssertionError  # abort always raises
        return claim.router_id, proof


async def _abort(context: Any, reason: pb.RejectionReason.ValueType, detail: str) -> None:
    await context.abort(_STATUS.get(reason, grpc.StatusCode.INTERNAL), detail)


class _CallWire:
    """Wire of a gRPC call. It allows one outstanding write."""

    def __init__(self, context: Any) -> None:
        self.session: LinkSession | None = None
        self._context = context
        self._frames: asyncio.Queue[pb.LinkResponse] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._broken = asyncio.Event()

    async def run(self, requests: AsyncIterator[pb.LinkRequest]) -> None:
        """Carry the session until either end closes the call."""
        works = [asyncio.ensure_future(work) for work in (self._send(), self._read(requests), self._broken.wait())]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _send(self) -> None:
        while True:
            await self._context.write(await self._frames.get())
            if self.session is not None:
                self.session.resume()

    async def _read(self, requests: AsyncIterator[pb.LinkRequest]) -> None:
        async for request in requests:
            await self._may_read.wait()
            if self.session is not None:
                self.session.take(request, request.ByteSize())

    def write(self, frame: pb.LinkResponse) -> None:
        self._frames.put_nowait(frame)
        if self.session is not None:
            self.session.pause()

    def hold(self) -> None:
        self._may_read.clear()

    def go_on(self) -> None:
        self._may_read.set()

    def break_off(self, _failure: Exception) -> None:
        self._broken.set()
