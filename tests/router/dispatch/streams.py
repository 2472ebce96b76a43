"""Reads streams whose replicas die, fall silent or change."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from penstock.v1 import inference_pb2 as api
from tests.support.stack import Stack, collect, stream_request

LONG = {"max_tokens": 300, "ignore_eos": True}
SIM = {"base_ms": 8.0}
"""Slow enough that a busy machine acts within an output."""
Events = list[api.StreamGenerateResponse]


async def plain(stack: Stack, **sampling: Any) -> Events:
    """Return the undisturbed stream."""
    return await collect(stack.inference().StreamGenerate(stream_request(**sampling)))


def replica_of(stack: Stack, events: Events) -> int:
    """Return the number of the replica that the stream runs on."""
    newest = next(
        event.resumed.replica_id or event.started.replica_id
        for event in reversed(events)
        if event.HasField("resumed") or event.HasField("started")
    )
    return [replica.plan.replica_id for replica in stack.replicas].index(newest)


def resumed_of(events: Events) -> list[api.Resumed]:
    return [event.resumed for event in events if event.HasField("resumed")]


async def read_until_resumed(call: Any, times: int = 1) -> Events:
    """Read a stream until it went on so many times."""
    events: Events = []
    while len(resumed_of(events)) < times:
        events.append(await call.read())
    return events


def error_of(error: grpc.aio.AioRpcError) -> tuple[str, dict[str, str]]:
    """Return reason and facts."""
    status = rpc_status.from_call(error)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    return info.reason, dict(info.metadata)


async def read_into(events: Events, call: Any) -> None:
    """Read a stream to its end, also where that is an error."""
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
