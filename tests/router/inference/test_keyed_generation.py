"""What becomes of a request whose client leaves while it is let in, or just after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from cluster.errors import QueueUnavailableError
from router.identity import Caller
from router.inference.keyed_generation import KeyedGeneration, OpenGenerations
from tests.support.stack import running_stack, stream_request
from tests.support.waiting import until


async def test_a_request_that_is_let_in_as_the_grace_ends_is_ended_as_any_other() -> None:
    """Nobody else knows it: it would wait or run on, and its receivers would stay."""

    async def nothing_more() -> AsyncIterator[Any]:
        for event in ():
            yield event

    async def admit() -> Any:
        await room.wait()
        return generation

    generation, room, closed = Mock(pool="demo", unhurried=nothing_more), asyncio.Event(), list[Any]()
    generations = OpenGenerations(Mock(), {"demo": Mock(keys=AsyncMock())}, Mock(), 0.0, closed.append)
    admitting = asyncio.ensure_future(admit())
    await asyncio.sleep(0)
    # In one turn of the loop the grace ends, and the request is let in.
    lingering = asyncio.ensure_future(generations._linger_from(admitting, "key"))
    room.set()
    await lingering

    assert [generation] == closed


async def test_a_call_that_ends_after_its_router_has_closed_hears_its_own_error() -> None:
    pool = Mock(keys=AsyncMock())
    generations = OpenGenerations(AsyncMock(), {"demo": pool}, Mock(), 0.0, Mock())
    keyed = KeyedGeneration(Mock(pool="demo"), "key", pool, generations)
    await generations.close()

    async def write() -> None:
        raise QueueUnavailableError("no answer")

    with pytest.raises(QueueUnavailableError):
        await keyed.deliver(write())


async def test_a_request_whose_client_leaves_before_the_first_metadata_ends(tmp_path: Path) -> None:
    """Only requests of aliases, and those whose budget is nearly used, have metadata of their own."""
    aliases = {"fast": {"targets": [{"model": "demo"}]}}
    async with running_stack(tmp_path, sections={"aliases": aliases}, sim={"base_ms": 1_000.0}) as stack:
        gone = Mock(direct=None, time_remaining=lambda: None)
        gone.send_initial_metadata = AsyncMock(side_effect=asyncio.CancelledError)
        asked = stream_request(model="fast", max_tokens=400, ignore_eos=True)
        await until(lambda: bool(stack.routers[0].pools["demo"].replicas.connected()))
        with pytest.raises(asyncio.CancelledError):
            await stack.routers[0]._inference.StreamGenerate(asked, gone, Caller("acme"))
        gone.send_initial_metadata.assert_awaited_once()
        pool = stack.routers[0].pools["demo"]

        # It would run for 400 s.
        await until(lambda: pool.active == 0)
