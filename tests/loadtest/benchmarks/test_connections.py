"""What the benchmark of many connections counts: each stream of a shared connection, and why one was refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from loadtest.benchmarks.connections.__main__ import missed, tables
from loadtest.benchmarks.connections.run import ConnectionPlan, ConnectionRun
from loadtest.benchmarks.connections.wire import (
    APIS,
    Api,
    CrowdTally,
    GrpcStream,
    HttpStream,
    frame,
    grpc_request,
)
from tests.cluster.queue.servers import running

_DATA, _HEADERS, _WINDOW = 0, 1, 8


def connection(made: type[GrpcStream] | type[HttpStream], request: bytes = b"") -> tuple[Any, CrowdTally, Mock]:
    tally, transport = CrowdTally(), Mock(spec=asyncio.Transport)
    stream = made(request, tally, None)
    stream.connection_made(transport)
    return stream, tally, transport


def test_each_call_of_a_shared_connection_is_a_stream_that_begins_once() -> None:
    stream, tally, _ = connection(GrpcStream)
    for call in (1, 3, 3, 5, 1):
        stream.data_received(frame(_DATA, 0, call, b"message"))
    assert (1, 3, 5) == (tally.open, tally.begun, tally.messages)


def test_a_message_that_comes_in_pieces_counts_once() -> None:
    stream, tally, _ = connection(GrpcStream)
    data = frame(_DATA, 0, 1, b"message")
    for byte in data:
        stream.data_received(bytes((byte,)))
    assert 1 == tally.messages


def test_the_router_may_send_as_much_again_to_a_call_and_to_all_of_them() -> None:
    stream, _, transport = connection(GrpcStream)
    for call in (1, 3):
        stream.data_received(frame(_DATA, 0, call, bytes(10_000)))
    whole = frame(_WINDOW, 0, 0, (20_000).to_bytes(4, "big"))
    assert [b"", whole] == [call.args[0] for call in transport.write.call_args_list]
    stream.data_received(frame(_DATA, 0, 3, bytes(7_000)))
    one = frame(_WINDOW, 0, 3, (17_000).to_bytes(4, "big"))
    assert one == transport.write.call_args.args[0]


def test_a_request_has_a_call_for_each_stream() -> None:
    one, three = (grpc_request("demo", "Hello", 4, calls) for calls in (1, 3))
    body = len(grpc_request("demo", "Hello", 4, 2)) - len(one)
    assert len(three) - len(one) == 2 * body
    assert [1, 3, 5] == [number for number in range(1, 7) if b"\4" + number.to_bytes(4, "big") in three]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (
            b'HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{"error": {"code": "unavailable", "message": "later"}}',
            "HTTP/1.1 503 Service Unavailable: unavailable: later",
        ),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "HTTP/1.1 502 Bad Gateway"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n[]", "HTTP/1.1 404 Not Found"),
    ],
)
def test_a_refusal_over_http_says_why(answer: bytes, cause: str) -> None:
    stream, tally, transport = connection(HttpStream)
    stream.data_received(answer)
    assert {cause: 1} == tally.ends
    transport.abort.assert_called_once_with()


def test_a_refusal_over_grpc_says_why() -> None:
    stream, tally, _ = connection(GrpcStream)
    stream.data_received(frame(_HEADERS, 5, 1, b"\0\x0bgrpc-status\x0214\0\x0cgrpc-message\x17the queue is away, wait"))
    [cause] = tally.ends
    assert "the queue is away, wait" in cause


@pytest.mark.slow
@pytest.mark.parametrize(("api", "each", "tls"), [("grpc", 5, False), ("http", 1, True), ("grpc", 1, True)])
async def test_all_streams_are_open_and_measured(tmp_path: Path, api: Api, each: int, tls: bool) -> None:
    plan = ConnectionPlan(
        connections=4, apis=(api,), streams_each=each, tls=tls, processes=2, rounds=0, seconds=1.0, at_once=4,
        key="ecdsa", nice=0,
    )  # fmt: skip
    with running("redis-6.2") as server:
        figures = await ConnectionRun(plan, tmp_path, server.url, lambda _name, _more: None).run()
    assert {api} == figures["open"].keys() < {*APIS}
    assert (4 * each, 4) == (figures["streams"], figures["open"][api]["connections"])
    assert [] == missed(figures)
    assert 2 == len(tables(figures))
