"""Clients that mean harm, or do it: garbage on the public port, and streams that nobody reads."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from penstock.v1 import inference_pb2 as api
from penstock.v1 import inference_pb2_grpc
from penstock.v1 import types_pb2 as types

from router.client import AsyncClient, RetryPolicy, Sampling
from router.client.errors import PenstockClientError
from tests.chaos.cluster import HOST, ChaosCluster
from tests.chaos.history import Failed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW = 1 << 16
_KILLER_S = 150.0
"""Two engines die under it, and each takes half a minute to be there again."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Connections that send no HTTP/2, HTTP/2 with broken frames, and calls whose bytes are no message."""

    router: str
    connections: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        """Send it; see `Fault`, as for all below."""
        port = cluster.nodes[self.router].facts["port"]
        closed = await asyncio.gather(*(_throw(port, number) for number in range(self.connections)))
        cluster.notes["garbage"] = sum(closed)
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            call = channel.unary_unary("/penstock.v1.InferenceService/Generate")
            refused = await asyncio.gather(*(call(os.urandom(200)) for _ in range(20)), return_exceptions=True)
        cluster.notes["refused"] = sum(_code(error) is grpc.StatusCode.INVALID_ARGUMENT for error in refused)

    async def proof(self, cluster: ChaosCluster) -> str:
        ended, refused = cluster.notes.get("garbage", 0), cluster.notes.get("refused", 0)
        # A random message is valid now and then.
        if ended < self.connections or refused < 15:
            return ""
        return f"{ended:.0f} connections were closed by the router, {refused:.0f} calls were INVALID_ARGUMENT"


@dataclass(frozen=True, slots=True)
class Killer:
    """A request that kills vLLM on a CPU: seeded, sampled, and longer than the token budget of a step that the guard
    against this no longer raises.
    """

    router: str
    prompt_tokens: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        prompt = [9 + number % 400 for number in range(self.prompt_tokens)]
        sampling = Sampling(temperature=1.0, seed=7, max_tokens=8, ignore_eos=True)
        port = cluster.nodes[self.router].facts["port"]
        async with AsyncClient(f"{HOST}:{port}", retry=RetryPolicy(1)) as client:
            try:
                await client.generate("demo", prompt, sampling, timeout=_KILLER_S)
            except PenstockClientError as error:
                failed = Failed(time.monotonic(), error.code.name, error.reason, error.retry_after, final=True)
                cluster.killers.append(failed)
                cluster.notes["incident"] = float("incident" in str(error))

    async def proof(self, cluster: ChaosCluster) -> str:
        died = sum(node.process.status == 1 for node in (*cluster.nodes.values(), *cluster.dead))
        if not died or not cluster.killers:
            return ""
        end = cluster.killers[-1]
        incident = " with an incident" if cluster.notes.get("incident") else ""
        return f"{died} engines died, it ended {end.code} {end.reason}{incident}"


async def _throw(port: int, number: int) -> bool:
    """Send garbage; say whether the other side hung up."""
    reader, writer = await asyncio.open_connection(HOST, port)
    with suppress(OSError):
        # Frames of a type and length that mean nothing, or a settings frame with a length that is none.
        writer.write(os.urandom(4_096) if number % 2 else PREFACE + b"\x00\x00\x05\x04\x00\x00\x00\x00\x00" + b"x" * 64)
        await writer.drain()
        async with asyncio.timeout(8.0):
            while await reader.read(4_096):
                pass
        writer.close()
        return True
    writer.close()
    # A reset is a way to hang up; being left open is not.
    return not isinstance(reader.exception(), TimeoutError)


def _code(error: object) -> object:
    return error.code() if isinstance(error, grpc.aio.AioRpcError) else None


@dataclass(frozen=True, slots=True)
class Unread:
    """Long streams with much in them that their clients never read; `HangUp` ends them."""

    router: str
    streams: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        options = (("grpc.http2.lookahead_bytes", _WINDOW), ("grpc.use_local_subchannel_pool", 1))
        port = cluster.nodes[self.router].facts["port"]
        channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=options)
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        wire = api.StreamGenerateRequest(
            generate=api.GenerateRequest(
                model="demo",
                prompt=types.Prompt(tokens=types.TokenPrompt(ids=[5, 6, 7])),
                sampling=types.SamplingParams(max_tokens=20_000, ignore_eos=True, logprobs=20),
            )
        )
        calls = [stub.StreamGenerate(wire) for _ in range(self.streams)]
        # The first event proves that it was taken; after it nobody reads.
        await asyncio.gather(*(call.read() for call in calls))
        cluster.unread = (channel, calls)
        cluster.notes["rss_before"] = cluster.memory()[self.router]

    async def proof(self, cluster: ChaosCluster) -> str:
        waiting = sum(not call.done() for call in cluster.unread[1])
        return f"{waiting} streams are open and unread" if waiting == self.streams else ""


@dataclass(frozen=True, slots=True)
class HangUp:
    """The end of the unread streams: their connection breaks."""

    router: str
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        grown = cluster.memory()[self.router] - cluster.notes["rss_before"]
        cluster.notes["rss_grown_mb"] = grown / (1 << 20)
        channel, calls = cluster.unread
        for call in calls:
            call.cancel()
        await channel.close()

    async def proof(self, cluster: ChaosCluster) -> str:
        return f"the router had grown by {cluster.notes['rss_grown_mb']:.1f} MiB"
