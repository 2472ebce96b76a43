"""Only the cluster's own routers and replicas talk to each other, with TLS and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.grpc_options import INNER_CHANNEL_OPTIONS
from cluster.queue.heartbeats import ReplicaBeat
from cluster.settings import ReplicaTlsSettings
from cluster.trust.announcement import Announcement
from cluster.trust.link_proof import caller_metadata, check_caller
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from penstock.internal.v1 import replica_pb2 as pb
from penstock.internal.v1 import replica_pb2_grpc as pb_grpc
from router.links.link import ReplicaLink
from router.links.orphaned_output import OrphanedOutput
from router.links.safeguards import LinkSafeguards
from tests.router.links.test_links import RelayedReplica
from tests.support.certificates import Authority, Pair, dns
from tests.support.stack import SECRET, Stack, request, running_stack
from tests.support.waiting import until

OTHER = ClusterSecret(b"not the cluster's secret at all")
NAME = "penstock-replica"


def proof(secret: ClusterSecret = SECRET, replica_id: str = "demo-r0") -> tuple[Any, bytes]:
    return caller_metadata(secret, "router-x", replica_id)


def test_a_proof_counts_for_one_cluster_one_replica_and_one_router() -> None:
    metadata, answer = proof()
    forged = [(key, "router-y" if key == "penstock-router" else value) for key, value in metadata]

    assert ("router-x", answer) == check_caller(SECRET, "demo-r0", metadata)
    assert [None] * 5 == [
        check_caller(SECRET, "demo-r1", metadata),
        check_caller(OTHER, "demo-r0", metadata),
        check_caller(SECRET, "demo-r0", forged),
        check_caller(SECRET, "demo-r0", metadata[:2]),
        check_caller(SECRET, "demo-r0", None),
    ]


async def test_a_replica_refuses_a_proof_that_was_made_for_another_one(tmp_path: Path) -> None:
    """So whoever sits at a dead replica's address can't pass a router's proof on."""
    async with running_stack(tmp_path, routers=0) as stack:
        metadata, _ = proof(replica_id="demo-r7")
        async with grpc.aio.insecure_channel(stack.replicas[0].address) as wire:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await pb_grpc.ReplicaServiceStub(wire).GetStats(pb.GetStatsRequest(), metadata=metadata)
        assert grpc.StatusCode.UNAUTHENTICATED is caught.value.code()


class Impostor(pb_grpc.ReplicaServiceServicer):
    """Welcomes every router, with a proof that it can't know."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heard: list[pb.LinkCommand] = []
        self.sessions = 0

    async def Link(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        self.sessions += 1
        yield pb.LinkResponse(
            welcome=pb.Welcome(protocol_version=1, replica_id="demo-r0", proof=self.answer, attach_grace_ms=1000)
        )
        async for message in request_iterator:
            self.heard.extend(message.commands)


@asynccontextmanager
async def served(servicer: Impostor) -> AsyncIterator[str]:
    server = grpc.aio.server()
    pb_grpc.add_ReplicaServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.mark.parametrize("answer", [b"", b"x" * 32, OTHER.sign("link-answer/2", b"")])
async def test_a_router_sends_no_work_to_whom_does_not_know_the_secret(answer: bytes) -> None:
    impostor = Impostor(answer)
    async with served(impostor) as address:
        link = ReplicaLink(
            "demo-r0",
            address,
            "router-x",
            SECRET,
            LinkDialer(None),
            ping_s=1.0,
            attach_grace_s=5.0,
            on_change=int,
            safeguards=LinkSafeguards(OrphanedOutput(5.0)),
        )
        link.start()
        await until(lambda: impostor.sessions >= 2)
        assert not link.up
        await link.close()
    assert {"hello"} >= {command.WhichOneof("command") for command in impostor.heard}


async def test_a_registry_record_that_was_forged_or_copied_is_never_dialled(tmp_path: Path) -> None:
    """Whoever can write to Redis can't make routers connect to an address of theirs, or to another pool's replica."""
    impostor = Impostor(b"")
    async with running_stack(tmp_path) as stack, served(impostor) as address:
        replica = stack.replicas[0]
        real = replica._announced
        assert real is not None
        record = replace(real, replica_id="demo-evil", address=address)
        sealed = record.seal(SECRET)
        forged = {
            "demo-evil": record.seal(OTHER),
            "demo-liar": sealed[:32] + sealed[32:].replace(b"demo-evil", b"demo-liar"),
        }
        assert [None, None] == [Announcement.open(one, SECRET) for one in forged.values()]
        # Signed by us, but of another replica and for another pool.
        copied = {"demo-copy": sealed, "large-r0": replace(record, replica_id="large-r0", pool="large").seal(SECRET)}
        queue = stack.queue("demo")
        template = ReplicaBeat(
            replica_id="demo-evil",
            record=b"",
            state=replica._state,
            windows=replica.table.windows,
            running=(),
            prefilled=[],
            kv_tokens=0,
            stats={},
        )
        for replica_id, content in {**forged, **copied}.items():
            await queue.heartbeat_replica(replace(template, replica_id=replica_id, record=content))
        pool = stack.routers[0].pools["demo"]
        await until(lambda: pool.beat is not None and len(pool.beat.replicas or ()) == 5)

        assert (0, ["demo-r0"]) == (impostor.sessions, list(pool.replicas.records))
        assert 2 == (await stack.inference().Generate(request(max_tokens=2, ignore_eos=True))).usage.output_tokens


# --- TLS --------------------------------------------------------------------------------------------------------------


def tls_of(folder: Path, authority: Authority, pair: Pair) -> dict[str, str]:
    certificate, key = pair.write(folder, "link")
    return {"certificate_file": certificate, "private_key_file": key, "ca_file": authority.write(folder, "link-ca")}


@asynccontextmanager
async def tls_stack(folder: Path, authority: Authority, routers: int = 1) -> AsyncIterator[Stack]:
    files = tls_of(folder, authority, authority.issue("node", dns(NAME)))
    async with running_stack(folder, routers=routers, sections={"replica": {"tls": files}}) as stack:
        yield stack


async def answer_of(dialer: LinkDialer, address: str, metadata: Any) -> grpc.StatusCode:
    wire = dialer.dial(address, INNER_CHANNEL_OPTIONS)
    try:
        await pb_grpc.ReplicaServiceStub(wire).GetStats(pb.GetStatsRequest(), metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await wire.close()
    return grpc.StatusCode.OK


async def test_links_over_mutual_tls_carry_work_and_nobody_else_gets_in(tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority("stranger")
    async with tls_stack(tmp_path, authority) as stack:
        reply = await stack.inference().Generate(request(max_tokens=5, ignore_eos=True))
        assert 5 == reply.usage.output_tokens

        def dialer(name: str, by: Authority, trusts: Authority) -> LinkDialer:
            folder = tmp_path / name
            folder.mkdir()
            files = tls_of(folder, trusts, by.issue("node", dns(NAME)))
            return LinkDialer(ReplicaTlsSettings(**files))

        address, (good, _), (bad, _) = stack.replicas[0].address, proof(), proof(OTHER)
        ours = dialer("ours", authority, authority)
        assert grpc.StatusCode.OK is await answer_of(ours, address, good)
        # A certificate alone is not enough, and neither is the secret.
        assert grpc.StatusCode.UNAUTHENTICATED is await answer_of(ours, address, bad)
        for refused in (dialer("theirs", stranger, authority), dialer("blind", authority, stranger), LinkDialer(None)):
            assert grpc.StatusCode.UNAVAILABLE is await answer_of(refused, address, good)


async def test_a_replica_whose_certificate_has_another_name_is_not_trusted(tmp_path: Path) -> None:
    authority = Authority()
    files = tls_of(tmp_path, authority, authority.issue("node", dns("a-router")))
    async with running_stack(tmp_path, routers=0, sections={"replica": {"tls": files}}) as stack:
        dialer = LinkDialer(ReplicaTlsSettings(**files))
        assert grpc.StatusCode.UNAVAILABLE is await answer_of(dialer, stack.replicas[0].address, proof()[0])


async def test_certificates_of_links_change_while_they_are_up(tmp_path: Path) -> None:
    """A link that is up stays up; one that breaks comes back with the new certificates, without a restart."""
    old, new = Authority("old"), Authority("new")
    async with tls_stack(tmp_path, old, routers=0) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        link = stack.routers[0].pools["demo"].replicas.link("demo-r0")
        assert link is not None
        await asyncio.to_thread(tls_of, tmp_path, new, new.issue("node", dns(NAME)))
        assert 3 == (await stack.inference().Generate(request(max_tokens=3, ignore_eos=True))).usage.output_tokens
        assert 1 == relay.connections
        # The next connection has to satisfy the new authority on both ends.
        relay.cut()
        await until(lambda: not link.up)
        relay.mend()
        await until(lambda: link.up)

        assert 3 == (await stack.inference().Generate(request(max_tokens=3, ignore_eos=True))).usage.output_tokens
        await relay.close()
