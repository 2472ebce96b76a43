"""What only the client for asyncio can get wrong: cancellation."""

import asyncio

import pytest

from penstock.client import AsyncClient


@pytest.fixture
async def client(port):
    async with AsyncClient(f"127.0.0.1:{port}") as opened:
        yield opened


async def read(client: AsyncClient) -> None:
    async for _ in client.stream("demo", "hi"):
        pass


@pytest.mark.parametrize("call", [read, lambda client: client.generate("demo", "hi")], ids=["stream", "unary"])
async def test_cancelling_the_task_cancels_the_call(client, fake, call):
    fake.hold_after = 1
    task = asyncio.create_task(call(client))
    await fake.asked.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancelled_reader_leaves_nothing_running_at_the_router(client, fake):
    fake.hold_after = 1
    task = asyncio.create_task(read(client))
    await fake.asked.wait()

    task.cancel()

    await fake.abandoned.wait()


async def test_a_timeout_around_the_call_works(client, fake):
    fake.hold_after = 1

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await read(client)


@pytest.mark.parametrize(
    "call",
    [
        read,
        lambda client: client.generate("demo", "hi"),
        lambda client: client.embed("demo", "hi"),
        lambda client: anext(client.watch_job("job")),
    ],
    ids=["stream", "unary", "embed", "watch"],
)
@pytest.mark.parametrize("first_loop", ["running", "closed"])
async def test_a_call_in_another_loop_is_told_so(port, first_loop, call):
    """As of a client that a module makes once, and two calls of `asyncio.run`. gRPC's errors name tasks and futures."""
    client = AsyncClient(f"127.0.0.1:{port}")
    if first_loop == "running":
        await client.list_models()
    else:
        await asyncio.to_thread(asyncio.run, awaited(client.list_models()))

    with pytest.raises(RuntimeError, match="belongs to the event loop of its first call"):
        await asyncio.to_thread(asyncio.run, awaited(call(client)))
    await client.close()


async def awaited(call) -> object:
    return await call
