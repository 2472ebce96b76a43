"""What a stream keeps of its request: nothing that only its beginning needed, which is as long as the prompt."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.http.anthropic.bodies import AskedMessage
from router.http.bodies import Asked
from router.http.completions.bodies import AskedTexts
from router.http.context import HttpContext
from router.http.event_stream import SILENCES, EventStream
from router.inference.admitted import Admitted
from tests.router.http.test_openai import ASK, HTTP, base
from tests.support.stack import running_stack

LIMITS = {"max_tokens": 500, "stream": True}
CHAT = {"model": "demo", "messages": ASK, **LIMITS}
APIS = {
    "/v1/chat/completions": {**CHAT, "ignore_eos": True},
    "/v1/completions": {"model": "demo", "prompt": "Once upon a time", "ignore_eos": True, **LIMITS},
    "/v1/messages": CHAT,
}


def alive(*kinds: type) -> list[Any]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


def news(before: list[Any], *kinds: type) -> list[Any]:
    """Return what is alive now and was not before. Failed calls of other tests may keep theirs for a while."""
    known = set(map(id, before))
    return [each for each in alive(*kinds) if id(each) not in known]


@pytest.mark.parametrize("path", APIS)
async def test_a_stream_keeps_neither_its_body_nor_token_ids(tmp_path: Path, path: str) -> None:
    before = alive(Asked, AskedTexts, AskedMessage, Admitted)
    async with (
        running_stack(tmp_path, router=HTTP, sim={"base_ms": 50.0}) as stack,
        aiohttp.ClientSession() as session,
        session.post(f"{base(stack)}{path}", json=APIS[path]) as answer,
    ):
        assert 200 == answer.status
        await answer.content.readuntil(b"\n\n")
        assert [] == news(before, Asked, AskedTexts, AskedMessage)
        # It can still be encoded for a replica with another tokenizer.
        [admitted] = news(before, Admitted)
        assert ((), "demo") == (admitted.ids, admitted.checked.model)
        choices = stack.routers[0].pools["demo"].choices
        assert all(choice.again is not None for choice in choices.values())


async def test_a_streams_own_objects_have_no_dictionaries_and_no_timers(tmp_path: Path) -> None:
    kinds = EventStream, HttpContext
    before = alive(*kinds)
    async with (
        running_stack(tmp_path, router=HTTP, sim={"base_ms": 50.0}) as stack,
        aiohttp.ClientSession() as session,
        session.post(f"{base(stack)}/v1/chat/completions", json=APIS["/v1/chat/completions"]) as answer,
    ):
        await answer.content.readuntil(b"\n\n")
        found = news(before, *kinds)
        assert set(kinds) == set(map(type, found))
        assert [] == [each for each in found if hasattr(each, "__dict__")]
        http = stack.routers[0].http
        assert http is not None
        assert 1 == len(http.app[SILENCES])
        assert [] == [each for one in found for each in gc.get_referents(one) if isinstance(each, asyncio.TimerHandle)]
