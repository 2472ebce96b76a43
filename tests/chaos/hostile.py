"""Clients that mean harm, or do it: garbage on the public port, streams that nobody reads, cancel storms, and peers
that vanish.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.client import AsyncClient, RetryPolicy, Sampling
from penstock.v1 import inference_pb2 as api
from penstock.v1 import inference_pb2_grpc
from penstock.v1 import types_pb2 as types
from penstock.values.errors import PenstockClientError
from penstock.values.events import Delta
from tests.chaos.cluster import HOST, ChaosCluster
from tests.chaos.history import Failed
from tests.chaos.proxy import ChaosProxy, Toxic

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW = 1 << 16
_STOPPED_S = 30.0
"""How long unread streams may take to reach their bound."""
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
        port = cluster.nodes[self.router].facts["port"]
        cluster.unread = await _open_long(f"{HOST}:{port}", self.streams, logprobs=20)
        cluster.notes["rss_before"] = cluster.memory()[self.router]

    async def proof(self, cluster: ChaosCluster) -> str:
        waiting = sum(not call.done() for call in cluster.unread[1])
        kept = (await cluster.metrics(self.router)).get("penstock_router_unread_bytes", 0.0)
        return f"{waiting} streams are open, {kept / 1e6:.1f} MB of them unread" if waiting and kept > 1e5 else ""


@dataclass(frozen=True, slots=True)
class HangUp:
    """The end of the unread streams: their connection breaks."""

    router: str
    stopped: int
    """Streams that the router must have ended by then."""
    most_mb: float
    """How much the router's memory may have grown by then, in MiB."""
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        deadline = time.monotonic() + _STOPPED_S
        cluster.notes["stopped"] = 0.0
        while cluster.notes["stopped"] < self.stopped and time.monotonic() < deadline:
            metrics = await cluster.metrics(self.router)
            cluster.notes["stopped"] = metrics.get("penstock_router_slow_readers_total", 0.0)
            await asyncio.sleep(0.2)
        grown = cluster.memory()[self.router] - cluster.notes["rss_before"]
        cluster.notes["rss_grown_mb"] = grown / (1 << 20)
        channel, calls = cluster.unread
        for call in calls:
            call.cancel()
        await channel.close()

    async def proof(self, cluster: ChaosCluster) -> str:
        grown, stopped = cluster.notes["rss_grown_mb"], cluster.notes["stopped"]
        if grown > self.most_mb or stopped < self.stopped:
            return ""
        return f"the router had grown by {grown:.1f} MiB and ended {stopped:.0f} streams"


@dataclass(frozen=True, slots=True)
class Vanish:
    """Clients whose network goes away in the middle of their streams: nothing ends their connections."""

    router: str
    streams: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        proxy = cluster.proxies["vanishing"] = ChaosProxy(
            "vanishing", f"{HOST}:{cluster.nodes[self.router].facts['port']}"
        )
        await proxy.start()
        cluster.unread = await _open_long(proxy.address, self.streams, logprobs=0)
        await proxy.poison(Toxic(blackhole="both"))

    async def proof(self, cluster: ChaosCluster) -> str:
        held = cluster.proxies["vanishing"].counters().held
        return f"{held} bytes held" if held else ""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Nothing done: shows that the router has let go of clients that vanished."""

    router: str
    others: int
    """Clients that are in their right mind."""
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.nodes[self.router].look()

    async def proof(self, cluster: ChaosCluster) -> str:
        metrics = await cluster.metrics(self.router)
        calls = metrics["penstock_router_open_calls"]
        return f"{calls:.0f} calls are open" if calls <= self.others else ""


@dataclass(frozen=True, slots=True)
class Storm:
    """Clients that open streams and cancel them at random places, again and again, for some seconds."""

    router: str
    clients: int
    seconds: float
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        port = cluster.nodes[self.router].facts["port"]
        until = time.monotonic() + self.seconds
        async with AsyncClient(f"{HOST}:{port}", retry=RetryPolicy(1)) as client:
            counts = await asyncio.gather(*(_cancel_on_and_on(client, until) for _ in range(self.clients)))
        cluster.notes["cancelled"] = float(sum(counts))

    async def proof(self, cluster: ChaosCluster) -> str:
        cancelled = cluster.notes.get("cancelled", 0.0)
        return f"{cancelled:.0f} streams were cancelled" if cancelled >= 2 * self.clients else ""


async def _cancel_on_and_on(client: AsyncClient, until: float) -> int:
    cancelled = 0
    while time.monotonic() < until:
        stream = client.stream("demo", [5, 6, 7], Sampling(max_tokens=200, ignore_eos=True), timeout=30.0)
        async with stream:
            stop_after = random.randrange(0, 12)
            async for event in stream:
                if not isinstance(event, Delta) or event.offset < stop_after:
                    continue
                break
        cancelled += 1
    return cancelled


async def _open_long(target: str, streams: int, logprobs: int) -> tuple[Any, list[Any]]:
    """Open streams that take minutes, over one connection, and read their first event: they were taken."""
    # A client's own gRPC would read ahead, by megabytes where the network is fast.
    options = (
        ("grpc.http2.lookahead_bytes", _WINDOW),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    channel = grpc.aio.insecure_channel(target, options=options)
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    sampling = types.SamplingParams(max_tokens=20_000, ignore_eos=True)
    if logprobs:
        sampling.logprobs = logprobs
    wire = api.StreamGenerateRequest(
        generate=api.GenerateRequest(
            model="demo", prompt=types.Prompt(tokens=types.TokenPrompt(ids=[5, 6, 7])), sampling=sampling
        )
    )
    calls = [stub.StreamGenerate(wire) for _ in range(streams)]
    await asyncio.gather(*(call.read() for call in calls))
    return channel, calls
