"""Routers and replicas of this release work with those of release 0.2, whose service has another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.wire.former_name import FORMER_NAME, NAME, FormerNameChannel, FormerNameServer
from penstock.internal.v1 import replica_pb2 as pb
from penstock.internal.v1 import replica_pb2_grpc as pb_grpc
from tests.support.stack import collect, request, running_stack, stream_request, text_of


async def answered(folder: Path) -> str:
    """Return the text of one generation, whole and streamed alike."""
    async with running_stack(folder) as stack:
        whole = await stack.inference().Generate(request())
        events = await collect(stack.inference().StreamGenerate(stream_request()))
    assert whole.choices[0].text == text_of(events)
    return text_of(events)


async def test_a_router_serves_with_a_replica_of_the_former_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = pb_grpc.add_ReplicaServiceServicer_to_server

    def add_former(servicer: Any, server: Any) -> None:
        if isinstance(server, FormerNameServer):
            add(servicer, server)

    monkeypatch.setattr(pb_grpc, "add_ReplicaServiceServicer_to_server", add_former)
    assert await answered(tmp_path)


async def test_a_replica_serves_a_router_of_the_former_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class OldChannel(FormerNameChannel):
        def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
            called.append(method.replace(NAME, FORMER_NAME))
            return super().stream_stream(method, *args, **kwargs)

    stub = pb_grpc.ReplicaServiceStub
    monkeypatch.setattr(pb_grpc, "ReplicaServiceStub", lambda channel: stub(OldChannel(channel)))
    assert await answered(tmp_path)
    assert {f"/{FORMER_NAME}/Link"} == set(called)


@pytest.mark.parametrize("method", ["GetStats", "GetTokenizer"])
async def test_the_former_name_needs_the_secret_too(tmp_path: Path, method: str) -> None:
    async with (
        running_stack(tmp_path, routers=0) as stack,
        grpc.aio.insecure_channel(stack.replicas[0].address) as wire,
    ):
        stub = pb_grpc.ReplicaServiceStub(FormerNameChannel(wire))  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub, method)(getattr(pb, f"{method}Request")())
        assert grpc.StatusCode.UNAUTHENTICATED is caught.value.code()
