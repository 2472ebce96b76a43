"""Streams of messages that go on after their last event, hints for retries, and comments that are no events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
import pytest_asyncio

from cluster.errors import QueueFullError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.http import event_stream
from router.http.anthropic.events import MessageEvents
from router.http.anthropic.place import StreamPlace
from router.http.chunks import ChunkOptions, Chunks
from router.http.errors import http_error
from tests.router.http.test_openai import ASK, HTTP, base, post
from tests.router.http.test_tools import ANSWER
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/messages"
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
BODY: dict[str, Any] = {
    "model": "demo",
    "messages": ASK,
    "max_tokens": 400,
    "tools": [WEATHER],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stream": True,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, routers=2, router=HTTP, sim={"answer": ANSWER, "base_ms": 2.0}) as running:
        yield running


@dataclass
class Told:
    """One event on the wire."""

    name: str = ""
    data: Any = None
    event_id: str = ""


@dataclass
class Answer:
    """A stream as a client has it."""

    events: list[Told] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)


async def read(stack: Stack, headers: dict[str, str], *, router: int = 0, **more: Any) -> Answer:
    http = stack.routers[router].http
    assert http is not None
    found, event = Answer(), Told()
    url = f"http://127.0.0.1:{http.port}{PATH}"
    async with aiohttp.ClientSession() as session, session.post(url, json={**BODY, **more}, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        async for raw in reply.content:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            match name:
                case "event":
                    event.name = value
                case "id":
                    event.event_id = value
                case "data":
                    event.data = json.loads(value)
                case "retry":
                    found.retries.append(int(value))
                case "" if not value and event.data is not None:
                    found.events.append(event)
                    event = Told()
    return found


def message(events: list[Told]) -> list[Any]:
    """Return what a client makes of events: its blocks, and the end."""
    blocks: list[Any] = []
    for event in events:
        data = event.data
        match event.name:
            case "content_block_start":
                assert data["index"] == len(blocks)
                blocks.append([data["content_block"]["type"], data["content_block"].get("name"), "", False])
            case "content_block_delta":
                assert data["index"] == len(blocks) - 1
                delta = data["delta"]
                blocks[-1][2] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            case "content_block_stop":
                assert not blocks[-1][3]
                blocks[-1][3] = True
            case "message_delta":
                blocks.append(data["delta"]["stop_reason"])
    return blocks


async def test_a_stream_goes_on_after_each_of_its_events_at_any_router(stack: Stack) -> None:
    key = {"Idempotency-Key": "whole"}
    whole = (await read(stack, key)).events
    assert [block[0] for block in message(whole)[:-1]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [event.name for event in whole[-2:]] == ["message_delta", "message_stop"]
    places = [number for number, event in enumerate(whole) if event.event_id]
    assert len(places) > 8
    for turn, number in enumerate(places):
        rest = (await read(stack, {**key, "Last-Event-ID": whole[number].event_id}, router=turn % 2)).events
        assert message([*whole[: number + 1], *rest]) == message(whole)
        assert "message_start" not in [event.name for event in rest]


async def test_a_stream_that_is_left_in_its_middle_goes_on(stack: Stack) -> None:
    key = {"Idempotency-Key": "left"}
    http = stack.routers[0].http
    assert http is not None
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{http.port}{PATH}", json=BODY, headers=key) as reply,
    ):
        async for raw in reply.content:
            if raw.startswith(b"id: ") and int(raw[4:].split(b"-")[0]) > 5:
                last = raw[4:].decode().strip()
                break
    rest = (await read(stack, {**key, "Last-Event-ID": last}, router=1)).events
    assert [event.data["delta"]["stop_reason"] for event in rest if event.name == "message_delta"] == ["tool_use"]
    assert int(next(event.event_id for event in rest if event.event_id).split("-")[0]) > 5


async def test_events_have_ids_and_a_hint_only_where_a_client_can_come_back(stack: Stack) -> None:
    plain, keyed = await read(stack, {}), await read(stack, {"Idempotency-Key": "hint"})
    assert (plain.retries, {event.event_id for event in plain.events}) == ([], {""})
    assert keyed.retries == [1000]


@pytest.mark.parametrize(
    ("headers", "stream"),
    [
        ({"Last-Event-ID": "3-0t"}, True),
        ({"Last-Event-ID": "3-0t", "Idempotency-Key": "k"}, False),
        ({"Last-Event-ID": "3", "Idempotency-Key": "k"}, True),
        ({"Last-Event-ID": "3-0x", "Idempotency-Key": "k"}, True),
    ],
)
async def test_an_event_that_cannot_be_is_refused(stack: Stack, headers: dict[str, str], stream: bool) -> None:
    status, found, _ = await post(stack, PATH, json={**BODY, "stream": stream}, headers=headers)
    assert status == 400
    assert "Last-Event-ID" in found["error"]["message"]


async def test_a_stream_that_nobody_knows_is_not_found(stack: Stack) -> None:
    headers = {"Last-Event-ID": "3-0t", "Idempotency-Key": "nobody-used-it"}
    status, found, _ = await post(stack, PATH, json={**BODY, "stream": True}, headers=headers)
    assert (404, "not_found_error") == (status, found["error"]["type"])
    assert "its output is gone" in found["error"]["message"]


async def test_anthropics_sdk_reads_a_stream_with_ids(stack: Stack) -> None:
    async with anthropic.AsyncAnthropic(base_url=base(stack), api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {name: value for name, value in BODY.items() if name != "stream"}
        async with client.messages.stream(**asked, extra_headers={"Idempotency-Key": "sdk"}) as stream:
            final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]


async def test_openais_sdk_reads_a_silent_stream_with_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes an empty line after an id for an event, and an event without data for broken JSON."""
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.05)
    async with (
        running_stack(tmp_path, router=HTTP, sim={"base_ms": 150.0}) as slow,
        openai.AsyncOpenAI(base_url=f"{base(slow)}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="demo", messages=ASK, max_tokens=4, stream=True, extra_headers={"Idempotency-Key": "silent"}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_an_error_in_the_middle_of_a_stream_says_when_to_try_again() -> None:
    error = http_error(QueueFullError("demo", 5, 2.5))
    assert error.retry_after_s == 2.5
    chat = Chunks({}, ChunkOptions()).failed(error).decode()
    assert chat.startswith("retry: 2500\ndata: ")
    assert json.loads(chat.partition("data: ")[2])["error"]["retry_after"] == 2.5
    lines = MessageEvents("demo").failed(error).decode()
    assert lines.startswith("retry: 2500\nevent: error\n")
    assert json.loads(lines.partition("data: ")[2])["error"]["retry_after"] == 2.5


@pytest.mark.parametrize(
    "place", [StreamPlace(0), StreamPlace(7, 0, "text"), StreamPlace(9, 12), StreamPlace(1, 1, "tool_use")]
)
async def test_the_id_of_an_event_is_its_place(place: StreamPlace) -> None:
    assert StreamPlace.of(place.event_id()) == place


MERGED = (
    api.Delta(offset=0, token_ids=range(3), reasoning="Hm."),
    api.Delta(
        offset=3,
        token_ids=range(20),
        text="One moment.",
        tool_calls=[
            types.ToolCallDelta(index=0, id="call_a", name="weather", arguments='{"city": '),
            types.ToolCallDelta(index=0, arguments='"Paris"}'),
            types.ToolCallDelta(index=1, id="call_b", name="weather", arguments='{"city": "Oslo"}'),
        ],
    ),
    api.Delta(
        offset=23,
        token_ids=range(9),
        tool_calls=[types.ToolCallDelta(index=2, id="call_c", name="weather", arguments="{}")],
    ),
)
"""Deltas of a busy router: with several calls, and whole ones, in one."""


def told(events: MessageEvents, from_token: int = 0) -> list[Told]:
    """Return what is written for the deltas behind a number of tokens."""
    deltas = [delta for delta in MERGED if delta.offset >= from_token]
    text = b"".join(events.of(api.StreamGenerateResponse(delta=delta)) for delta in deltas).decode()
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append(Told(fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return found


async def test_a_client_may_come_back_behind_any_event_of_merged_deltas() -> None:
    whole = told(MessageEvents("demo", event_ids=True))
    assert ["thinking", "text", *["tool_use"] * 3] == [block[0] for block in message(whole)]
    places = [(number, place) for number, event in enumerate(whole) if (place := StreamPlace.of(event.event_id))]
    assert len(places) > len(MERGED)
    for number, place in places:
        rest = told(MessageEvents("demo", event_ids=True, after=place), place.tokens)
        assert message([*whole[: number + 1], *rest]) == message(whole)
