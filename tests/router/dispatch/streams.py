"""Reads streams whose replicas die, fall silent or change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from deployments.engines.sim.engine import SimEngine
from deployments.engines.sim.turn import StepResult
from deployments.replica.replica import Replica
from penstock.v1 import inference_pb2 as api
from tests.router.links.parts import read_until
from tests.support.stack import Stack, collect, stream_request
from tests.support.waiting import until

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


async def read_until_held(stack: Stack, call: Any, tokens: int) -> Events:
    """Read a stream until so many tokens came; then its engine makes no more steps. What a test does until it kills the
    replica may take long on a busy machine, and the stream would end before.
    """
    events = await read_until(call, tokens)
    engine = stack.engines[replica_of(stack, events)]
    assert isinstance(engine, SimEngine)
    # Nor does the replica give the engine up meanwhile.
    engine._stall_s = math.inf
    engine.wedge()
    return events


def stand(stack: Stack) -> None:
    """Let engines make no more steps until `move_on`. What a test does meanwhile may take long on a busy machine."""
    for engine in stack.engines:
        assert isinstance(engine, SimEngine)
        engine._stall_s = math.inf
        engine.wedge()


def move_on(stack: Stack) -> None:
    """Let engines make steps again."""
    for engine in stack.engines:
        assert isinstance(engine, SimEngine)
        engine._moving.set()


def hold_at(stack: Stack, tokens: int) -> None:
    """Make the engine whose sequence is the first to have so many tokens take no more steps. However late its client
    reads them, there are no others.
    """
    held = False

    def watched(engine: SimEngine) -> Callable[[StepResult, int], None]:
        deliver = engine._deliver

        def delivered(result: StepResult, in_batch: int) -> None:
            nonlocal held
            deliver(result, in_batch)
            if not held and any(each.output_tokens >= tokens for each in engine._live.values()):
                held = True
                engine.wedge()

        return delivered

    for engine in stack.engines:
        assert isinstance(engine, SimEngine)
        engine._stall_s = math.inf
        engine._deliver = watched(engine)  # type: ignore[method-assign]


async def idle(stack: Stack, replica: Replica) -> Callable[[], None]:
    """Keep work away from a replica, before a stream that must not wait for its start; return what ends that."""
    windows = replica.table.windows

    def tell(sequences: int) -> None:
        replica.table.windows = replace(windows, sequences=sequences)
        replica._report_now()

    replicas = stack.routers[0].pools[replica.plan.pool].replicas
    tell(0)
    await until(lambda: replicas.records[replica.plan.replica_id].windows.sequences == 0)
    return lambda: tell(windows.sequences)


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
