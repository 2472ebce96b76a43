"""The port of a replica. Routers that know the cluster secret connect to it."""

from __future__ import annotations

import asyncio
import logging
import socket

from cluster.addresses import EVERY_ADDRESS, family_of, listening_host
from cluster.errors import EngineStartError
from cluster.lifecycle import TaskOwner
from cluster.settings import ReplicaSettings
from cluster.trust.link_proof import LinkClaim
from cluster.trust.tls import GRPC_ALPN, TlsFiles
from cluster.wire.framing import ALPN, MAX_FRAME, FrameError, FrameProtocol
from deployments.replica.links.former import GRPC_PREFACE, FormerDoor
from deployments.replica.links.questions import QuestionRejected
from deployments.replica.links.session import LinkSession
from deployments.replica.links.side import UNPROVED, ReplicaSide
from penstock.internal.v1 import replica_pb2 as pb

_LOG = logging.getLogger(__name__)

HELLO_S = 10.0
"""Longest wait for the hello of a new connection."""
LOOK_S = 10.0
"""Pause between two looks whether a router was silent."""
SILENCE_S = 40.0
"""Silence after which a router counts as gone, where it pings often enough."""
_BACKLOG = 1_024


class LinkServer:
    """Listener for routers, and their connections."""

    def __init__(self, side: ReplicaSide) -> None:
        self.side = side
        self.connections: set[RouterConnection] = set()
        self.sessions: set[LinkSession] = set()
        """Sessions that still have tasks."""
        self.owner = TaskOwner(f"links.{side.replica_id}")
        self.former = FormerDoor(side)
        self.stopping = False
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    async def start(self, settings: ReplicaSettings) -> int:
        """Listen, and return the port.

        Raises:
            EngineStartError: the port is taken.
        """
        tls = TlsFiles.of_link(settings.tls).server_context(ALPN, GRPC_ALPN) if settings.tls is not None else None
        host = listening_host(settings.host)
        try:
            own = socket.create_server(
                (host, settings.port), family=family_of(host), backlog=_BACKLOG, dualstack_ipv6=host == EVERY_ADDRESS
            )
        except OSError as error:
            raise EngineStartError(f"no port could be bound on {settings.host}: {error}") from error
        # Connections have it from their port. asyncio does not set it on those of a socket that names no protocol, and
        # output would then wait for the acknowledgement of the output before it, 40 ms.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: RouterConnection(self),
            sock=own,
            ssl=tls,
            ssl_handshake_timeout=HELLO_S if tls is not None else None,
            backlog=_BACKLOG,
        )
        return int(own.getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Send what is due and end all connections; those that take longer than `grace_s` are broken off."""
        self.stopping = True
        if self._server is not None:
            # asyncio leaves a connection open that it has taken and not set up when its server closes. So nothing more
            # is taken, and what was taken is set up first.
            for each in self._server.sockets:
                asyncio.get_running_loop().remove_reader(each.fileno())
            await asyncio.sleep(0)
            self._server.close()
        if grace_s > 0:
            for connection in self.connections.copy():
                connection.part()
            await self._wait_empty(grace_s)
        await self.former.stop(grace_s)
        for connection in self.connections.copy():
            connection.break_off()
        await self._wait_empty(1.0)
        await asyncio.gather(*(self.close(session) for session in self.sessions.copy()))
        await self.owner.close()

    async def _wait_empty(self, seconds: float) -> None:
        self._empty.clear()
        if self.connections:
            try:
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
            except TimeoutError:
                return

    async def close(self, session: LinkSession) -> None:
        """Close a session whose connection is over."""
        await session.close()
        self.sessions.discard(session)

    def forget(self, connection: RouterConnection) -> None:
        """Note that a connection is over, or is no connection of this protocol."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()


class RouterConnection(FrameProtocol):
    """Connection of one router: hello, then all its work, or one question."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__()
        self._server = server
        self._side = server.side
        self._router_id = ""
        self._reads_text_deltas = False
        """Id of the router; empty until it was welcomed."""
        self._session: LinkSession | None = None
        self._answer: asyncio.Task[None] | None = None
        self._parting = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard = True
        """Whether anything came since the last look."""
        self._silent = 0
        """Looks in a row that found silence."""
        self._most_silent = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)
        if self._server.stopping:
            # It came while the port closed.
            self.break_off()
            return
        self._timer = asyncio.get_running_loop().call_later(HELLO_S, self._look)

    def on_met(self) -> None:
        self.send_preface()

    def on_stranger(self, head: bytes) -> None:
        if head[: len(GRPC_PREFACE)] != GRPC_PREFACE[: len(head)]:
            super().on_stranger(head)
        # A router of release 0.2. From here on the bytes go to a gRPC server.
        self._stop_timer()
        self._server.forget(self)
        self._server.former.let_in(self.transport, head)

    def on_lost(self) -> None:
        self._stop_timer()
        self._server.forget(self)
        if self.failure is not None and not isinstance(self.failure, OSError):
            peer = self.transport.get_extra_info("peername")
            _LOG.warning("link.refused", extra={"peer": peer, "error": str(self.failure)})
        if self._answer is not None:
            self._answer.cancel()
        if self._session is not None:
            self._session.end()
        if self._session in self._server.sessions:
            self._server.owner.spawn(self._server.close(self._session), "close")

    def part(self) -> None:
        """Send what is due, and ask the router to close the connection."""
        if self._session is not None:
            self._session.flush()
        self._parting = True
        if not self.lost and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.finish()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """End a connection whose router is silent."""
        # Looks are counted, not seconds: this process may have stood still.
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if not self._router_id:
            self.break_off(FrameError(f"no hello within {HELLO_S:g} s"))
        elif self._silent > self._most_silent:
            _LOG.warning("link.silent", extra={"router": self._router_id, "seconds": LOOK_S * self._silent})
            self.break_off()
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    # --- messages -----------------------------------------------------------------------------------------------------

    def on_message(self, payload: bytes) -> None:
        self._heard = True
        request = pb.LinkRequest.FromString(payload)
        if self._session is not None:
            self._session.take(request, len(payload))
        elif not self._router_id:
            self._meet_router(request)
        else:
            self._begin(request, len(payload))

    def _meet_router(self, request: pb.LinkRequest) -> None:
        hello = request.commands[0].hello if request.commands else pb.Hello()
        proof = self._side.prove(LinkClaim(hello.router_id, hello.nonce, hello.proof))
        answer = self._side.welcome(proof, hello) if proof is not None else UNPROVED
        if isinstance(answer, pb.Rejection):
            self._reject(answer)
            return
        self._router_id, self.most = hello.router_id, MAX_FRAME
        self._reads_text_deltas = hello.reads_text_deltas
        self._most_silent = max(int(SILENCE_S / LOOK_S), int(3 * hello.ping_ms / 1000 / LOOK_S))
        self.write(pb.LinkResponse(welcome=answer))

    def _begin(self, request: pb.LinkRequest, size: int) -> None:
        if self._answer is not None:
            raise FrameError("a second question on one connection")
        kind = request.commands[0].WhichOneof("command") if request.commands else None
        if kind is None:
            # A newer router may ask what this replica can't answer.
            self._reject(pb.Rejection(reason=pb.REJECTION_REASON_INVALID, detail="the replica knows no such command"))
        elif kind in ("get_tokenizer", "check_constraint", "expand_images"):
            self._answer = self._server.owner.spawn(self._reply(request.commands[0]), "answer")
        else:
            digest = self._side.questions.tokenizer_digest
            self._session = LinkSession(
                self._side.table, self._router_id, self, digest, reads_text_deltas=self._reads_text_deltas
            )
            self._server.sessions.add(self._session)
            self._session.take(request, size)

    async def _reply(self, question: pb.LinkCommand) -> None:
        answer = pb.LinkResponse()
        try:
            if question.HasField("get_tokenizer"):
                answer.tokenizer.CopyFrom(self._side.questions.tokenizer(question.get_tokenizer))
            elif question.HasField("expand_images"):
                answer.expanded_images.CopyFrom(await self._side.questions.expand_images(question.expand_images))
            else:
                answer.judgement.CopyFrom(await self._side.questions.judge(question.check_constraint))
            self.write(answer)
            self.finish()
        except QuestionRejected as rejected:
            self._reject(pb.Rejection(reason=rejected.reason, detail=str(rejected)))
        except Exception as error:  # noqa: BLE001 - the router hears of it
            _LOG.exception("link.question_failed", extra={"router": self._router_id})
            self._reject(pb.Rejection(reason=pb.REJECTION_REASON_INTERNAL, detail=str(error)))

    def _reject(self, rejection: pb.Rejection) -> None:
        peer = self.transport.get_extra_info("peername")
        _LOG.warning("link.refused", extra={"peer": peer, "error": rejection.detail})
        self.write(pb.LinkResponse(rejection=rejection))
        self.finish()

    # --- Wire of the session ------------------------------------------------------------------------------------------

    def write(self, frame: pb.LinkResponse) -> None:
        """Send a frame, unless it is empty."""
        if self._parting:
            return
        if payload := frame.SerializeToString():
            self.send(payload)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._session is not None:
            self._session.pause()

    def on_writable(self) -> None:
        if self._session is not None:
            self._session.resume()
