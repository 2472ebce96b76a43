"""Schemas at best effort over HTTP: each API names what was not enforced, in whole answers and in streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.router.http.test_openai import ASK, HTTP, lines, post
from tests.support.picky_engine import WORDS, PickyEngine
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "string", "not": {"const": "a"}}
TOLD = [{"place": "#/not", "keyword": "not", "reason": WORDS}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 3, "response_format": FORMAT},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 3, "structured_outputs": {"json": SCHEMA}},
    "/v1/messages": {
        "messages": ASK,
        "max_tokens": 3,
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "input": "Hi",
        "max_output_tokens": 16,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    },
}
FIELD = "structured_output_best_effort"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, engine=PickyEngine) as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_names_what_was_not_enforced(stack: Stack, path: str) -> None:
    asked = {"model": "demo", **BODIES[path]}
    status, found, _ = await post(stack, path, json=asked)
    assert status == 400
    assert WORDS in json.dumps(found).replace('\\"', '"')
    status, found, headers = await post(stack, path, json={**asked, FIELD: True})
    assert (status, found["unenforced"]) == (200, TOLD)
    assert "x-penstock-ignored" not in headers


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_names_at_its_end_what_was_not_enforced(stack: Stack, path: str) -> None:
    asked = {"model": "demo", **BODIES[path], FIELD: True, "stream": True}
    told = [
        json.loads(line)
        for event in await lines(stack, asked, path)
        for line in [event.partition("data: ")[2]]
        if "unenforced" in line
    ]
    assert len(told) == 1
    assert told[0].get("response", told[0])["unenforced"] == TOLD


@pytest.mark.parametrize("path", BODIES)
async def test_where_all_is_enforced_nothing_is_named(stack: Stack, path: str) -> None:
    body = json.loads(json.dumps(BODIES[path]).replace('"not"', '"$comment"'))
    status, found, _ = await post(stack, path, json={"model": "demo", **body, FIELD: True})
    assert status == 200
    assert "unenforced" not in found


async def test_a_response_that_is_kept_still_names_it(stack: Stack) -> None:
    path = "/v1/responses"
    _, made, _ = await post(stack, path, json={"model": "demo", **BODIES[path], FIELD: True, "background": True})
    found: dict[str, Any] = {}

    async def ended() -> bool:
        status, answer, _ = await get(stack, f"{path}/{made['id']}")
        assert status == 200
        found.update(answer)
        return found["status"] not in ("queued", "in_progress")

    await until(ended)
    assert found["unenforced"] == TOLD


async def get(stack: Stack, path: str) -> tuple[int, Any, Any]:
    import aiohttp

    from tests.router.http.test_openai import base

    async with aiohttp.ClientSession() as session, session.get(base(stack) + path) as reply:
        return reply.status, json.loads(await reply.read()), reply.headers


@pytest.mark.parametrize(
    ("path", "place"),
    [("/v1/chat/completions", ("response_format", "json_schema")), ("/v1/responses", ("text", "format"))],
)
async def test_a_schema_that_need_not_be_followed_is_at_best_effort(
    stack: Stack, path: str, place: tuple[str, str]
) -> None:
    for strict, expected in ((False, 200), (None, 400), (True, 400)):
        body = json.loads(json.dumps({"model": "demo", **BODIES[path]}))
        body[place[0]][place[1]]["strict"] = strict
        status, found, _ = await post(stack, path, json=body)
        assert (expected, TOLD if expected == 200 else None) == (status, found.get("unenforced"))
