"""The OpenAPI document against the routes, the answers and the page."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import jsonschema
import pytest
import pytest_asyncio

from router.http.openapi.document import document
from tests.router.http.test_openai import ASK, HTTP, base, post
from tests.support.pictures import picture
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOUND = document("1.2.3")
URL = f"data:image/png;base64,{base64.b64encode(picture(28, 28)).decode()}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP) as running:
        yield running


def check(value: Any, name: str) -> None:
    """Check an answer against a schema of the document."""
    jsonschema.Draft202012Validator(
        {**FOUND["components"]["schemas"][name], "components": FOUND["components"]}
    ).validate(value)


async def test_every_route_is_in_the_document_and_nothing_else(stack: Stack) -> None:
    http = stack.routers[0].http
    assert http is not None
    served = {
        (re.sub(r"{(\w+)(:[^}]*)?}", r"{\1}", route.resource.canonical), route.method.lower())
        for route in http.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    described = {(path, method) for path, methods in FOUND["paths"].items() for method in methods}
    assert served == described


async def test_answers_and_errors_are_as_described(stack: Stack) -> None:
    chat: dict[str, Any] = {"model": "demo", "messages": ASK, "max_tokens": 2}
    text: dict[str, Any] = {"model": "demo", "prompt": "Hi", "max_tokens": 2}
    check(chat, "ChatRequest")
    check(text, "CompletionRequest")
    check((await post(stack, "/v1/chat/completions", json=chat))[1], "Chat")
    check((await post(stack, "/v1/completions", json=text))[1], "Completion")
    check((await post(stack, "/v1/completions", json={**text, "n": 99}))[1], "Error")
    check((await post(stack, "/v1/messages", json={}))[1], "MessagesError")
    async with aiohttp.ClientSession() as session, session.get(f"{base(stack)}/v1/models") as reply:
        check(await reply.json(), "Models")


@pytest.mark.parametrize("image", [{"url": URL, "detail": "low"}, {"url": URL}, URL])
async def test_images_are_described(stack: Stack, image: Any) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": image}]
    body = {"model": "demo", "messages": [{"role": "user", "content": parts}], "max_tokens": 2}
    check(body, "ChatRequest")
    status, found, _ = await post(stack, "/v1/chat/completions", json=body)
    assert 200 == status, found
    check(found, "Chat")


@pytest.mark.parametrize("tier", ["auto", "default", "standard", "scale", "priority", "fast", "ultrafast", "flex"])
async def test_a_tier_that_is_served_is_described(stack: Stack, tier: str) -> None:
    chat: dict[str, Any] = {"model": "demo", "messages": ASK, "max_tokens": 2, "service_tier": tier}
    check(chat, "ChatRequest")
    assert 200 == (await post(stack, "/v1/chat/completions", json=chat))[0]


async def test_every_reference_leads_to_a_schema() -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", str(FOUND)))
    assert names <= set(FOUND["components"]["schemas"])
    for schema in FOUND["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_the_page_loads_nothing_from_elsewhere(stack: Stack) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base(stack)}/docs") as reply:
            page = await reply.text()
            assert (200, "text/html") == (reply.status, reply.content_type)
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        async with session.get(f"{base(stack)}/openapi.json") as reply:
            assert (await reply.json())["openapi"] == "3.1.0"
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)
