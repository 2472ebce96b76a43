"""A router and a replica on IPv6, from the client to the engine."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from cluster.errors import BootstrapError
from penstock.client import AsyncClient, Sampling
from router.build import build_router
from tests.support.ports import require_ipv6
from tests.support.stack import SECRET, running_stack


def metrics(port: int) -> bytes:
    with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=5) as reply:
        page: bytes = reply.read()
    return page


@pytest.mark.parametrize("server", ["direct", "aio"])
@pytest.mark.parametrize("host", ["::1", "[::1]", "::"])
async def test_a_generation_over_ipv6(host: str, server: str, tmp_path: Path) -> None:
    require_ipv6()
    sections = {"replica": {"host": "::1" if host == "::" else host}, "auth": {"anonymous": True}}
    async with running_stack(tmp_path, router={"host": host, "grpc_server": server}, sections=sections) as stack:
        [router], [replica] = stack.routers, stack.replicas
        assert replica.address.startswith("[::1]:")
        assert {replica.plan.replica_id} == set(router.pools["demo"].replicas.connected())
        async with AsyncClient(f"[::1]:{router.port}") as client:
            answer = await client.generate("demo", "What is Penstock?", Sampling(max_tokens=5, temperature=0.0))
        assert 5 == answer.usage.output_tokens
        server_of = replica._metrics_server
        assert server_of is not None
        for port in (router.metrics_port, server_of.port):
            assert b"penstock_" in await asyncio.to_thread(metrics, port)


@pytest.mark.parametrize("host", ["::1", "::"])
async def test_the_http_api_answers_over_ipv6(host: str, tmp_path: Path) -> None:
    require_ipv6()
    sections = {"replica": {"host": "::1"}, "auth": {"anonymous": True}}
    async with running_stack(tmp_path, router={"host": host, "http": {"port": 0}}, sections=sections) as stack:
        http = stack.routers[0].http
        assert http is not None
        url = f"http://[::1]:{http.port}/v1/completions"
        body = {"model": "demo", "prompt": "What is Penstock?", "max_tokens": 5, "temperature": 0}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            assert (200, 5) == (answer.status, (await answer.json())["usage"]["completion_tokens"])


async def test_a_taken_metrics_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running_stack(tmp_path, routers=0, replicas=0) as stack:
            queues = stack.factory()
            router = build_router(stack.settings, SECRET, queues, port=0, metrics_port=port)
            with pytest.raises(BootstrapError, match=f"metrics can't be served on 127.0.0.1:{port}"):
                await router.start()
            await router.stop()
