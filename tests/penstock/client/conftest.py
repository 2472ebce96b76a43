"""Runs every client test on both clients, the one for threads behind a facade with the shape of the other."""

import asyncio

import pytest

from penstock.client import AsyncClient, Client, RetryPolicy
from tests.penstock.client.fake_router import FakeRouter, serving

FAST = RetryPolicy(max_attempts=3, base_delay=0.0)
PATIENT = (("grpc.min_reconnect_backoff_ms", 20_000),)
"""Option with which connecting may take longer than a machine halts. Retries without a wait all fail meanwhile."""
_END = object()


class ThreadedStream:
    """Reads a Stream in threads."""

    def __init__(self, stream) -> None:
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __aiter__(self):
        return self

    async def __anext__(self):
        event = await asyncio.to_thread(next, self._stream, _END)
        if event is _END:
            raise StopAsyncIteration
        return event

    async def aclose(self):
        await asyncio.to_thread(self._stream.close)

    async def __aenter__(self):
        self._stream.__enter__()
        return self

    async def __aexit__(self, *error):
        await asyncio.to_thread(self._stream.__exit__, *error)


class ThreadedClient:
    """Calls a Client in threads."""

    def __init__(self, *args, **options) -> None:
        self._client = Client(*args, **options)

    def stream(self, *args, **options):
        return ThreadedStream(self._client.stream(*args, **options))

    def __getattr__(self, name):
        method = getattr(self._client, name)
        return lambda *args, **options: asyncio.to_thread(method, *args, **options)


@pytest.fixture
async def fake() -> FakeRouter:
    """Play the router."""
    return FakeRouter()


@pytest.fixture
async def port(fake):
    """Serve the fake router."""
    async with serving(fake) as bound:
        yield bound


@pytest.fixture(params=[AsyncClient, ThreadedClient], ids=["async", "sync"])
async def connect(request):
    """Make clients of either kind that retry without waiting, and close them."""
    clients = []

    def build(targets, **options):
        client = request.param(targets, **{"retry": FAST, **options})
        clients.append(client)
        return client

    yield build
    for client in clients:
        await client.close()


@pytest.fixture
def client(connect, port):
    """Be connected to the fake router."""
    return connect(f"127.0.0.1:{port}", channel_options=PATIENT)
