"""Who connects to a replica: routers, those that only say so, and those that ask, are silent or read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.errors import LinkError, LinkLostError, LinkRefusedError
from cluster.trust.secret import ClusterSecret
from cluster.wire.framing import PREFACE
from deployments.replica.links.server import LinkServer
from penstock.internal.v1 import replica_pb2 as pb
from router.links.ends import WireNews
from router.links.questions import fetch_tokenizer
from router.links.stream import open_stream
from tests.router.links.parts import ends_of
from tests.support.stack import Stack, request, running_stack
from tests.support.waiting import until


def server_of(stack: Stack) -> LinkServer:
    """Return the server of the first replica."""
    server = stack.replicas[0]._server
    assert server is not None
    return server


async def test_a_caller_without_the_secret_is_refused(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        address = stack.replicas[0].address
        wrong = ends_of(address, secret=ClusterSecret(b"not the cluster's secret at all"))
        with pytest.raises(LinkRefusedError, match="did not prove the cluster secret"):
            await open_stream(wrong, 5.0)
        with pytest.raises(LinkError, match="did not prove the cluster secret"):
            await fetch_tokenizer(wrong, stack.replicas[0].identity.model.tokenizer_digest)


async def test_output_leaves_at_once(tmp_path: Path) -> None:
    """Else it waits for the acknowledgement of the output before it."""
    async with running_stack(tmp_path) as stack:
        await until(lambda: len(server_of(stack).connections) == 1)
        [connection] = server_of(stack).connections
        end = connection.transport.get_extra_info("socket")
        assert 1 == end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_link_without_a_common_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.links.ends.PROTOCOL_VERSIONS", (999,))
    async with running_stack(tmp_path, routers=0) as stack:
        with pytest.raises(LinkRefusedError, match="hello with a protocol version of: 1"):
            await open_stream(ends_of(stack.replicas[0].address), 5.0)


async def test_questions_are_answered_or_refused_with_the_reason(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        ends, model = ends_of(stack.replicas[0].address), stack.replicas[0].identity.model
        assert stack.replicas[0].identity.tokenizer_files == await fetch_tokenizer(ends, model.tokenizer_digest)
        with pytest.raises(LinkError, match=f"digest 'another'; this replica has '{model.tokenizer_digest}'"):
            await fetch_tokenizer(ends, "another")
        await until(lambda: not server_of(stack).connections)


async def test_a_replica_gives_a_silent_router_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a dead network. Its work is parked for another router."""
    monkeypatch.setattr("deployments.replica.links.server.LOOK_S", 0.05)
    monkeypatch.setattr("deployments.replica.links.server.SILENCE_S", 0.2)
    monkeypatch.setattr("deployments.replica.links.server.HELLO_S", 1.0)
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 2.0}, queue={"attach_grace_s": 60.0}) as stack:
        ends = ends_of(stack.replicas[0].address)
        # A router that pings seldom says so, and is not cut off.
        silent = await open_stream(replace(ends, ping_s=0.01), 5.0)
        patient = await open_stream(replace(ends, ping_s=3600.0), 5.0)
        for number, stream in enumerate((silent, patient)):
            start = pb.Start(sink=1, request_id=f"r{number}", attempt="1", prompt_token_ids=[5, 6, 7])
            start.sampling.max_tokens, start.sampling.ignore_eos = 20_000, True
            stream.carry(WireNews(lambda _: None, int, int))
            stream.write([pb.LinkCommand(start=start)])
        table = stack.replicas[0].table
        await until(lambda: table.parked == 1)
        with pytest.raises(LinkLostError):
            await silent.wait_closed()
        assert (1, False) == (len(server_of(stack).connections), patient.lost)
        patient.break_off()
        await until(lambda: table.parked == 2)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "speaks another protocol"),
        (PREFACE + b"\x7f\xff\xff\xff", "a message of 2147483647 bytes; at most 65536 may come"),
        (PREFACE + b"\0\0\0\x02\xff\xff", "Error parsing message"),
        (PREFACE, "no hello within"),
    ],
)
async def test_whoever_is_no_router_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: bytes, why: str
) -> None:
    monkeypatch.setattr("deployments.replica.links.server.HELLO_S", 0.3)
    async with running_stack(tmp_path, routers=0) as stack:
        host, _, port = stack.replicas[0].address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() in (b"", PREFACE)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await until(lambda: not server_of(stack).connections)
    assert why in "".join(str(getattr(record, "error", "")) for record in caplog.records)


async def more_output(stack: Stack) -> int:
    """Wait until the engine has made 3,000 more tokens, and return how many it has made."""
    before = stack.engines[0].stats().output_tokens
    await until(lambda: stack.engines[0].stats().output_tokens > before + 3_000)
    return stack.engines[0].stats().output_tokens


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2),
    reason="asyncio's own loop holds whatever is written in this Python (CVE-2024-12254): this is NOT tested",
)
async def test_a_router_that_reads_nothing_gets_merged_output_later(tmp_path: Path) -> None:
    """The replica holds no frames for it, only its logs."""
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 0.1, "max_num_seqs": 256}) as stack:
        stream = await open_stream(ends_of(stack.replicas[0].address), 5.0)
        stream.hold()
        (connection,) = server_of(stack).connections
        for end, option in ((stream, socket.SO_RCVBUF), (connection, socket.SO_SNDBUF)):
            # The kernel would take megabytes.
            end.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 16 << 10)
        start = pb.Start(prompt_token_ids=[5, 6, 7])
        start.sampling.max_tokens, start.sampling.ignore_eos = 30_000, True
        starts = [pb.Start() for _ in range(200)]
        for sink, each in enumerate(starts, 1):
            each.CopyFrom(start)
            each.sink, each.request_id, each.attempt = sink, f"r{sink}", "1"
        stream.write([pb.LinkCommand(start=each) for each in starts])
        await until(lambda: connection.full)
        held = connection.unsent
        # Output goes on, and not into the connection. The kernel may take some more of what is there.
        produced = await more_output(stack)
        assert 0 < connection.unsent <= held
        seen: dict[int, int] = {}
        sizes: list[int] = []

        def take(frame: pb.LinkResponse) -> None:
            for sink, offset, count in zip(frame.sinks, frame.offsets, frame.token_counts, strict=True):
                assert seen.get(sink, 0) == offset
                seen[sink] = offset + count
                sizes.append(count)

        stream.carry(WireNews(take, int, int))
        stream.go_on()
        await until(lambda: sum(seen.values()) > produced)
        assert max(sizes) > 3
        stream.break_off()
        await until(lambda: stack.replicas[0].table.parked == 200)


@pytest.mark.parametrize("grace_s", [0.0, 0.5])
async def test_a_port_that_closes_leaves_no_task(tmp_path: Path, grace_s: float) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 1.0}) as stack:
        for number in range(2):
            await stack.inference(number).Generate(request(max_tokens=2))
        server = stack.replicas[0]._server
        assert server is not None
        obeying = [task for task in asyncio.all_tasks() if task.get_name().endswith(".obey")]
        assert len(obeying) == 2
        await server.stop(grace_s)
        assert all(task.done() for task in obeying)


@pytest.mark.parametrize("turns", range(4))
async def test_a_port_that_closes_ends_the_connections_that_it_has_just_taken(tmp_path: Path, turns: int) -> None:
    """So it is at whatever turn of the loop it closes after they came."""
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 1.0}) as stack:
        host, _, port = stack.replicas[0].address.rpartition(":")
        with contextlib.ExitStack() as held:
            callers = [held.enter_context(socket.create_connection((host, int(port)), 5.0)) for _ in range(20)]
            # No collection may end them by chance.
            gc.disable()
            held.callback(gc.enable)
            for _ in range(turns):
                await asyncio.sleep(0)
            await server_of(stack).stop(0.0)
            for caller in callers:
                with contextlib.suppress(ConnectionResetError):
                    assert b"" == await asyncio.to_thread(caller.recv, 1)
