"""The queue stops answering: streams go on, new requests are refused at once, and everything settles afterwards."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.support.stack import collect, ids_of, request, running_stack, stream_request
from tests.support.waiting import until


async def test_streams_go_on_and_new_requests_are_told_when_to_come_back(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 3.0}) as stack:
        pool = stack.routers[0].pools["demo"]
        call = stack.inference().StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        events = [await call.read(), await call.read()]
        stack.store.down = True
        await until(lambda: not pool.available)

        began = time.monotonic()
        refused = stack.inference().Generate(request(max_tokens=2))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused
        assert time.monotonic() - began < 1.0
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        status = await rpc_status.aio.from_call(refused)
        assert status is not None
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)

        events.extend(await collect(call))
        assert 300 == len(ids_of(events))
        stack.store.down = False
        await until(lambda: pool.available and pool.beat is not None and pool.beat.running == 0)
        assert 2 == (await stack.inference().Generate(request(max_tokens=2, ignore_eos=True))).usage.output_tokens


async def test_a_queue_that_forgot_everything_is_filled_again_by_heartbeats(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 3.0}) as stack:
        call = stack.inference().StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        events = [await call.read(), await call.read()]
        stack.store.restart(forget=True)
        events.extend(await collect(call))
        assert 300 == len(ids_of(events))

        async def served() -> bool:
            try:
                reply = await stack.inference(1).Generate(request(max_tokens=2, ignore_eos=True), timeout=5)
            except grpc.aio.AioRpcError:
                return False
            return bool(reply.usage.output_tokens == 2)

        await until(served)
        await asyncio.gather(*(stack.inference(i % 2).Generate(request(max_tokens=2), timeout=20) for i in range(20)))
