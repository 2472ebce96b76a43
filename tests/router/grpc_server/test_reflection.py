"""Clients can ask the router for its API by both reflection services, as grpcurl, Postman and `buf curl` do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.v1 import inference_pb2
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

V1, ALPHA = "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["direct", "aio"])
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, replicas=0, router={"grpc_server": request.param}) as running:
        yield running


async def ask(stack: Stack, service: str, **question: str) -> Any:
    """Send one question as a client does that has the messages of this version."""
    package = service.rpartition(".")[0]
    find = descriptor_pool.Default().FindMessageTypeByName
    sent, received = (
        message_factory.GetMessageClass(find(f"{package}.ServerReflection{kind}")) for kind in ("Request", "Response")
    )
    call = stack.channels[0].stream_stream(
        f"/{service}/ServerReflectionInfo", sent.SerializeToString, received.FromString
    )(iter([sent(**question)]))
    answer = await call.read()
    assert grpc.aio.EOF is await call.read()
    return answer


@pytest.mark.parametrize("service", [V1, ALPHA])
async def test_the_services_are_listed(stack: Stack, service: str) -> None:
    answer = await ask(stack, service, list_services="")
    assert {
        "penstock.v1.AdminService",
        "penstock.v1.EmbeddingService",
        "penstock.v1.InferenceService",
        "penstock.v1.JobService",
        "grpc.health.v1.Health",
        V1,
        ALPHA,
    } == {each.name for each in answer.list_services_response.service}


@pytest.mark.parametrize("service", [V1, ALPHA])
@pytest.mark.parametrize("symbol", ["penstock.v1.InferenceService", "penstock.v1.GenerateRequest", V1, ALPHA])
async def test_a_client_can_build_what_it_asks_for(stack: Stack, service: str, symbol: str) -> None:
    """With nothing but the files of the answer."""
    answer = await ask(stack, service, file_containing_symbol=symbol)
    waiting = [FileDescriptorProto.FromString(file) for file in answer.file_descriptor_response.file_descriptor_proto]
    pool = descriptor_pool.DescriptorPool()
    while waiting:
        known = {file.name for file in waiting}
        for file in [each for each in waiting if known.isdisjoint(each.dependency)]:
            pool.Add(file)
            waiting.remove(file)
    assert symbol.rpartition(".")[0] == pool.FindFileContainingSymbol(symbol).package


@pytest.mark.parametrize("service", [V1, ALPHA])
@pytest.mark.parametrize(
    "symbol",
    [
        "penstock.v1.InferenceService.Generate",
        "penstock.v1.GenerateRequest.model",
        "penstock.v1.Prompt.kind",
        "penstock.v1.FINISH_REASON_STOP",
        f"{V1}.ServerReflectionInfo",
        "grpc.health.v1.Health.Check",
    ],
)
async def test_a_symbol_within_another_one_is_found(stack: Stack, service: str, symbol: str) -> None:
    """As by `grpcurl describe penstock.v1.InferenceService.Generate`."""
    answer = await ask(stack, service, file_containing_symbol=symbol)
    (first, *_) = answer.file_descriptor_response.file_descriptor_proto
    assert symbol.startswith(f"{FileDescriptorProto.FromString(first).package}.")


async def test_a_file_is_found_by_its_name(stack: Stack) -> None:
    answer = await ask(stack, V1, file_by_filename="penstock/v1/inference.proto")
    (first, *_) = answer.file_descriptor_response.file_descriptor_proto
    assert inference_pb2.DESCRIPTOR.serialized_pb == first


@pytest.mark.parametrize("symbol", ["penstock.v1.Nothing", "penstock.v1.InferenceService.Nothing", "Nothing", ""])
async def test_an_unknown_symbol_is_not_found(stack: Stack, symbol: str) -> None:
    answer = await ask(stack, V1, file_containing_symbol=symbol)
    assert grpc.StatusCode.NOT_FOUND.value[0] == answer.error_response.error_code


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc-v1", "grpc-v1alpha"])
async def test_a_tool_calls_the_api_without_its_files(stack: Stack, protocol: str) -> None:
    url = f"http://127.0.0.1:{stack.routers[0].port}/penstock.v1.InferenceService/ListModels"
    flags = ("--protocol", "grpc", "--http2-prior-knowledge", "--reflect-protocol", protocol, "--data", "{}")
    child = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("buf"), "curl", *flags, url, stdout=-1, stderr=-1
    )
    out, errors = await child.communicate()
    assert (0, b"") == (child.returncode, errors)
    assert ["demo"] == [model["name"] for model in json.loads(out)["models"]]
