"""Links: authentication, breaks, re-attach, takeover by another router, and many streams on one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.errors import LinkError, LinkLostError, LinkRefusedError
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from cluster.wire.framing import PREFACE
from deployments.replica.links.server import LinkServer
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.links.ends import LinkEnds, WireNews
from router.links.link import ReplicaLink
from router.links.orphaned_output import OrphanedOutput
from router.links.questions import fetch_tokenizer
from router.links.replicas import ReplicaSet
from router.links.safeguards import LinkSafeguards
from router.links.stream import open_stream
from router.server import Router
from tests.support.flaky import Relay
from tests.support.stack import (
    SECRET,
    Stack,
    collect,
    first_tokens,
    ids_of,
    request,
    request_id_of,
    running_stack,
    stream_request,
    text_of,
)
from tests.support.waiting import until

LONG = {"max_tokens": 400, "ignore_eos": True}


async def golden(stack: Stack, **sampling: Any) -> list[int]:
    """Return the undisturbed output."""
    return list((await stack.inference().Generate(request(**sampling))).choices[0].token_ids)


async def read_until(call: Any, tokens: int) -> list[api.StreamGenerateResponse]:
    """Read a stream until so many tokens came."""
    events: list[api.StreamGenerateResponse] = []
    while sum(len(event.delta.token_ids) for event in events) < tokens:
        events.append(await call.read())
    return events


def newest_token(events: list[api.StreamGenerateResponse]) -> bytes:
    """Return the newest resume token of a stream."""
    return next(event.started.resume_token for event in reversed(events) if event.HasField("started"))


async def kill(router: Router) -> None:
    """End a router as SIGKILL would: no drain, no farewell to clients, replicas or the queue."""
    for pool in router.pools.values():
        pool._membership._keeper._stopping = True
        await pool._membership.stop()
        for link in pool.replicas._links.values():
            await link._owner.close()
    assert router._server is not None
    await router._server.stop(grace=None)


class Broken:
    """Is a receiver that fails at one kind of news."""

    def __init__(self, fails_at: str) -> None:
        self.told: list[str] = []
        self._fails_at = fails_at

    def __getattr__(self, name: str) -> Callable[..., None]:
        def take(*_: object) -> None:
            self.told.append(name)
            if name == self._fails_at:
                raise RuntimeError("a bug")

        return take


def bare_link() -> ReplicaLink:
    """Make a link that is not connected."""
    return ReplicaLink(
        "demo-r0",
        "127.0.0.1:1",
        "router",
        SECRET,
        LinkDialer(None),
        ping_s=1.0,
        attach_grace_s=1.0,
        on_change=lambda: None,
        safeguards=LinkSafeguards(OrphanedOutput(1.0)),
    )


def ends_of(
    address: str,
    *,
    secret: ClusterSecret = SECRET,
    replica_id: str = "demo-r0",
    dialer: LinkDialer = LinkDialer(None),  # noqa: B008  # it opens nothing
) -> LinkEnds:
    """Describe a link of a router of the test's own."""
    return LinkEnds(replica_id, address, "router-x", secret, dialer, 5.0)


def server_of(stack: Stack) -> LinkServer:
    """Return the server of the first replica."""
    server = stack.replicas[0]._server
    assert server is not None
    return server


class RelayedReplica:
    """Puts a relay between routers and a replica: the replica announces the relay's address."""

    def __init__(self) -> None:
        self.relay: Relay | None = None

    async def install(self, stack: Stack) -> Relay:
        replica = stack.replicas[0]
        self.relay = Relay(replica.address)
        replica.address = await self.relay.start()
        assert replica._announced is not None
        replica._announced = replace(replica._announced, address=replica.address)
        # The registry must show it before a router looks.
        keeper, now = replica._keeper, time.monotonic()
        assert keeper is not None
        await until(lambda: keeper._renewed_at > now)
        return self.relay


async def test_a_broken_link_is_reattached_and_the_client_notices_nothing(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 2.0}) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        expected = await golden(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 20)
        for _ in range(3):
            relay.cut()
            await until(lambda: stack.replicas[0].table.parked == 1)
            relay.mend()
            await until(lambda: stack.replicas[0].table.parked == 0)
        events.extend(await collect(call))

        assert expected == ids_of(events)
        assert events[-1].finished.receipt.exact
        assert 4 <= relay.connections
        await relay.close()


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_cancel_survives_a_broken_link(tmp_path: Path, cut: str) -> None:
    """Given while the link is down, or swallowed by the stream that breaks."""
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 5.0}) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        call = stack.inference().StreamGenerate(stream_request(max_tokens=4_000, ignore_eos=True))
        request_id = request_id_of(await first_tokens(call, 1))
        if cut == "before":
            relay.cut()
            await until(lambda: stack.replicas[0].table.parked == 1)
        else:
            relay.freeze()
        await stack.inference().Cancel(api.CancelRequest(request_id=request_id))
        relay.cut()
        await until(lambda: stack.replicas[0].table.parked == 1)
        relay.mend()
        ended = (await collect(call))[-1].finished

        assert types.FINISH_REASON_CANCELLED == ended.choices[0].finish_reason
        assert ended.usage.output_tokens < 4_000
        await until(lambda: stack.replicas[0].table.sequences == 0)
        await relay.close()


async def test_a_silent_link_is_found_by_its_ping_and_replaced(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 2.0}) as stack:
        relay = await RelayedReplica().install(stack)
        object.__setattr__(stack.settings.router, "link_ping_s", 0.2)
        await stack.add_router()
        expected = await golden(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 20)
        link = stack.routers[0].pools["demo"].replicas.link("demo-r0")
        assert link is not None
        relay.freeze()
        await until(lambda: not link.up)
        relay.cut()
        relay.mend()
        events.extend(await collect(call))

        assert expected == ids_of(events)
        await relay.close()


async def test_whom_the_registry_does_not_know_is_not_hung_up_on_while_it_is_dialled(tmp_path: Path) -> None:
    """As after a restart of the store: a client that comes back names its replica before that has reported again."""
    async with running_stack(tmp_path, routers=0) as stack:
        replica = stack.replicas[0]
        relay = Relay(replica.address)
        address = await relay.start()
        relay.cut()
        replicas = ReplicaSet(
            "demo", "router-x", SECRET, LinkDialer(None), ping_s=1.0, attach_grace_s=30.0, on_change=int
        )
        reaching = asyncio.create_task(replicas.reach(replica.plan.replica_id, address, 20.0))
        await until(lambda: bool(replicas._links))
        replicas.update([])
        relay.mend()
        link = await reaching
        assert link is not None
        assert link.up
        await replicas.close()
        await relay.close()


async def test_output_that_cannot_be_taken_disturbs_no_other_stream(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 5.0}) as stack:
        expected = await golden(stack, **LONG)
        pool = stack.routers[0].pools["demo"]
        hurt = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(hurt, 20)
        [choice] = pool.choices.values()
        other = stack.inference().StreamGenerate(stream_request(**LONG))
        await read_until(other, 5)
        failures = []

        def broken(*_: object) -> None:
            failures.append(choice.attempt)
            del choice.on_delta
            raise RuntimeError("a bug")

        choice.on_delta = broken  # type: ignore[method-assign]
        events.extend(await collect(hurt))
        assert 1 == len(failures)
        assert expected == ids_of(events)
        assert 2 == len(events[-1].finished.receipt.attempts)
        end = (await collect(other))[-1].finished
        assert 1 == len(end.receipt.attempts)
        await until(lambda: stack.replicas[0].table.sequences == 0)


@pytest.mark.parametrize("news", ["on_end", "on_refused", "on_detached", "on_history"])
async def test_news_that_cannot_be_taken_leaves_the_link_up_and_ends_its_own_receiver(news: str) -> None:
    link, broken, other = bare_link(), Broken(news), Broken("")
    sinks = [link.open_sink(each, "r", str(number), 1, deadline=1.0) for number, each in enumerate((broken, other))]
    frame = pb.LinkResponse()
    for sink in sinks:
        match news:
            case "on_end":
                frame.ends.add(sink=sink)
            case "on_refused":
                frame.refusals.add(sink=sink)
            case "on_detached":
                frame.detached.append(sink)
            case _:
                frame.histories.add(sink=sink)
    link._deliver(frame)

    assert [news, "on_lost"] == broken.told
    assert [news] == other.told
    await link.close()


async def test_every_receiver_hears_that_its_link_is_lost() -> None:
    link, broken, other = bare_link(), Broken("on_lost"), Broken("")
    for number, each in enumerate((broken, other)):
        link.open_sink(each, "r", str(number))
    await link.close()

    assert ["on_lost"] == other.told


async def test_a_silent_replica_is_given_up_after_the_grace_although_it_is_connected(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, queue={"attach_grace_s": 0.4}, sim={"base_ms": 2.0}) as stack:
        relay = await RelayedReplica().install(stack)
        object.__setattr__(stack.settings.router, "link_ping_s", 0.2)
        await stack.add_router()
        await read_until(stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True)), 5)
        link = stack.routers[0].pools["demo"].replicas.link("demo-r0")
        assert link is not None
        assert 1 == link.busy
        relay.freeze()
        await until(lambda: link.busy == 0)
        await relay.close()


async def test_another_router_goes_on_after_the_first_died(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 2.0}) as stack:
        expected = await golden(stack, **LONG)
        call = stack.inference(0).StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        await kill(stack.routers[0])
        got = ids_of(events)
        resumed = stream_request(**LONG)
        resumed.resume.CopyFrom(api.Resume(resume_token=newest_token(events), received_tokens=[len(got)]))
        rest = await collect(stack.inference(1).StreamGenerate(resumed))
        for event in rest:
            if event.HasField("delta"):
                assert event.delta.offset == len(got)
                got.extend(event.delta.token_ids)

        assert expected == got
        assert 400 == rest[-1].finished.usage.output_tokens
        await until(lambda: stack.replicas[0].table.sequences == 0)
        stack.routers.pop(0)


async def test_a_sampled_stream_is_the_very_same_after_a_router_died(tmp_path: Path) -> None:
    sampling = {**LONG, "temperature": 1.0, "seed": 3, "n": 2}
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 2.0}) as stack:
        reply = await stack.inference().Generate(request(**sampling))
        call = stack.inference(0).StreamGenerate(stream_request(**sampling))
        events = await read_until(call, 40)
        await kill(stack.routers[0])
        got = [ids_of(events, index) for index in range(2)]
        texts = [text_of(events, index) for index in range(2)]
        resumed = stream_request(**sampling)
        resumed.resume.CopyFrom(
            api.Resume(resume_token=newest_token(events), received_tokens=[len(ids) for ids in got])
        )
        for event in await collect(stack.inference(1).StreamGenerate(resumed)):
            if event.HasField("delta"):
                got[event.delta.choice_index].extend(event.delta.token_ids)
                texts[event.delta.choice_index] += event.delta.text

        assert [list(choice.token_ids) for choice in reply.choices] == got
        assert [choice.text for choice in reply.choices] == texts
        stack.routers.pop(0)


async def test_acknowledgements_wait_for_the_next_command_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_stack(tmp_path) as stack:
        table = stack.replicas[0].table
        await golden(stack, max_tokens=3)
        await until(lambda: table.retained == 0)
        monkeypatch.setattr("router.links.outbox.LEISURE_S", 3600.0)
        for _ in range(3):
            await golden(stack, max_tokens=3)
            # Each start takes the one before along.
            await until(lambda: table.retained == 1)
        (link,) = stack.routers[0].pools["demo"].replicas._links.values()
        await link.close()
        await until(lambda: table.retained == 0)
        assert 0 == table.orphans


async def test_output_that_nobody_takes_over_is_aborted_after_the_grace(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, queue={"attach_grace_s": 0.4}, sim={"base_ms": 2.0}) as stack:
        call = stack.inference(0).StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True))
        await read_until(call, 5)
        await kill(stack.routers[0])
        await until(lambda: stack.replicas[0].table.parked == 1)
        await until(lambda: (stack.replicas[0].table.sequences, stack.replicas[0].table.retained) == (0, 0))
        # The dead router's slot goes back to the pool, so the other router can use all of it.
        await until(lambda: stack.routers[1].pools["demo"].beat.running == 0)
        assert 3 == (await stack.inference(1).Generate(request(max_tokens=3, ignore_eos=True))).usage.output_tokens
        stack.routers.pop(0)


async def test_a_client_that_comes_while_its_work_is_given_up_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort takes until the end of the engine's step; who attaches meanwhile must not get a cut answer."""
    queue = {"attach_grace_s": 0.3}
    # Longer than the grace, by far.
    longer = {**LONG, "max_tokens": 2_000}
    async with running_stack(tmp_path, routers=2, queue=queue, sim={"base_ms": 2.0}) as stack:
        expected = await golden(stack, **longer)
        call = stack.inference(0).StreamGenerate(stream_request(**longer))
        events = await read_until(call, 30)
        table, engine = stack.replicas[0].table, stack.replicas[0]._engine
        stopping, attached = asyncio.Event(), asyncio.Event()
        abort, attach = engine.abort, table.attach

        async def abort_later(*arguments: Any, **named: Any) -> None:
            stopping.set()
            await attached.wait()
            await abort(*arguments, **named)

        def attach_now(*arguments: Any, **named: Any) -> Any:
            done = attach(*arguments, **named)
            attached.set()
            return done

        monkeypatch.setattr(engine, "abort", abort_later)
        monkeypatch.setattr(table, "attach", attach_now)
        await kill(stack.routers[0])
        await stopping.wait()
        got = ids_of(events)
        resumed = stream_request(**longer)
        resumed.resume.CopyFrom(api.Resume(resume_token=newest_token(events), received_tokens=[len(got)]))
        rest = await collect(stack.inference(1).StreamGenerate(resumed))

        assert expected == [*got, *(token for event in rest for token in event.delta.token_ids)]
        assert 2 == len(rest[-1].finished.receipt.attempts)
        await until(lambda: table.sequences == 0)
        stack.routers.pop(0)


async def test_routers_that_stop_leave_no_link_behind(tmp_path: Path) -> None:
    """Heartbeats on their way when a router stops must not dial again."""
    async with running_stack(tmp_path, routers=8, replicas=2, queue={"heartbeat_s": 0.05}) as stack:
        await asyncio.gather(*(router.stop(drain_s=1.0) for router in stack.routers))
        left = [task for task in asyncio.all_tasks() if "ReplicaLink" in repr(task.get_coro())]
        assert left == []


async def test_a_caller_without_the_secret_is_refused(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        address = stack.replicas[0].address
        wrong = ends_of(address, secret=ClusterSecret(b"not the cluster's secret at all"))
        with pytest.raises(LinkRefusedError, match="did not prove the cluster secret"):
            await open_stream(wrong, 5.0)
        with pytest.raises(LinkError, match="did not prove the cluster secret"):
            await fetch_tokenizer(wrong, stack.replicas[0].identity.model.tokenizer_digest)


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
        # Output goes on, and not into the connection.
        produced = stack.engines[0].stats().output_tokens
        await until(lambda: stack.engines[0].stats().output_tokens > produced + 3_000)
        assert held == connection.unsent
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


@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_two_thousand_streams_at_once_all_end_well(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"max_num_seqs": 512, "time_scale": 0.0}) as stack:

        async def one(number: int) -> types.FinishReason.ValueType:
            events = await collect(
                stack.inference(number % 2).StreamGenerate(stream_request(f"{number}", max_tokens=3))
            )
            return events[-1].finished.choices[0].finish_reason

        reasons = await asyncio.gather(*(one(number) for number in range(2_000)))
        assert {types.FINISH_REASON_LENGTH, types.FINISH_REASON_STOP} >= set(reasons)
        await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_router_that_reaches_no_replica_says_so_and_the_other_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests would wait in a line that nobody serves."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 1.0}) as stack:
        replicas = stack.routers[0].pools["demo"].replicas
        await stack.inference(0).Generate(request(max_tokens=2))
        (link,) = replicas._links.values()
        await link._owner.close()
        link._set_up(False)
        await until(lambda: replicas.cut_off_s(time.monotonic()) > 2.0)

        async def says_so() -> bool:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.inference(0).Generate(request(max_tokens=2), timeout=5)
            said = str(caught.value.details())
            return "'demo': this router has reached none of the pool's replicas (1) for" in said and (
                caught.value.code() is grpc.StatusCode.UNAVAILABLE
            )

        # Where the replica lost its lease on a busy machine, the time begins again.
        await until(says_so, 60)
        assert 2 == (await stack.inference(1).Generate(request(max_tokens=2, ignore_eos=True))).usage.output_tokens

        monkeypatch.setattr(link, "up", True)
        await until(lambda: replicas.cut_off_s(time.monotonic()) == 0.0)
        monkeypatch.undo()


async def test_replicas_that_are_gone_cut_nobody_off(tmp_path: Path) -> None:
    """Requests wait for the next one."""
    async with running_stack(tmp_path, sim={"base_ms": 1.0}) as stack:
        replicas = stack.routers[0].pools["demo"].replicas
        await stack.inference(0).Generate(request(max_tokens=2))
        await stack.kill_replica(0)
        await until(lambda: not replicas.records)
        assert 0.0 == replicas.cut_off_s(time.monotonic())
        call = stack.inference().StreamGenerate(stream_request(max_tokens=3, ignore_eos=True))
        assert (await call.read()).HasField("queued")
        await stack.add_replica()
        assert 3 == len(ids_of(await collect(call)))
