"""The paths of other projects' front ends before engines with the same settings: vLLM's own in Rust, and SMG."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rich.console import Console

from cluster.addresses import free_port
from cluster.bootstrap.process import ChildProcess
from deployments.engines.factory import resolve_model
from loadtest.benchmarks.tokens import packages
from loadtest.benchmarks.tokens.cpu import descendants, is_engine
from loadtest.benchmarks.tokens.load import Send, StreamTimes
from loadtest.benchmarks.tokens.packages import NotAvailableError
from loadtest.benchmarks.tokens.paths import (
    MODEL,
    START_TIMEOUT_S,
    TEMPERATURE,
    Opener,
    ServingPath,
    check,
    engine_environment,
    engine_flags,
    http_session,
)

HOST = "127.0.0.1"
TRY_TOKENS = 4
"""Tokens of the request that tells whether a path works."""


async def openers(folder: Path, console: Console) -> dict[tuple[str, ...], Opener]:
    """Return what opens the rivals' paths, in their order. Fetches what is not in `folder` yet, and says what can't be
    had.
    """
    names = await asyncio.to_thread(packages.names_of_vllm, folder)
    found: dict[tuple[str, ...], Opener] = {}
    try:
        with console.status("fetching vLLM's Rust front end"):
            program = await asyncio.to_thread(packages.rust_frontend, folder)
        found["vllm_rust", "vllm_rust_grpc"] = partial(vllm_rust, program, names)
    except NotAvailableError as error:
        console.print(f"vLLM's Rust front end is left out: {error}", highlight=False)
    try:
        with console.status("fetching SMG"):
            modules = await asyncio.to_thread(packages.smg, folder)
        found[("smg_zmq",)] = partial(smg_zmq, modules, names)
        found[("smg_servicer",)] = partial(smg_servicer, modules, names)
    except NotAvailableError as error:
        console.print(f"SMG is left out: {error}", highlight=False)
    return found


# --- vLLM's front end in Rust -----------------------------------------------------------------------------------------


@asynccontextmanager
async def vllm_rust(program: Path, names: Path, console: Console) -> AsyncIterator[tuple[ServingPath, ServingPath]]:
    """Run vLLM's server with its front end in Rust, and stream from /v1/completions and over its gRPC."""
    port, grpc_port = free_port(HOST), free_port(HOST)
    async with AsyncExitStack() as stack:
        server = await _start(
            stack,
            "vllm rust",
            _vllm("--host", HOST, "--port", str(port), "--grpc-port", str(grpc_port)),
            _environment(names, VLLM_USE_RUST_FRONTEND="1", VLLM_RUST_FRONTEND_PATH=str(program)),
        )
        session = await stack.enter_async_context(http_session(port))
        over_http = _usage_send(session, MODEL)
        channel = grpc.aio.insecure_channel(f"{HOST}:{grpc_port}")
        stack.push_async_callback(channel.close, None)
        over_grpc = _grpc_send(channel)
        await _until_it_answers(over_http, server)
        await _until_it_answers(over_grpc, server)
        yield _path(over_http, server), _path(over_grpc, server)


def _grpc_send(channel: grpc.aio.Channel) -> Send:
    request, response = grpc_messages()
    stream_generate: Any = channel.unary_stream(
        "/vllm.Inference/GenerateStream",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )

    async def send(text: str, tokens: int, stream: StreamTimes) -> None:
        generate = request(
            model=MODEL,
            text=text,
            temperature=TEMPERATURE,
            sampling={},
            stopping={"max_new_tokens": tokens, "ignore_eos": True},
            response={"output_token_ids": True},
        )
        async for event in stream_generate(generate):
            if count := len(event.outputs.token_ids):
                stream.got(count)

    return send


def grpc_messages() -> tuple[Any, Any]:
    """Return a request and a response of vLLM's gRPC with the fields that are used here."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rival_inference.proto", package="vllm", syntax="proto3")

    def message(name: str, **fields: tuple[int, int | str]) -> None:
        added = file.message_type.add(name=name)
        for each, (number, kind) in fields.items():
            one = added.field.add(name=each, number=number, label=field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                one.type, one.type_name = field.TYPE_MESSAGE, f".vllm.{kind}"
            else:
                one.type = kind  # type: ignore[assignment]

    message("RandomSampling", num_sequences=(1, field.TYPE_UINT32))
    message("StoppingCriteria", max_new_tokens=(1, field.TYPE_UINT32), ignore_eos=(6, field.TYPE_BOOL))
    message("ResponseOptions", output_token_ids=(5, field.TYPE_BOOL))
    message(
        "GenerateRequest",
        model=(2, field.TYPE_STRING),
        text=(3, field.TYPE_STRING),
        temperature=(5, field.TYPE_FLOAT),
        sampling=(6, "RandomSampling"),
        stopping=(8, "StoppingCriteria"),
        response=(9, "ResponseOptions"),
    )
    message("SequenceOutput", text=(2, field.TYPE_STRING), token_ids=(4, field.TYPE_UINT32))
    file.message_type[-1].field[-1].label = field.LABEL_REPEATED
    message("GenerateResponse", outputs=(2, "SequenceOutput"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = (pool.FindMessageTypeByName(f"vllm.{name}") for name in ("GenerateRequest", "GenerateResponse"))
    request, response = map(message_factory.GetMessageClass, types)
    return request, response


# --- SMG --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def smg_zmq(modules: Path, names: Path, console: Console) -> AsyncIterator[ServingPath]:
    """Run SMG before an engine that dials in over ZeroMQ, with no server between them."""
    async with AsyncExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        socket = sockets / "engine"
        front, port = await _smg(stack, f"ipc://{socket}", modules, names)
        engine = await _start(
            stack,
            "smg engine",
            [
                *_vllm("--headless", "--data-parallel-size", "1", "--data-parallel-size-local", "1"),
                *("--data-parallel-address", HOST, "--data-parallel-rpc-port", str(handshake_port(str(socket)))),
            ],
            _environment(modules, names),
        )
        yield _path(await _smg_send(stack, port, front, engine), front, engine)


def handshake_port(path: str) -> int:
    """Return the port at which SMG waits for the engine of a socket: its path's FNV-1a hash in 20000 to 29999."""
    found = 0xCBF29CE484222325
    for byte in path.encode():
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return 20000 + found % 10000


@asynccontextmanager
async def smg_servicer(modules: Path, names: Path, console: Console) -> AsyncIterator[ServingPath]:
    """Run SMG before its own server at the engine, the one in Rust, over gRPC."""
    port = free_port(HOST)
    async with AsyncExitStack() as stack:
        server = await _start(
            stack,
            "smg servicer",
            _vllm("--grpc", "--host", HOST, "--port", str(port)),
            _environment(modules, names, SMG_VLLM_SERVICER_IMPL="rust"),
        )
        await _until_it_listens(port, server)
        front, front_port = await _smg(stack, f"grpc://{HOST}:{port}", modules, names)
        yield _path(await _smg_send(stack, front_port, front, server), front, server)


async def _smg(stack: AsyncExitStack, worker: str, modules: Path, names: Path) -> tuple[ChildProcess, int]:
    port, model = free_port(HOST), str(resolve_model(MODEL))
    command = [
        *(sys.executable, "-m", "smg", "launch", "--host", HOST, "--port", str(port), "--backend", "vllm"),
        *("--worker-urls", worker, "--model-path", model, "--tokenizer-path", model, "--log-level", "warn"),
        *("--prometheus-host", HOST, "--prometheus-port", str(free_port(HOST))),
    ]
    return await _start(stack, "smg", command, _environment(modules, names)), port


async def _smg_send(stack: AsyncExitStack, port: int, *children: ChildProcess) -> Send:
    session = await stack.enter_async_context(http_session(port))
    async with asyncio.timeout(START_TIMEOUT_S):
        while not (models := await _models(session)):
            _check_all(children)
            await asyncio.sleep(0.5)
    send = _usage_send(session, models[0])
    await _until_it_answers(send, *children)
    return send


async def _models(session: aiohttp.ClientSession) -> list[str]:
    try:
        async with session.get("/v1/models") as reply:
            return [each["id"] for each in (await reply.json())["data"]] if reply.ok else []
    except aiohttp.ClientError:
        return []


# --- what they share --------------------------------------------------------------------------------------------------


def _vllm(*flags: str) -> list[str]:
    vllm = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(resolve_model(MODEL)))
    return [*vllm, "--served-model-name", MODEL, *engine_flags(), *flags]


def _environment(*modules: Path, **variables: str) -> dict[str, str]:
    path = os.pathsep.join(map(str, modules))
    return {**engine_environment(), "PYTHONPATH": path, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600", **variables}


async def _start(stack: AsyncExitStack, name: str, command: list[str], environment: dict[str, str]) -> ChildProcess:
    log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
    child = await ChildProcess.start(name, command, log, environment)
    stack.push_async_callback(child.stop_family, 30.0)
    return child


def _path(send: Send, *children: ChildProcess) -> ServingPath:
    pids = [child.pid for child in children]
    return ServingPath(send, lambda: [p for p in descendants(pids) if not is_engine(p)], list)


def _usage_send(session: aiohttp.ClientSession, model: str) -> Send:
    """Stream from /v1/completions. Where a server does not pass token ids on, the usage at the end has their number."""

    async def send(text: str, tokens: int, stream: StreamTimes) -> None:
        body = {
            "model": model, "prompt": text, "max_tokens": tokens, "temperature": TEMPERATURE, "ignore_eos": True,
            "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        async with session.post("/v1/completions", json=body) as reply:
            await check(reply)
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    note(json.loads(line[6:]), stream)

    return send


def note(event: Mapping[str, Any], stream: StreamTimes) -> None:
    """Note an event of a completion. The usage, if there is any, sets the number of tokens right."""
    for choice in event.get("choices") or ():
        ids = choice.get("token_ids")
        if ids or choice.get("text"):
            stream.got(len(ids or ()))
    if usage := event.get("usage"):
        stream.tokens = usage["completion_tokens"]


async def _until_it_answers(send: Send, *children: ChildProcess) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            _check_all(children)
            stream = StreamTimes(time.perf_counter())
            with suppress(aiohttp.ClientError, grpc.RpcError, RuntimeError):
                await send("What is vLLM?", TRY_TOKENS, stream)
            if stream.tokens == TRY_TOKENS:
                return
            await asyncio.sleep(0.5)


async def _until_it_listens(port: int, *children: ChildProcess) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            _check_all(children)
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(0.5)
                continue
            writer.close()
            return


def _check_all(children: tuple[ChildProcess, ...]) -> None:
    for child in children:
        child.check()
