"""The inner gRPC service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from cluster.addresses import host_port
from cluster.digests import TOKENIZER_FILE
from cluster.errors import EngineStartError
from cluster.grpc_options import MAX_INNER_MESSAGE, SERVER_OPTIONS
from cluster.settings import ReplicaSettings
from cluster.trust.link_proof import check_caller
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import TlsFiles
from cluster.wire.former_name import FormerNameServer
from cluster.wire.output_parsing import parsing_from_wire
from deployments.engines.base import Engine, EngineIdentity
from deployments.replica.attempts import AttemptTable
from deployments.replica.link import PROTOCOL_VERSIONS, LinkSession
from penstock.internal.v1 import replica_pb2 as pb
from penstock.internal.v1 import replica_pb2_grpc as pb_grpc
from penstock.wire import structured_from_wire, structured_to_wire, unenforced_to_wire

_LOG = logging.getLogger(__name__)

MAX_TOKENIZER = MAX_INNER_MESSAGE - (64 << 10)
"""Most bytes of tokenizer files. Routers get them in one message."""


def require_tokenizer(identity: EngineIdentity, where: str) -> None:
    """Check that routers can get the tokenizer. Otherwise every request would fail.

    Raises:
        EngineStartError: it is missing or too large. `where` begins the error.
    """
    if TOKENIZER_FILE not in identity.tokenizer_files:
        raise EngineStartError(f"{where}: there is no tokenizer")
    size = sum(map(len, identity.tokenizer_files.values()))
    if size > MAX_TOKENIZER:
        raise EngineStartError(f"{where}: the tokenizer's files have {size} bytes, and at most {MAX_TOKENIZER} fit")


async def open_server(servicer: ReplicaServicer, settings: ReplicaSettings) -> tuple[grpc.aio.Server, int]:
    """Start the inner server. Return it and its port.

    Raises:
        EngineStartError: the port is taken.
    """
    server = grpc.aio.server(
        options=[*SERVER_OPTIONS, ("grpc.max_receive_message_length", MAX_INNER_MESSAGE), ("grpc.so_reuseport", 0)]
    )
    pb_grpc.add_ReplicaServiceServicer_to_server(servicer, server)
    pb_grpc.add_ReplicaServiceServicer_to_server(servicer, FormerNameServer(server))  # type: ignore[arg-type]
    address, tls = host_port(settings.host, settings.port), settings.tls
    port: int = (
        server.add_secure_port(address, TlsFiles.of_link(tls).server_credentials())
        if tls is not None
        else server.add_insecure_port(address)
    )
    if port == 0:
        raise EngineStartError(f"no port could be bound on {settings.host}")
    await server.start()
    return server, port


class ReplicaServicer(pb_grpc.ReplicaServiceServicer):
    """Service for routers that know the cluster secret."""

    def __init__(
        self,
        replica_id: str,
        table: AttemptTable,
        engine: Engine,
        secret: ClusterSecret,
        tokenizer: tuple[str, Mapping[str, bytes]],
        attach_grace_s: float,
    ) -> None:
        """`tokenizer` is the digest, and the content of each file by its name."""
        self._replica_id = replica_id
        self._table = table
        self._engine = engine
        self._secret = secret
        self._tokenizer_digest, self._tokenizer_files = tokenizer
        self._attach_grace_s = attach_grace_s
        self._links = 0
        # Compiling takes a core, which the engine's own process may need.
        self._compiling = asyncio.Semaphore(1)

    async def Link(  # type: ignore[override]  # noqa: N802 - writes through the context, as aio allows
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: Any
    ) -> None:
        """Carry all requests of one router."""
        router_id, proof = await self._authenticate(context)
        first = await anext(aiter(request_iterator), None)
        hello = first.commands[0].hello if first is not None and first.commands else None
        common = [v for v in PROTOCOL_VERSIONS if hello is not None and v in hello.protocol_versions]
        if not common:
            spoken = ", ".join(map(str, PROTOCOL_VERSIONS))
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the first command must be hello with a protocol version of: {spoken}",
            )
        welcome = pb.Welcome(
            protocol_version=common[0],
            replica_id=self._replica_id,
            proof=proof,
            attach_grace_ms=int(self._attach_grace_s * 1000),
        )
        _LOG.info("link.opened", extra={"router": router_id})
        self._links += 1
        try:
            session = LinkSession(self._table, router_id, self._tokenizer_digest)
            await session.run(request_iterator, context.write, welcome)
        finally:
            self._links -= 1

    async def GetStats(self, request: pb.GetStatsRequest, context: Any) -> pb.GetStatsResponse:  # noqa: N802
        await self._authenticate(context)
        stats = self._engine.stats()
        return pb.GetStatsResponse(
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            batch_limit=stats.batch_limit,
            token_budget=stats.token_budget,
            parked=self._table.parked,
            output_tokens=stats.output_tokens,
            steps=stats.steps,
            draft_tokens=stats.draft_tokens,
            accepted_draft_tokens=stats.accepted_draft_tokens,
            retained=self._table.retained,
        )

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> pb.GetTokenizerResponse:  # noqa: N802
        await self._authenticate(context)
        if request.digest != self._tokenizer_digest:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"digest {request.digest!r}; this replica has {self._tokenizer_digest!r}"
            )
        files = [pb.TokenizerFile(name=name, content=content) for name, content in self._tokenizer_files.items()]
        return pb.GetTokenizerResponse(files=files)

    async def CheckConstraint(  # noqa: N802
        self, request: pb.CheckConstraintRequest, context: Any
    ) -> pb.CheckConstraintResponse:
        await self._authenticate(context)
        constraint = structured_from_wire(request.constraint)
        async with self._compiling:
            if request.HasField("parsing"):
                found = await self._engine.judge_calls(parsing_from_wire(request.parsing), constraint)
            elif constraint is not None:
                found = await self._engine.judge(constraint)
            else:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "constraint: is required without parsing")
                raise AssertionError  # abort always raises
        return pb.CheckConstraintResponse(
            problem=found.problem,
            relaxed=None if found.relaxed is None else structured_to_wire(found.relaxed),
            unenforced=map(unenforced_to_wire, found.unenforced),
            field=found.field,
        )

    async def _authenticate(self, context: Any) -> tuple[str, bytes]:
        caller = check_caller(self._secret, self._replica_id, context.invocation_metadata())
        if caller is None:
            _LOG.warning("link.refused", extra={"peer": context.peer()})
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the caller did not prove the cluster secret")
            raise AssertionError  # abort always raises
        return caller
