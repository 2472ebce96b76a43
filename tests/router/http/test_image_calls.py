"""Images over HTTP, from the SDKs of OpenAI and Anthropic to simulated engines."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from deployments.engines.sim import identity
from penstock import AsyncClient, Image, Message
from tests.router.http.responses.conftest import call, sdk
from tests.router.http.test_openai import base
from tests.support.pictures import BLUE, RED, huge, picture
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_BODY = 1 << 16
HTTP = {"http": {"port": 0, "max_body_bytes": MAX_BODY}}
QUESTION = "What is this?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(stack) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def claude(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=base(stack), api_key="none", max_retries=0) as found:
        yield found


def view(color: tuple[int, int, int] = RED) -> bytes:
    return picture(112, 84, color)


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{text_of(data)}"


def chat(*images: bytes) -> list[Any]:
    """Messages of a chat."""
    parts = [{"type": "image_url", "image_url": {"url": url(each), "detail": "low"}} for each in images]
    return [{"role": "user", "content": [{"type": "text", "text": QUESTION}, *parts]}]


def blocks(*images: bytes) -> list[Any]:
    """Messages of Anthropic's API."""
    shown = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text_of(each)}}
        for each in images
    ]
    return [{"role": "user", "content": [{"type": "text", "text": QUESTION}, *shown]}]


def items(*images: bytes) -> list[Any]:
    """Input of a response."""
    parts = [{"type": "input_image", "image_url": url(each), "detail": "auto"} for each in images]
    return [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}, *parts]}]


async def test_a_chat_depends_on_what_its_image_shows(client: openai.AsyncOpenAI, stack: Stack) -> None:
    async def answer(*images: bytes) -> str:
        found = await client.chat.completions.create(
            model="demo", messages=chat(*images), temperature=0, max_completion_tokens=16
        )
        return str(found.choices[0].message.content)

    red = await answer(view())
    assert red == await answer(view())
    assert 3 == len({red, await answer(view(BLUE)), await answer()})
    stream = await client.chat.completions.create(
        model="demo", messages=chat(view()), temperature=0, max_completion_tokens=16, stream=True
    )
    assert red == "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def test_every_api_and_the_client_send_the_same_image(
    client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, stack: Stack
) -> None:
    wanted: dict[str, Any] = {"model": "demo", "temperature": 0}
    said = await client.chat.completions.create(messages=chat(view()), max_completion_tokens=16, **wanted)
    message = await claude.messages.create(
        model="demo", messages=blocks(view()), max_tokens=16, extra_body={"temperature": 0}
    )
    response = await client.responses.create(input=items(view()), max_output_tokens=16, store=False, **wanted)
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as own:
        asked = [Message("user", [QUESTION, Image(view())])]
        completion = await own.generate("demo", asked, temperature=0, max_tokens=16)
        counted = await own.count_tokens("demo", asked)
    assert message.content[0].type == "text"
    texts = {said.choices[0].message.content, message.content[0].text, response.output_text, completion.text}
    assert 1 == len({str(text).strip() for text in texts})
    assert said.usage is not None
    assert response.usage is not None
    of_message = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    prompts = {said.usage.prompt_tokens, of_message, response.usage.input_tokens, counted.tokens}
    assert {completion.usage.prompt_tokens} == prompts


async def test_tokens_of_images_are_counted_everywhere(
    client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, stack: Stack
) -> None:
    said = await client.chat.completions.create(model="demo", messages=chat(view()), max_completion_tokens=1)
    assert said.usage is not None
    counted = await claude.messages.count_tokens(model="demo", messages=blocks(view()))
    response = await client.responses.input_tokens.count(model="demo", input=items(view()))
    status, found, _ = await call(stack, "POST", "/tokenize", json={"model": "demo", "messages": chat(view())})
    assert (200, said.usage.prompt_tokens) == (status, found["count"])
    assert {said.usage.prompt_tokens} == {counted.input_tokens, response.input_tokens}


async def test_a_conversation_goes_on_with_its_image(client: openai.AsyncOpenAI) -> None:
    async def second(shown: bytes) -> Any:
        first = await client.responses.create(model="demo", input=items(shown), temperature=0, max_output_tokens=4)
        more = await client.responses.create(
            model="demo", input="And now?", previous_response_id=first.id, temperature=0, max_output_tokens=16
        )
        return first, more

    (first, more), (_, other) = await second(view()), await second(view(BLUE))
    assert more.output_text != other.output_text
    assert more.usage.input_tokens > first.usage.input_tokens
    kept = await client.responses.input_items.list(more.id, order="asc")
    assert items(view())[0]["content"] == [part.model_dump(exclude_none=True) for part in kept.data[0].content]


@pytest.mark.parametrize("how", ["background", "stream"])
async def test_a_response_keeps_its_image_however_it_runs(client: openai.AsyncOpenAI, how: str) -> None:
    asked: dict[str, Any] = {"model": "demo", "input": items(view()), "temperature": 0, "max_output_tokens": 8}
    whole = await client.responses.create(**asked)
    if how == "stream":
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        response_id = events[-1].response.id
    else:
        response_id = (await client.responses.create(**asked, background=True)).id

    async def ended() -> bool:
        return (await client.responses.retrieve(response_id)).status not in ("queued", "in_progress")

    await until(ended)
    assert whole.output_text == (await client.responses.retrieve(response_id)).output_text
    kept = await client.responses.input_items.list(response_id)
    assert items(view())[0]["content"] == [part.model_dump(exclude_none=True) for part in kept.data[0].content]


async def test_the_oldest_turns_with_images_go_where_a_conversation_may_be_cut(client: openai.AsyncOpenAI) -> None:
    turns = [turn for color in (RED, BLUE) * 33 for turn in items(view(color))]
    with pytest.raises(openai.BadRequestError, match="must have at most 64 images, got 66"):
        await client.responses.create(model="demo", input=turns, max_output_tokens=4, store=False)
    cut = await client.responses.create(model="demo", input=turns, max_output_tokens=4, truncation="auto")
    kept = await client.responses.input_items.list(cut.id, limit=100)
    assert 0 < len(kept.data) <= 64


async def test_a_conversation_of_images_has_a_bound(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Every response keeps the whole conversation, so one that goes on and on would grow without end."""
    large = picture(112, 84, kind="PNG", compress_level=0)

    async def goes_on(previous: str | None) -> str:
        found = await client.responses.create(
            model="demo", input=items(large), max_output_tokens=1, previous_response_id=previous
        )
        return found.id

    first = await goes_on(None)
    with pytest.raises(openai.BadRequestError, match="the whole conversation must have at most 65,536 byte") as caught:
        await goes_on(first)
    assert "previous_response_id" == caught.value.param
    status, found, _ = await call(
        stack, "POST", "/v1/chat/completions", json={"model": "demo", "messages": chat(bytes(MAX_BODY))}
    )
    assert 413 == status
    assert f"a body has at most {MAX_BODY} bytes" in found["error"]["message"]


WRONG = [
    (b"GIF89 and no more", "no PNG, JPEG, WebP or GIF file"),
    (huge(60_000, 60_000), "pixels"),
]


@pytest.mark.parametrize(("data", "told"), WRONG)
async def test_a_file_that_is_no_image_is_refused_with_its_place(stack: Stack, data: bytes, told: str) -> None:
    for path, body, place in (
        ("/v1/chat/completions", {"messages": chat(view(), data)}, "messages[0].content[2]"),
        ("/v1/responses", {"input": items(view(), data)}, "input[0].content[2]"),
        ("/v1/messages", {"messages": blocks(view(), data), "max_tokens": 4}, "messages[0].content[2]"),
        ("/v1/messages/count_tokens", {"messages": blocks(view(), data)}, "messages[0].content[2]"),
        ("/tokenize", {"messages": chat(view(), data)}, "messages[0].content[2]"),
    ):
        status, found, _ = await call(stack, "POST", path, json={"model": "demo", **body})
        assert (400, "invalid_request_error") == (status, found["error"]["type"]), path
        assert found["error"]["message"].startswith(f"{place}: ")
        assert told in found["error"]["message"]
        assert found["error"].get("param", place) == place


async def test_a_batch_has_images(client: openai.AsyncOpenAI) -> None:
    bodies = [{"messages": chat(view(color)), "temperature": 0, "max_tokens": 16} for color in (RED, BLUE)]
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "demo", **body}}
        for number, body in enumerate(bodies)
    ]
    file = await client.files.create(file=("a.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

    async def ended() -> bool:
        return (await client.batches.retrieve(batch.id)).status in ("completed", "failed")

    await until(ended)
    found = await client.batches.retrieve(batch.id)
    assert "completed" == found.status, found
    assert found.output_file_id is not None
    results = [json.loads(line) for line in (await client.files.content(found.output_file_id)).text.splitlines()]
    texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in results}
    for number, body in enumerate(bodies):
        said = await client.chat.completions.create(model="demo", **body)  # type: ignore[call-overload]
        assert texts[f"{number}"] == said.choices[0].message.content


async def test_a_model_without_images_says_so(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MAX_IMAGES", 0)
    async with running_stack(tmp_path_factory.mktemp("blind"), router=HTTP) as blind:
        for path, body, place in (
            ("/v1/chat/completions", {"messages": chat(view())}, "messages[0].content[1]"),
            ("/v1/responses", {"input": items(view()), "truncation": "auto"}, "input[0].content[1]"),
            ("/v1/messages", {"messages": blocks(view()), "max_tokens": 4}, "messages[0].content[1]"),
        ):
            for more in ({}, {"stream": True}):
                status, found, _ = await call(blind, "POST", path, json={"model": "demo", **body, **more})
                assert 400 == status
                assert f"{place}: must be unset: this model takes no images" == found["error"]["message"]
