"""A stream that is left is cancelled: a real router and a replica with a simulated engine have nothing left to do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock import AsyncClient, CancelledError, Client, Delta, Started, Stream
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

LONG = {"max_tokens": 100_000, "ignore_eos": True, "temperature": 0.0}
"""Minutes of work."""


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    sim = {"base_ms": 2.0, "max_model_len": 200_000, "kv_tokens": 400_000}
    async with running_stack(tmp_path, sim=sim) as running:
        yield running


def running(stack: Stack) -> int:
    return stack.replicas[0].table.sequences


def address(stack: Stack) -> str:
    return f"127.0.0.1:{stack.routers[0].port}"


# --- threads ----------------------------------------------------------------------------------------------------------


def broken_off(client: Client) -> Stream:
    stream = client.stream("demo", "go", **LONG)
    for event in stream:
        if isinstance(event, Delta):
            break
    return stream


def returned_from(client: Client) -> Stream:
    def first(stream: Stream) -> Delta:
        for event in stream:
            if isinstance(event, Delta):
                return event
        raise AssertionError("no output")

    first(stream := client.stream("demo", "go", **LONG))
    return stream


def failed_in(client: Client) -> Stream:
    stream = client.stream("demo", "go", **LONG)
    with contextlib.suppress(ZeroDivisionError):
        for event in stream:
            if isinstance(event, Delta):
                raise ZeroDivisionError
    return stream


def closed(client: Client) -> Stream:
    with client.stream("demo", "go", **LONG) as stream:
        while not isinstance(next(stream), Delta):
            pass
    return stream


def dropped(client: Client) -> None:
    stream = client.stream("demo", "go", **LONG)
    while not isinstance(next(stream), Delta):
        pass


@pytest.mark.parametrize("leave", [broken_off, returned_from, failed_in, closed, dropped])
async def test_a_request_ends_where_its_reader_leaves(stack: Stack, leave: Callable[[Client], Stream | None]) -> None:
    """Also while the variable lives on, which is why the stream is kept here."""
    with Client(address(stack)) as client:
        kept = await asyncio.to_thread(leave, client)
        await until(lambda: running(stack) == 0)

        async def idle() -> bool:
            """Ask the router, which hears of it with the replica's next heartbeat."""
            return (await asyncio.to_thread(client.cluster_status)).pools[0].running == 0

        await until(idle)
        del kept


async def test_a_reader_that_comes_back_after_a_break_is_told(stack: Stack) -> None:
    with Client(address(stack)) as client:
        stream = await asyncio.to_thread(broken_off, client)
        with pytest.raises(CancelledError, match="the stream was left before its end, as `break` does"):
            await asyncio.to_thread(list, stream)


async def test_a_stream_that_was_read_to_its_end_is_no_error_afterwards(stack: Stack) -> None:
    with Client(address(stack)) as client:
        stream = client.stream("demo", "go", max_tokens=3)
        assert await asyncio.to_thread(list, stream)
        assert [] == await asyncio.to_thread(list, stream)


def in_two_loops(client: Client) -> list[int]:
    stream = client.stream("demo", "go", max_tokens=20, ignore_eos=True, flush_interval=0)
    events = iter(stream)
    for event in events:
        if isinstance(event, Started):
            break
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


async def test_an_iterator_that_is_kept_goes_on_after_a_break(stack: Stack) -> None:
    with Client(address(stack)) as client:
        assert 20 == len(await asyncio.to_thread(in_two_loops, client))


# --- asyncio ----------------------------------------------------------------------------------------------------------


async def test_a_break_ends_a_request_of_asyncio(stack: Stack) -> None:
    async with AsyncClient(address(stack)) as client:
        stream = client.stream("demo", "go", **LONG)
        async for event in stream:
            if isinstance(event, Delta):
                break
        await until(lambda: running(stack) == 0)
        with pytest.raises(CancelledError, match="left before its end"):
            await anext(stream)


async def test_a_stream_of_asyncio_that_nobody_holds_any_more_ends(stack: Stack) -> None:
    """Whatever gRPC does with the call: since grpcio 1.83 it keeps itself alive."""

    async def begin() -> None:
        stream = client.stream("demo", "go", **LONG)
        while not isinstance(await anext(stream), Delta):
            pass

    async with AsyncClient(address(stack)) as client:
        await begin()
        gc.collect()
        await until(lambda: running(stack) == 0)


async def test_the_garbage_collector_may_run_on_another_thread(stack: Stack) -> None:
    """A call may be cancelled on its own loop only."""

    class Knot:
        """Garbage that only the collector finds."""

        def __init__(self, stream: object) -> None:
            self.me, self.stream = self, stream

    async def begin() -> None:
        knot = Knot(stream := client.stream("demo", "go", **LONG))
        while not isinstance(await anext(stream), Delta):
            pass
        assert knot

    async with AsyncClient(address(stack)) as client:
        gc.disable()
        try:
            await begin()
            assert 1 == running(stack)
            await asyncio.to_thread(gc.collect)
        finally:
            gc.enable()
        await until(lambda: running(stack) == 0)
