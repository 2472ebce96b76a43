"""Routers and replicas of this release work with those of release 0.2, which connect with gRPC."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.addresses import host_port
from cluster.settings import ReplicaSettings
from cluster.trust.link_proof import LinkClaim
from cluster.trust.tls import TlsFiles
from cluster.wire.former_name import FormerNameChannel, FormerNameServer
from cluster.wire.framing import OtherProtocolError
from deployments.replica.links.former import FormerServicer
from deployments.replica.links.side import ReplicaSide
from penstock.internal.v1 import replica_pb2 as pb
from penstock.internal.v1 import replica_pb2_grpc as pb_grpc
from tests.router.links.parts import read_until
from tests.router.links.test_link_security import NAME, tls_of
from tests.support.certificates import Authority, dns
from tests.support.stack import SECRET, collect, ids_of, request, running_stack, stream_request, text_of
from tests.support.waiting import until


class FormerServer:
    """The port of a replica of release 0.2."""

    def __init__(self, side: ReplicaSide) -> None:
        self.server = grpc.aio.server()
        named: Any = FormerNameServer(self.server)
        pb_grpc.add_ReplicaServiceServicer_to_server(FormerServicer(side), named)

    async def start(self, settings: ReplicaSettings) -> int:
        address = host_port(settings.host, settings.port)
        if settings.tls is None:
            port = self.server.add_insecure_port(address)
        else:
            port = self.server.add_secure_port(address, TlsFiles.of_link(settings.tls).server_credentials())
        await self.server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        await self.server.stop(grace_s)


def sections(folder: Path, *, tls: bool) -> dict[str, Any]:
    authority = Authority()
    return {"replica": {"tls": tls_of(folder, authority, authority.issue("node", dns(NAME)))}} if tls else {}


async def answered(folder: Path, *, tls: bool = False) -> None:
    """Check that generations end well, whole and streamed, and that an abort arrives."""
    async with running_stack(folder, sections=sections(folder, tls=tls), sim={"base_ms": 2.0}) as stack:
        whole = await stack.inference().Generate(request())
        events = await collect(stack.inference().StreamGenerate(stream_request()))
        assert whole.choices[0].text == text_of(events) != ""
        long = await collect(stack.inference().StreamGenerate(stream_request(max_tokens=300, ignore_eos=True)))
        assert 300 == len(ids_of(long))
        call = stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True))
        await read_until(call, 5)
        call.cancel()
        await until(lambda: stack.replicas[0].table.sequences == 0)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_router_serves_with_a_replica_of_the_former_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr("deployments.replica.replica.LinkServer", FormerServer)
    await answered(tmp_path, tls=tls)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_replica_serves_a_router_of_the_former_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    async def speaks_grpc(*_: object) -> None:
        raise OtherProtocolError

    monkeypatch.setattr("router.links.link.open_stream", speaks_grpc)
    monkeypatch.setattr("router.links.questions.open_stream", speaks_grpc)
    await answered(tmp_path, tls=tls)


async def test_the_former_protocol_needs_secret_and_version_too(tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, routers=0) as stack,
        grpc.aio.insecure_channel(stack.replicas[0].address) as wire,
    ):
        stub: Any = pb_grpc.ReplicaServiceStub(FormerNameChannel(wire))  # type: ignore[arg-type]
        hello = pb.LinkCommand(hello=pb.Hello(protocol_versions=[999], router_id="router-x"))
        proved = LinkClaim.make(SECRET, "router-x", "demo-r0")[0].metadata()
        with pytest.raises(grpc.aio.AioRpcError) as unproved:
            await stub.GetTokenizer(pb.GetTokenizerRequest())
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetTokenizer(pb.GetTokenizerRequest(), metadata=proved)
        with pytest.raises(grpc.aio.AioRpcError) as unproved_link:
            await stub.Link(iter([pb.LinkRequest(commands=[hello])])).read()
        with pytest.raises(grpc.aio.AioRpcError) as too_new:
            await stub.Link(iter([pb.LinkRequest(commands=[hello])]), metadata=proved).read()
        assert ["UNAUTHENTICATED", "NOT_FOUND", "UNAUTHENTICATED", "FAILED_PRECONDITION"] == [
            caught.value.code().name for caught in (unproved, unknown, unproved_link, too_new)
        ]


def test_links_of_the_former_release_go_with_the_release_after_the_next() -> None:
    """A release works with the one before it. What is only for 0.2 can be deleted then, with this file."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
    major, minor, *_ = tomllib.loads(text)["project"]["version"].split(".")
    assert (int(major), int(minor)) < (0, 4)
