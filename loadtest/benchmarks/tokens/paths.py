"""The paths to the same engine. Each is an async context manager that yields one path, or all of one cluster."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import psutil
from rich.console import Console

from cluster.addresses import free_port
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.settings import load_settings
from deployments.engines.factory import resolve_model
from deployments.engines.vllm.plugin import CPU_ENGINE_NAP_US, NAP_VARIABLE
from deployments.engines.vllm.startup.precision import cpu_flags, has_bfloat16
from loadtest.benchmarks.tokens.cpu import descendants, is_engine, title
from loadtest.benchmarks.tokens.load import Send, StreamTimes, grpc_send
from penstock.v1 import inference_pb2_grpc as api_grpc

MODEL = "demo"
CONTEXT = 1024
KV_MB = 256
MAX_SEQS = 256
ENGINE_CORES = "0"
"""Core of the engine's worker in every path. The kernel places everything else."""
DTYPE = "bfloat16" if has_bfloat16(cpu_flags()) else "float32"
"""Dtype that an unset pool takes on this machine."""
START_TIMEOUT_S = 300.0
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class ServingPath:
    """Running path: how to send, and its serving processes."""

    send: Send
    serving: Callable[[], list[psutil.Process]]
    """Processes whose CPU time counts."""
    control: Callable[[], list[psutil.Process]]
    """Processes beside the token path, reported separately: Ray's daemons."""


Opener = Callable[[Console], Any]


# --- (a) in process ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def in_process(console: Console) -> AsyncIterator[ServingPath]:
    """Run AsyncLLM in a process of its own, which also consumes the streams. Nothing is sent anywhere."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadtest.benchmarks.tokens.in_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=engine_environment(),
        limit=64 << 20,
    )
    assert child.stdin is not None  # noqa: S101 - asked for above
    assert child.stdout is not None  # noqa: S101 - asked for above
    stdin, stdout = child.stdin, child.stdout

    async def answer() -> dict[str, Any]:
        while True:
            line = await stdout.readline()
            if not line:
                raise RuntimeError("the in-process engine ended")
            if line.startswith(b"{"):
                reply: dict[str, Any] = json.loads(line)
                return reply

    async def send(text: str, tokens: int, stream: StreamTimes) -> None:
        raise NotImplementedError("the in-process path drives its own load")

    async def command(name: str, **arguments: Any) -> dict[str, Any]:
        stdin.write(json.dumps({"phase": name, **arguments}).encode() + b"\n")
        await stdin.drain()
        return await answer()

    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await answer()
        path = ServingPath(
            send,
            lambda: [p for p in descendants([child.pid]) if not is_engine(p)],
            list,
        )
        yield InProcessPath(path, command)  # type: ignore[misc]
    finally:
        stdin.close()
        await child.wait()


@dataclass(frozen=True, slots=True)
class InProcessPath:
    """Path that runs phases by command, because the consumer is in the engine's process."""

    path: ServingPath
    run: Callable[..., Awaitable[dict[str, Any]]]


# --- (b) vLLM's own HTTP server ---------------------------------------------------------------------------------------


@asynccontextmanager
async def vllm_http(console: Console) -> AsyncIterator[ServingPath]:
    """Run vLLM's OpenAI-compatible server and stream from /v1/completions."""
    port = free_port("127.0.0.1")
    model = str(resolve_model(MODEL))
    with tempfile.TemporaryDirectory() as folder:
        server = await ChildProcess.start(
            "vllm http",
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model),
                *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
                *engine_flags(),
                *("--uvicorn-log-level", "warning", "--disable-uvicorn-access-log"),
            ],
            Path(folder) / "http.log",
            # A connection may be idle for a whole phase. uvicorn would close it after 5 s, under the next request.
            {**engine_environment(), "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600"},
        )
        async with http_session(port) as session:
            try:
                await wait_http(session, server)

                send = http_send(session)
                yield ServingPath(send, lambda: [p for p in descendants([server.pid]) if not is_engine(p)], list)
            finally:
                await server.stop(30.0)


def http_send(session: aiohttp.ClientSession) -> Send:
    async def send(text: str, tokens: int, stream: StreamTimes) -> None:
        body = {
            "model": MODEL, "prompt": text, "max_tokens": tokens, "temperature": TEMPERATURE,
            "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        async with session.post("/v1/completions", json=body) as reply:
            await check(reply)
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    if choices and (ids := choices[0].get("token_ids")):
                        stream.got(len(ids))

    return send


def _parsed_send(session: aiohttp.ClientSession) -> Send:
    """Stream chats that offer a tool and ask for reasoning, so that parsers look at every token."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": place}}

    async def send(text: str, tokens: int, stream: StreamTimes) -> None:
        body = {
            "model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens,
            "temperature": TEMPERATURE, "ignore_eos": True, "stream": True, "tools": [tool],
            "chat_template_kwargs": {"thinking": True}, "stream_options": {"include_usage": True},
        }  # fmt: skip
        async with session.post("/v1/chat/completions", json=body) as reply:
            await check(reply)
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    # Parsers hold text back, so only the end tells how many tokens there were.
                    if chunk["choices"]:
                        stream.got(0)
                    elif chunk.get("usage"):
                        stream.tokens = chunk["usage"]["completion_tokens"]

    return send


async def check(reply: aiohttp.ClientResponse) -> None:
    """Raise with what the server says if it refuses."""
    if not reply.ok:
        raise RuntimeError(f"{reply.url}: {reply.status}: {await reply.text()}")


def http_session(port: int) -> aiohttp.ClientSession:
    """Return a session with a server of this machine that opens as many connections as are asked for."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout)


async def wait_http(session: aiohttp.ClientSession, server: ChildProcess) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            server.check()
            try:
                async with session.get("/health") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


# --- (c), (d) and (e) Penstock ----------------------------------------------------------------------------------------


@asynccontextmanager
async def penstock(console: Console) -> AsyncIterator[tuple[ServingPath, ServingPath, ServingPath]]:
    """Run a whole cluster, and stream over gRPC, over HTTP, and over HTTP with output that is parsed."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            flags={
                "cluster": {"state_dir": folder, "log_level": "warning"},
                "router": {"port": 0, "http": {"port": 0}},
                "pools": {
                    MODEL: {
                        "model": MODEL,
                        "vllm": {
                            "dtype": DTYPE,
                            "max_model_len": CONTEXT,
                            "max_num_seqs": MAX_SEQS,
                            "max_num_batched_tokens": CONTEXT * 4,
                            "kv_cache_memory_mb": KV_MB,
                            "block_size": 32,
                        },
                    }
                },
            }
        )
        async with LocalCluster(settings, lambda step, text: None) as cluster:
            channel = grpc.aio.insecure_channel(cluster.target)
            send = grpc_send(api_grpc.InferenceServiceStub(channel), MODEL, temperature=TEMPERATURE)
            async with http_session(cluster.routers[0].http_port) as session:
                try:
                    over_grpc = ServingPath(send, lambda: _penstock_processes(cluster), lambda: _ray_processes(cluster))
                    over_http = replace(over_grpc, send=http_send(session))
                    yield over_grpc, over_http, replace(over_grpc, send=_parsed_send(session))
                finally:
                    await channel.close(None)


def _is_replica(process: psutil.Process) -> bool:
    return "ServeReplica" in title(process)


def _penstock_processes(cluster: LocalCluster) -> list[psutil.Process]:
    roots = [router.process.pid for router in cluster.routers]
    if cluster.redis is not None:
        roots.append(cluster.redis.pid)
    replicas = [p for p in _all_ray(cluster) if _is_replica(p)]
    return [*descendants(roots), *(p for p in descendants([p.pid for p in replicas]) if not is_engine(p))]


def _ray_processes(cluster: LocalCluster) -> list[psutil.Process]:
    serving = {p.pid for p in _penstock_processes(cluster)}
    return [p for p in _all_ray(cluster) if p.pid not in serving and not is_engine(p)]


def _all_ray(cluster: LocalCluster) -> list[psutil.Process]:
    return descendants([cluster.ray_host.pid]) if cluster.ray_host is not None else []


def engine_flags() -> list[str]:
    """Return the engine's settings as flags of vLLM's command line."""
    return [
        *("--dtype", DTYPE, "--max-model-len", str(CONTEXT), "--max-num-seqs", str(MAX_SEQS)),
        *("--max-num-batched-tokens", str(CONTEXT * 4), "--no-enable-chunked-prefill"),
        *("--kv-cache-memory-bytes", str(KV_MB << 20), "--block-size", "32", "--enforce-eager"),
        *("--distributed-executor-backend", "mp"),
    ]


def engine_environment() -> dict[str, str]:
    """Return the environment of engines that Penstock does not start itself. Its own adapter sets the same."""
    return {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": ENGINE_CORES,
        NAP_VARIABLE: str(CPU_ENGINE_NAP_US),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
