"""Ends of streams whose responses are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from cluster.errors import QueueUnavailableError
from cluster.responses.contract import ResponseClaim, ResponseStore
from cluster.responses.redis.keys import response_keys
from tests.router.http.responses.conftest import HTTP, sdk
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"model": "demo", "input": "What is Penstock?", "extra_body": {"ignore_eos": True}}


def store_of(stack: Stack) -> ResponseStore:
    http = stack.routers[0].http
    assert http is not None
    return http._runs.store


@pytest.mark.parametrize("stream", [True, False])
async def test_a_result_that_redis_did_not_take_at_once_is_stored_later(
    stack: Stack, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    store = store_of(stack)
    finish, away = store.finish, True

    async def unless_away(claim: ResponseClaim, result: bytes, *, run: str = "") -> bool:
        if away:
            raise QueueUnavailableError("away")
        return await finish(claim, result, run=run)

    monkeypatch.setattr(store, "finish", unless_away)
    told: Any = await client.responses.create(**ASK, max_output_tokens=9, stream=stream)
    if stream:
        told = [each async for each in told][-1].response
    assert (told.status, told.store) == ("incomplete", False)
    away = False

    async def kept() -> bool:
        try:
            found = await client.responses.retrieve(told.id)
        except openai.NotFoundError:
            return False
        return (found.status, found.output_text) == ("incomplete", told.output_text)

    await until(kept)


async def test_a_response_that_redis_lost_while_it_was_streamed_does_not_say_that_it_is_stored(
    stack: Stack, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(stack)
    finish = store.finish

    async def lost(claim: ResponseClaim, result: bytes, *, run: str = "") -> bool:
        assert stack.store.execute("DEL", response_keys(claim.name)[0]) == 1
        return await finish(claim, result, run=run)

    monkeypatch.setattr(store, "finish", lost)
    told: Any = [each async for each in await client.responses.create(**ASK, max_output_tokens=9, stream=True)][-1]
    assert (told.type, told.response.store) == ("response.incomplete", False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(told.response.id)


async def test_a_stream_that_another_call_cancels_tells_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of it is left to the stream, also on a slow machine.
    monkeypatch.setattr("router.http.responses.routes._CANCEL_S", 120.0)
    # Slow, so that it is in its middle when it is cancelled.
    async with (
        running_stack(tmp_path, routers=2, router=HTTP, sim={"base_ms": 50.0}) as running,
        sdk(running) as client,
        sdk(running, 1) as other,
    ):
        stream = await client.responses.create(**ASK, max_output_tokens=1_000, stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                break
        cancelled = await other.responses.cancel(events[0].response.id)
        assert cancelled.status == "cancelled"
        events += [event async for event in stream]
        assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")
        assert events[-1].response.output_text == cancelled.output_text
