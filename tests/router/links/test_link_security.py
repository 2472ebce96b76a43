"""Only the cluster's own routers and replicas talk to each other, with TLS and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from cluster.errors import LinkError, LinkRefusedError
from cluster.queue.heartbeats import ReplicaBeat
from cluster.settings import ReplicaTlsSettings
from cluster.trust.announcement import Announcement
from cluster.trust.link_proof import LinkClaim
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import Connection, LinkDialer
from cluster.wire.framing import FrameProtocol
from penstock.internal.v1 import replica_pb2 as pb
from router.links.ends import LinkEnds
from router.links.link import ReplicaLink
from router.links.orphaned_output import OrphanedOutput
from router.links.safeguards import LinkSafeguards
from router.links.stream import open_stream
from tests.router.links.parts import RelayedReplica, ends_of
from tests.support.certificates import Authority, Pair, dns
from tests.support.stack import SECRET, Stack, request, running_stack
from tests.support.waiting import settled_transports, until

OTHER = ClusterSecret(b"not the cluster's secret at all")
NAME = "penstock-replica"


def test_a_proof_counts_for_one_cluster_one_replica_and_one_router() -> None:
    claim, answer = LinkClaim.make(SECRET, "router-x", "demo-r0")

    assert answer == claim.answer(SECRET, "demo-r0")
    assert claim == LinkClaim.of_metadata(claim.metadata())
    assert [None] * 6 == [
        claim.answer(SECRET, "demo-r1"),
        claim.answer(OTHER, "demo-r0"),
        replace(claim, router_id="router-y").answer(SECRET, "demo-r0"),
        replace(claim, proof=b"").answer(SECRET, "demo-r0"),
        LinkClaim.of_metadata(claim.metadata()[:2]).answer(SECRET, "demo-r0"),
        LinkClaim.of_metadata(None).answer(SECRET, "demo-r0"),
    ]


async def test_a_replica_refuses_a_proof_that_was_made_for_another_one(tmp_path: Path) -> None:
    """So whoever sits at a dead replica's address can't pass a router's proof on."""
    async with running_stack(tmp_path, routers=0) as stack:
        with pytest.raises(LinkRefusedError, match="did not prove the cluster secret"):
            await open_stream(ends_of(stack.replicas[0].address, replica_id="demo-r7"), 5.0)


class Impostor(FrameProtocol):
    """Welcomes every router, with a proof that it can't know."""

    answer = b""
    heard: ClassVar[list[pb.LinkCommand]] = []
    sessions = 0

    def on_met(self) -> None:
        Impostor.sessions += 1
        self.send_preface()
        welcome = pb.Welcome(protocol_version=1, replica_id="demo-r0", proof=Impostor.answer, attach_grace_ms=1000)
        self.send(pb.LinkResponse(welcome=welcome).SerializeToString())

    def on_message(self, payload: bytes) -> None:
        Impostor.heard.extend(pb.LinkRequest.FromString(payload).commands)


@asynccontextmanager
async def impostor(answer: bytes) -> AsyncIterator[str]:
    Impostor.answer, Impostor.sessions = answer, 0
    Impostor.heard.clear()
    server = await asyncio.get_running_loop().create_server(Impostor, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await settled_transports()


@pytest.mark.parametrize("answer", [b"", b"x" * 32, OTHER.sign("link-answer/2", b"")])
async def test_a_router_sends_no_work_to_whom_does_not_know_the_secret(answer: bytes) -> None:
    async with impostor(answer) as address:
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
        await until(lambda: Impostor.sessions >= 2)
        assert not link.up
        await link.close()
    assert {"hello"} >= {command.WhichOneof("command") for command in Impostor.heard}


async def test_a_registry_record_that_was_forged_or_copied_is_never_dialled(tmp_path: Path) -> None:
    """Whoever can write to Redis can't make routers connect to an address of theirs, or to another pool's replica."""
    async with running_stack(tmp_path) as stack, impostor(b"") as address:
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

        assert (0, ["demo-r0"]) == (Impostor.sessions, list(pool.replicas.records))
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


async def refusal(ends: LinkEnds) -> str:
    """Return the class of error that a router gets; empty where it is welcome."""
    try:
        (await open_stream(ends, 10.0)).break_off()
    except LinkError as error:
        return type(error).__name__
    return ""


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

        address, ours = stack.replicas[0].address, dialer("ours", authority, authority)
        assert "" == await refusal(ends_of(address, dialer=ours))
        # A certificate alone is not enough, and neither is the secret.
        assert "LinkRefusedError" == await refusal(ends_of(address, dialer=ours, secret=OTHER))
        for refused in (dialer("theirs", stranger, authority), dialer("blind", authority, stranger), LinkDialer(None)):
            assert "LinkLostError" == await refusal(ends_of(address, dialer=refused))


async def test_a_bad_certificate_of_links_is_counted_when_it_is_noticed(tmp_path: Path) -> None:
    authority = Authority()
    async with tls_stack(tmp_path, authority) as stack:
        metrics = stack.routers[0]._metrics.registry

        def bad() -> float | None:
            return metrics.get_sample_value(
                "penstock_router_file_reloads_total", {"file": "replica.tls", "outcome": "bad"}
            )

        assert 0 == bad()
        # A certificate that is not that of the key.
        authority.write(tmp_path, "link")
        # The last good one stays in force.
        ours = stack.routers[0].pools["demo"].replicas._dialer
        assert "" == await refusal(ends_of(stack.replicas[0].address, dialer=ours))
        assert 1 == bad()


async def test_a_replica_whose_certificate_has_another_name_is_not_trusted(tmp_path: Path) -> None:
    authority = Authority()
    files = tls_of(tmp_path, authority, authority.issue("node", dns("a-router")))
    async with running_stack(tmp_path, routers=0, sections={"replica": {"tls": files}}) as stack:
        dialer = LinkDialer(ReplicaTlsSettings(**files))
        assert "LinkLostError" == await refusal(ends_of(stack.replicas[0].address, dialer=dialer))


class CountingDialer(LinkDialer):
    """Dialer that counts its tries."""

    count = 0

    async def connect(self, address: str, protocol: Callable[[], Connection]) -> Connection:
        self.count += 1
        return await super().connect(address, protocol)


async def test_a_link_that_stays_down_says_why_once_and_then_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at each of its five tries a second."""
    caplog.set_level("INFO", "router.links.link")
    authority = Authority()
    files = tls_of(tmp_path, authority, authority.issue("node", dns(NAME), days=-40))
    async with running_stack(tmp_path, routers=0, sections={"replica": {"tls": files}}) as stack:
        dialer = CountingDialer(ReplicaTlsSettings(**files))
        link = ReplicaLink(
            "demo-r0",
            stack.replicas[0].address,
            "router-x",
            SECRET,
            dialer,
            ping_s=1.0,
            attach_grace_s=0.5,
            on_change=int,
            safeguards=LinkSafeguards(OrphanedOutput(5.0)),
        )
        link.start()
        await until(lambda: "WARNING" in levels(caplog))
        tried = dialer.count
        await until(lambda: dialer.count > tried + 2)
        await link.close()
    assert ["INFO", "WARNING"] == levels(caplog)
    told = next(vars(each)["error"] for each in caplog.records if each.message == "link.down")
    assert "certificate that is not accepted: certificate has expired; look at its replica.tls.certificate_file" in told
    assert told == link.down_because


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels at which it was told that a link is down."""
    return [each.levelname for each in caplog.records if each.message == "link.down"]


async def test_certificates_of_links_change_while_they_are_up(tmp_path: Path) -> None:
    """A link that is up stays up; one that breaks comes back with the new certificates, without a restart."""
    old, new = Authority("old"), Authority("new")
    async with tls_stack(tmp_path, old, routers=0) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        link = stack.routers[0].pools["demo"].replicas.link("demo-r0")
        assert link is not None
        # The router asks for the tokenizer on a connection of its own.
        await stack.inference().Generate(request(max_tokens=3))
        connections = relay.connections
        await asyncio.to_thread(tls_of, tmp_path, new, new.issue("node", dns(NAME)))
        assert 3 == (await stack.inference().Generate(request(max_tokens=3, ignore_eos=True))).usage.output_tokens
        assert connections == relay.connections
        # The next connection has to satisfy the new authority on both ends.
        relay.cut()
        await until(lambda: not link.up)
        relay.mend()
        await until(lambda: link.up)

        assert 3 == (await stack.inference().Generate(request(max_tokens=3, ignore_eos=True))).usage.output_tokens
        await relay.close()
