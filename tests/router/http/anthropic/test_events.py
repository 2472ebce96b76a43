"""Streams of messages, read by Anthropic's own SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anthropic
import pytest
from aiohttp import web

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.http.anthropic.events import MessageEvents, message_object

Event = api.StreamGenerateResponse


@asynccontextmanager
async def replaying(events: Sequence[Event]) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Serve a stream of these events, and yield a client of the server."""

    async def answer(request: web.Request) -> web.StreamResponse:
        encoder = MessageEvents("demo")
        encoder.opened("r1")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(encoder.of(event))
        return response

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            yield client
    finally:
        await runner.cleanup()


def blocks(content: Sequence[object]) -> list[tuple[str, str]]:
    """Return types of blocks, each with its text or the name of its tool."""
    shown = ("text", "thinking", "name")
    return [(block.type, next(getattr(block, at) for at in shown if hasattr(block, at))) for block in content]  # type: ignore[attr-defined]


async def whole(events: Sequence[Event]) -> anthropic.types.Message:
    """Return the message that the SDK puts together from a stream."""
    async with (
        replaying(events) as client,
        client.messages.stream(model="demo", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]) as stream,
    ):
        return await stream.get_final_message()


def finished(reason: types.FinishReason.ValueType, match: str = "") -> Event:
    """Make the last event."""
    end = api.ChoiceEnd(index=0, finish_reason=reason, stop_match=match, output_tokens=5)
    usage = types.Usage(prompt_tokens=7, output_tokens=5, cached_tokens=4)
    return Event(finished=api.Finished(choices=[end], usage=usage, request_id="r1"))


def delta(**fields: object) -> Event:
    """Make a delta."""
    return Event(delta=api.Delta(**fields))  # type: ignore[arg-type]


def call(index: int, arguments: str, *, new: bool = False) -> types.ToolCallDelta:
    """Make a piece of a call."""
    named = {"id": f"call_{index}", "name": f"tool{index}"} if new else {}
    return types.ToolCallDelta(index=index, arguments=arguments, **named)


QUEUED = Event(queued=api.Queued(request_id="r1", position=3))
STARTED = Event(started=api.Started(request_id="r1", prompt_tokens=7))
STOP, TOOLS = types.FINISH_REASON_STOP, types.FINISH_REASON_TOOL_CALLS


async def test_text_comes_in_one_block_and_the_usage_at_its_end() -> None:
    message = await whole([QUEUED, STARTED, delta(text='He said "'), delta(text='é"\n'), finished(STOP)])
    assert [("text", 'He said "é"\n')] == [(block.type, getattr(block, "text", "")) for block in message.content]
    assert ("msg_r1", "demo", "end_turn", None) == (
        message.id,
        message.model,
        message.stop_reason,
        message.stop_sequence,
    )
    assert (3, 4, 5) == (
        message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens,
    )  # fmt: skip


async def test_reasoning_text_and_two_calls_are_blocks_in_order() -> None:
    message = await whole(
        [
            STARTED,
            delta(reasoning="Let me "),
            delta(reasoning="look."),
            delta(text="One moment."),
            delta(tool_calls=[call(0, "", new=True)]),
            delta(tool_calls=[call(0, '{"city": ')]),
            delta(tool_calls=[call(0, '"Paris"}'), call(1, "{}", new=True)]),
            finished(TOOLS),
        ]
    )
    thinking, text, first, second = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Let me look.")  # type: ignore[union-attr]
    assert (text.type, text.text) == ("text", "One moment.")  # type: ignore[union-attr]
    assert (first.id, first.name, first.input) == ("toolu_0", "tool0", {"city": "Paris"})  # type: ignore[union-attr]
    assert (second.id, second.name, second.input) == ("toolu_1", "tool1", {})  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"


async def test_one_delta_may_have_reasoning_and_text() -> None:
    message = await whole([STARTED, delta(reasoning="Hm", text="Yes"), finished(STOP, "###")])
    assert ["thinking", "text"] == [block.type for block in message.content]
    assert ("stop_sequence", "###") == (message.stop_reason, message.stop_sequence)


async def test_white_space_around_reasoning_and_calls_is_in_no_block() -> None:
    message = await whole(
        [
            STARTED,
            delta(reasoning="\n"),
            delta(reasoning="Hm\n"),
            delta(text="\n"),
            delta(text="\nLet me"),
            delta(text=" look."),
            delta(text="\n", tool_calls=[call(0, "{}", new=True)]),
            delta(text="\n"),
            delta(tool_calls=[call(1, "{}", new=True)]),
            delta(text="\n"),
            finished(TOOLS),
        ]
    )
    expected = [("thinking", "Hm\n"), ("text", "Let me look.\n"), ("tool_use", "tool0"), ("tool_use", "tool1")]
    assert expected == blocks(message.content)


async def test_an_answer_of_calls_alone_has_no_other_block() -> None:
    message = await whole([STARTED, delta(text="\n\n"), delta(tool_calls=[call(0, "{}", new=True)]), finished(TOOLS)])
    assert [("tool_use", "tool0")] == blocks(message.content)
    choice = api.Choice(text="\n\n", reasoning="\n", tool_calls=[types.ToolCall(id="a", name="tool0", arguments="{}")])
    found = message_object(api.GenerateResponse(choices=[choice]), "demo")
    assert [("tool_use", "tool0")] == blocks(anthropic.types.Message.model_validate(found).content)


def test_a_whole_text_begins_with_no_white_space_but_that_of_its_script() -> None:
    choice = api.Choice(text="\n\n\u3000Yes.\n", reasoning="\nHm\n")
    found = message_object(api.GenerateResponse(choices=[choice]), "demo")["content"]
    assert ["Hm\n", "\u3000Yes.\n"] == [found[0]["thinking"], found[1]["text"]]


def test_an_answer_that_goes_on_with_a_text_keeps_the_space_before_its_first_word() -> None:
    reply = api.GenerateResponse(choices=[api.Choice(text=" is")])
    assert message_object(reply, "demo", continues=True)["content"] == [{"type": "text", "text": " is"}]
    events = MessageEvents("demo", continues=True)
    assert b'"text":" is"' in b"".join(map(events.of, [STARTED, delta(text=" is")]))


async def test_what_ends_a_call_belongs_to_it_though_text_comes_with_it() -> None:
    """On a busy router, one delta has the end of a call, what follows it, and the next call."""
    merged = delta(text="And\n", tool_calls=[call(0, "1}"), call(1, "{}", new=True)])
    message = await whole([STARTED, delta(tool_calls=[call(0, '{"x": ', new=True)]), merged, finished(TOOLS)])
    assert [("tool_use", "tool0"), ("text", "And\n"), ("tool_use", "tool1")] == blocks(message.content)
    assert {"x": 1} == message.content[0].input  # type: ignore[union-attr]


@pytest.mark.parametrize("events", [[finished(STOP)], [STARTED, finished(STOP)], [QUEUED, finished(STOP)]])
async def test_a_stream_without_output_is_a_message_too(events: Sequence[Event]) -> None:
    message = await whole(events)
    assert ([], "end_turn", 5) == (message.content, message.stop_reason, message.usage.output_tokens)


def test_a_whole_message_has_the_same_blocks() -> None:
    choice = api.Choice(
        text="Sure.",
        reasoning="Hm",
        tool_calls=[
            types.ToolCall(id="a", name="look", arguments='{"x": 1}'),
            types.ToolCall(id="b", name="cut", arguments='{"x": '),
        ],
        finish_reason=types.FINISH_REASON_LENGTH,
    )
    usage = types.Usage(prompt_tokens=3, output_tokens=2)
    found = message_object(api.GenerateResponse(request_id="r1", choices=[choice], usage=usage), "demo")
    message = anthropic.types.Message.model_validate(found)
    assert ["thinking", "text", "tool_use", "tool_use"] == [block.type for block in message.content]
    assert [{"x": 1}, {"_invalid_json": '{"x": '}] == [block["input"] for block in found["content"][2:]]
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a":' * 9_000, "[1]"])
def test_arguments_that_no_json_object_can_have_are_the_models_text(text: str) -> None:
    """The whole answer would be no JSON, or none could be written."""
    choice = api.Choice(tool_calls=[types.ToolCall(id="a", name="look", arguments=text)])
    (block,) = message_object(api.GenerateResponse(choices=[choice]), "demo")["content"]
    assert {"_invalid_json": text} == block["input"]
