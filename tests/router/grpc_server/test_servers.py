"""Handlers can't tell the direct server from grpc.aio's, and neither can clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from cluster.grpc_options import SERVER_OPTIONS
from penstock.client.connection import RESUMES
from router.grpc_server import CallServer, open_server
from router.grpc_server import server as direct
from router.grpc_server.call import Call
from router.grpc_server.completions import Completions
from router.grpc_server.server import DirectServer
from tests.support.waiting import until

MEBIBYTE = 1 << 20
STREAMS = ("count", "late", "break_off", "pour", "stay", "overtake")
DETAILS = (("penstock-why-bin", b"\x00\xff"), ("penstock-why", "because"))


@dataclass
class Service:
    """Has a handler of each kind, and notes what happens to them."""

    cancelled: int = 0
    written: int = 0
    at_once: int = 0
    entered: int = 0
    seen: list[Any] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.seen.append((context.time_remaining(), dict(context.invocation_metadata()), context.auth_context()))
        return request

    async def greet(self, request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("penstock-id", "7"),))
        return request

    async def fail(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "näh", DETAILS)
        raise AssertionError("abort returned")

    async def crash(self, request: bytes, context: Any) -> bytes:
        raise KeyError("secret")

    async def hang(self, request: bytes, context: Any) -> bytes:
        with self._noting():
            await asyncio.Event().wait()
        raise AssertionError("forever is over")

    async def count(self, request: bytes, context: Any) -> None:
        for number in range(int(request)):
            await context.write(b"%d" % number)
            if number % 3 == 0:
                await asyncio.sleep(0)

    async def late(self, request: bytes, context: Any) -> None:
        await context.write(b"first")
        await self.go.wait()
        await context.write(b"last")

    async def break_off(self, request: bytes, context: Any) -> None:
        await context.write(b"first")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")

    async def pour(self, request: bytes, context: Any) -> None:
        with self._noting():
            while True:
                await context.write(bytes(MEBIBYTE // 8))
                self.written += 1

    async def stay(self, request: bytes, context: Any) -> None:
        with self._noting():
            await context.write(b"first")
            await asyncio.Event().wait()

    async def overtake(self, request: bytes, context: Any) -> None:
        """Write by waiting, and at every turn of the loop without."""
        turns = asyncio.create_task(self._write_when_possible(context))
        try:
            while self.written < int(request):
                self.written += 1
                await context.write(b"%d," % self.written + bytes(MEBIBYTE // 4))
                if self.written % 3 == 0:
                    await asyncio.sleep(0.002)
        finally:
            turns.cancel()

    async def _write_when_possible(self, context: Any) -> None:
        while True:
            await asyncio.sleep(0)
            if context.can_write():
                self.written += 1
                self.at_once += 1
                context.write_now(b"%d," % self.written + bytes(MEBIBYTE // 4))

    async def add(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"%d" % sum([int(request) async for request in requests])

    async def double(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request * 2

    @contextlib.contextmanager
    def _noting(self) -> Any:
        self.entered += 1
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.InternalError):
            # The other is what a write may get that waited for its reader.
            self.cancelled += 1
            raise

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {name: unary(getattr(self, name)) for name in ("echo", "greet", "fail", "crash", "hang")}
        methods |= {name: stream(getattr(self, name)) for name in STREAMS}
        methods["add"] = grpc.stream_unary_rpc_method_handler(self.add)
        methods["double"] = grpc.stream_stream_rpc_method_handler(self.double)
        return grpc.method_handlers_generic_handler("test.Service", methods)


@dataclass
class Scene:
    server: CallServer
    service: Service
    channel: grpc.aio.Channel

    def unary(self, name: str) -> Callable[..., Any]:
        return self.channel.unary_unary(f"/test.Service/{name}")

    def stream(self, name: str) -> Callable[..., Any]:
        return self.channel.unary_stream(f"/test.Service/{name}")


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


@pytest.fixture(params=["direct", "aio"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    options = [*SERVER_OPTIONS, ("grpc.max_receive_message_length", 16 * MEBIBYTE)]
    server, service = open_server(request.param, options), Service()
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    wide = [("grpc.max_receive_message_length", 64 * MEBIBYTE), ("grpc.max_send_message_length", 64 * MEBIBYTE)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=wide) as channel:
        yield Scene(server, service, channel)
    await server.stop(0.2)


async def failure(call: Any) -> grpc.aio.AioRpcError:
    try:
        if hasattr(call, "read"):
            while await call.read() is not grpc.aio.EOF:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


async def test_requests_and_replies_of_any_size(scene: Scene) -> None:
    for size in (0, 1, 70_000, 9 * MEBIBYTE):
        payload = bytes(size)
        assert payload == await scene.unary("echo")(payload)


async def test_a_handler_sees_deadline_and_metadata(scene: Scene) -> None:
    await scene.unary("echo")(b"", timeout=30, metadata=(("penstock-x", "y"), ("penstock-b-bin", b"\x00")))
    await scene.unary("echo")(b"")

    (left, metadata, tls), (unlimited, _, _) = scene.service.seen
    assert 25 < left <= 31  # gRPC rounds up
    assert ("y", b"\x00") == (metadata["penstock-x"], metadata["penstock-b-bin"])
    assert unlimited is None
    assert "x509_common_name" not in tls


async def test_messages_come_in_order_and_all(scene: Scene) -> None:
    got = [message async for message in scene.stream("count")(b"500")]

    assert [b"%d" % number for number in range(500)] == got


async def test_a_stream_without_messages_ends_well(scene: Scene) -> None:
    call = scene.stream("count")(b"0")

    assert [] == [message async for message in call]
    assert grpc.StatusCode.OK == await call.code()


async def test_initial_metadata_comes_before_the_reply(scene: Scene) -> None:
    call = scene.unary("greet")(b"x")

    assert "7" == dict(await call.initial_metadata())["penstock-id"]
    assert b"x" == await call


async def test_uploads_and_conversations(scene: Scene) -> None:
    async def numbers() -> AsyncIterator[bytes]:
        for number in range(300):
            yield b"%d" % number

    assert b"44850" == await scene.channel.stream_unary("/test.Service/add")(numbers())
    talk = scene.channel.stream_stream("/test.Service/double")()
    for word in (b"a", b"bc"):
        await talk.write(word)
        assert word * 2 == await talk.read()
    await talk.done_writing()
    assert grpc.aio.EOF is await talk.read()
    assert grpc.StatusCode.OK == await talk.code()


async def test_an_abort_brings_code_details_and_trailers(scene: Scene) -> None:
    error = await failure(scene.unary("fail")(b""))

    assert (grpc.StatusCode.NOT_FOUND, "näh") == (error.code(), error.details())
    assert DETAILS == tuple((key, value) for key, value in error.trailing_metadata() if key.startswith("penstock"))


async def test_an_abort_after_messages(scene: Scene) -> None:
    call = scene.stream("break_off")(b"")

    assert b"first" == await call.read()
    error = await failure(call)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "enough") == (error.code(), error.details())


async def test_a_crash_is_unknown_and_the_next_call_works(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert grpc.StatusCode.UNKNOWN == (await failure(scene.unary("crash")(b""))).code()
    assert b"x" == await scene.unary("echo")(b"x")


async def test_an_unknown_method_is_unimplemented(scene: Scene) -> None:
    assert grpc.StatusCode.UNIMPLEMENTED == (await failure(scene.unary("nothing")(b""))).code()
    assert grpc.StatusCode.UNIMPLEMENTED == (await failure(scene.channel.unary_unary("/other/echo")(b""))).code()


@pytest.mark.slow
async def test_a_request_that_is_too_large_is_refused_and_the_connection_lives(scene: Scene) -> None:
    error = await failure(scene.unary("echo")(bytes(17 * MEBIBYTE)))

    assert grpc.StatusCode.RESOURCE_EXHAUSTED == error.code()
    assert b"x" == await scene.unary("echo")(b"x")


@pytest.mark.parametrize("name", ["hang", "stay", "pour"])
async def test_a_client_that_leaves_ends_its_handler(scene: Scene, name: str) -> None:
    call = scene.unary(name)(b"") if name == "hang" else scene.stream(name)(b"")
    await until(lambda: scene.service.entered == 1)
    if name != "hang":
        await call.read()
    call.cancel()

    await until(lambda: scene.service.cancelled == 1)


async def test_a_deadline_ends_call_and_handler(scene: Scene) -> None:
    # Where the machine halts, a deadline may pass before the call is there.
    while not scene.service.entered:
        error = await failure(scene.stream("stay")(b"", timeout=0.3))
        assert grpc.StatusCode.DEADLINE_EXCEEDED == error.code()

    await until(lambda: scene.service.cancelled == scene.service.entered)


async def test_a_client_that_does_not_read_holds_its_handler_up(scene: Scene) -> None:
    call = scene.stream("pour")(b"")
    await call.read()
    last = -1

    def stands() -> bool:
        nonlocal last
        before, last = last, scene.service.written
        return before == last

    await until(stands)
    held = scene.service.written
    assert held < 800  # of 128 KiB: what gRPC and the kernel buffer
    for _ in range(held):
        await call.read()
    await until(lambda: scene.service.written > held)
    call.cancel()
    await until(lambda: scene.service.cancelled == 1)


@pytest.mark.slow
async def test_calls_that_come_at_once_are_all_answered(scene: Scene) -> None:
    replies = await asyncio.gather(*(scene.unary("echo")(b"%d" % number) for number in range(1_500)))

    assert [b"%d" % number for number in range(1_500)] == replies


async def test_a_turn_of_the_loop_takes_some_of_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_PER_TURN", 3)
    turn, taken = 0, Counter[int]()
    arrived, loop = DirectServer._arrived, asyncio.get_running_loop()

    def turned() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(turned)

    def noted(server: DirectServer, event: Any) -> int:
        taken[turn] += 1
        return arrived(server, event)

    monkeypatch.setattr(DirectServer, "_arrived", noted)
    server, service = open_server("direct", SERVER_OPTIONS), Service()
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    turned()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo = channel.unary_unary("/test.Service/echo")
        replies = await asyncio.gather(*(echo(b"%d" % number) for number in range(200)))
    await server.stop(0.2)

    assert [b"%d" % number for number in range(200)] == replies
    assert 3 >= max(taken.values())
    assert 200 <= taken.total()


async def test_a_stop_lets_calls_end_within_the_grace(scene: Scene) -> None:
    call = scene.stream("late")(b"")
    await call.read()
    stop = asyncio.create_task(scene.server.stop(20))
    await asyncio.sleep(0)
    scene.service.go.set()

    assert b"last" == await call.read()
    assert grpc.StatusCode.OK == await call.code()
    await stop


async def test_a_stop_ends_what_goes_on(scene: Scene) -> None:
    calls = [scene.stream(name)(b"") for name in ("stay", "pour", "stay")]
    for call in calls:
        await call.read()
    await scene.server.stop(0.1)

    await until(lambda: scene.service.cancelled == 3)
    for call in calls:
        assert (await failure(call)).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_a_port_that_is_taken_is_an_error() -> None:
    for kind in ("direct", "aio"):
        first = open_server("aio", [("grpc.so_reuseport", 0)])
        port = first.add_insecure_port("127.0.0.1:0")
        second = open_server(kind, [("grpc.so_reuseport", 0)])  # type: ignore[arg-type]
        with pytest.raises(RuntimeError):
            second.add_insecure_port(f"127.0.0.1:{port}")


@pytest.mark.parametrize("scene", ["direct"], indirect=True)
async def test_what_is_written_at_once_overtakes_nothing(scene: Scene) -> None:
    call, got = scene.stream("overtake")(b"200"), []
    while (message := await call.read()) is not grpc.aio.EOF:
        got.append(int(message.partition(b",")[0]))
        # Now and then the client is slow, so that writers wait.
        if len(got) % 20 == 0:
            await asyncio.sleep(0.02)

    assert list(range(1, len(got) + 1)) == got
    assert 0 < scene.service.at_once < len(got)


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["direct"], indirect=True)
async def test_calls_leave_nothing_behind(scene: Scene) -> None:
    server = scene.server
    assert isinstance(server, DirectServer)
    for number in range(120):
        call = scene.stream("stay")(b"")
        if number % 3:
            await call.read()
        call.cancel()
    await asyncio.gather(*(scene.unary("echo")(b"x") for _ in range(100)))

    await until(lambda: not server.open_calls and not server.operations_under_way)
    gc.collect()
    assert [] == [thing for thing in gc.get_objects() if isinstance(thing, Call)]


async def test_the_version_of_grpc_that_is_pinned_can_carry_the_direct_server(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(open_server("direct", []), DirectServer)
    assert "" == caplog.text


async def test_a_version_that_can_not_gets_grpc_aio_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Binding:
        class Call:
            pass

    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules[open_server.__module__], "core", Binding)
    server = open_server("direct", [])

    assert isinstance(server, grpc.aio.Server)
    assert ["router.grpc_aio_instead"] == [record.message for record in caplog.records]
    assert "Call.start_server_batch" in caplog.records[0].missing  # type: ignore[attr-defined]
    assert "CompletionQueue" in caplog.records[0].missing  # type: ignore[attr-defined]


async def test_what_the_core_refuses_is_not_waited_for() -> None:
    completions = Completions(asyncio.get_running_loop())
    refusing = Mock(start_server_batch=Mock(return_value=8))
    with pytest.raises(ValueError, match="refused operations: 8"):
        completions.start(refusing, (), Mock())
    assert 0 == completions.under_way
    completions.close()


async def test_a_call_without_a_message_gets_an_answer() -> None:
    """Which gRPC's own server does not give: such a call stays open for as long as its client likes."""
    server, service = open_server("direct", SERVER_OPTIONS), Service()
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in ("echo", "count"):
            error = await failure(channel.stream_stream(f"/test.Service/{name}")(nothing(), timeout=20.0))
            assert (grpc.StatusCode.INVALID_ARGUMENT, "a message is required, got none") == (
                error.code(),
                error.details(),
            )
        assert b"x" == await channel.unary_unary("/test.Service/echo")(b"x")
    await server.stop(0.2)
    assert not service.entered


async def test_an_upload_that_breaks_off_is_no_whole_one(scene: Scene) -> None:
    """`add` must not see the end of what its client sent."""
    ended: list[bool] = []

    async def add(requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in requests:
            scene.service.entered += 1
        ended.append(True)
        await asyncio.sleep(0.05)
        ended.append(True)
        return b""

    scene.service.go.clear()
    handlers = {"upload": grpc.stream_unary_rpc_method_handler(add)}
    server = open_server("direct", SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Upload", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for round_ in range(1, 21):
            call = channel.stream_unary("/test.Upload/upload")()
            await call.write(b"1")
            await until(lambda round_=round_: scene.service.entered == round_)
            call.cancel()
    await server.stop(0.2)
    assert ended == []


class Drained(DirectServer):
    """Server without a core. Its turns are made by hand, and it notes which calls it begins in each."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__(())
        self._loop, self._arrivals = Mock(), Mock()
        self._arrivals.poll.return_value = Mock(completion_type=None)
        self._fresh.extend(events)
        self.begun: list[list[str]] = []

    def _ask(self) -> None:
        pass

    def _begin(self, event: Any) -> None:
        self.begun[-1].append(event.tag)

    def turns(self) -> list[list[str]]:
        more = False
        while not self.begun or self._loop.call_soon.called:
            self._loop.call_soon.reset_mock()
            self.begun.append([])
            self._accept(more)
            more = True
        return self.begun


def arrival(name: str, *, resumes: bool) -> Any:
    return Mock(tag=name, success=True, invocation_metadata=RESUMES if resumes else (("penstock-resumed", "1"),))


def test_new_calls_are_found_behind_many_that_can_wait() -> None:
    herd = [arrival(f"old {number}", resumes=True) for number in range(100)]
    turns = Drained([*herd, arrival("new", resumes=False)]).turns()

    # 32 are set aside in a turn, and one goes on; the new one is in the fourth.
    assert [["old 0"], ["old 1"], ["old 2"], ["new", *(f"old {number}" for number in range(3, 9))]] == turns[:4]
    assert [f"old {number}" for number in range(9, 100)] == [name for turn in turns[4:] for name in turn]
    assert 8 == max(map(len, turns))


def test_calls_that_can_wait_go_on_beside_new_ones() -> None:
    new = [arrival(f"new {number}", resumes=False) for number in range(15)]
    turns = Drained([arrival("old 0", resumes=True), arrival("old 1", resumes=True), *new]).turns()

    assert ["old 0" in turns[0], "old 1" in turns[1]] == [True, True]
    assert 17 == sum(map(len, turns))


class Broken(Drained):
    """The same, where some calls can't be begun."""

    def _begin(self, event: Any) -> None:
        if event.tag.endswith("bad"):
            raise KeyError(event.tag)
        super()._begin(event)


def test_a_call_that_can_not_be_begun_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    events = [arrival("new bad", resumes=False), *(arrival(f"new {number}", resumes=False) for number in range(20))]
    events += [arrival("old bad", resumes=True), *(arrival(f"old {number}", resumes=True) for number in range(20))]
    turns = Broken(events).turns()

    assert 40 == sum(map(len, turns))
    assert ["call.not_begun"] * 2 == [record.message for record in caplog.records]


async def test_a_call_that_can_not_be_begun_gets_a_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("handler")

    monkeypatch.setattr(DirectServer, "_find", broken)
    server = DirectServer(SERVER_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="unexpected KeyError") as caught:
            await channel.unary_unary("/test.Service/echo")(b"", timeout=30)
    assert grpc.StatusCode.UNKNOWN is caught.value.code()
    assert ["call.not_begun"] == [record.message for record in caplog.records]
    await server.stop(0.2)


async def test_a_call_that_can_wait_is_answered() -> None:
    server, service = open_server("direct", SERVER_OPTIONS), Service()
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo = channel.unary_unary("/test.Service/echo")
        sent = [echo(b"%d" % number, metadata=RESUMES if number % 3 else ()) for number in range(60)]
        assert [b"%d" % number for number in range(60)] == await asyncio.gather(*sent)
    await server.stop(0.2)


async def test_a_stop_ends_calls_that_were_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectServer, "_begin", lambda server, event: server._aside.append(event))
    server = DirectServer(SERVER_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.unary_unary("/test.Service/echo")(b"", metadata=RESUMES) for _ in range(20)]
        await until(lambda: len(server._aside) == 20)
        await server.stop(0.01)
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError):
                await call


def test_clients_mark_the_calls_that_can_wait() -> None:
    assert [direct.RESUME_HEADER] == [name for name, _ in RESUMES]
