"""An error about a number names the limit that holds, so that the caller does not meet another one next."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.router.http.test_openai import ASK, HTTP, post
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": ASK},
    "completions": {"prompt": "Once"},
    "responses": {"input": "Once"},
    "messages": {"messages": ASK, "max_tokens": 4},
}
COUNTS = (
    ("chat/completions", "max_tokens", 1),
    ("chat/completions", "max_completion_tokens", 1),
    ("chat/completions", "n", 1),
    ("chat/completions", "min_tokens", 0),
    ("chat/completions", "top_logprobs", 0),
    ("chat/completions", "prompt_logprobs", 0),
    ("completions", "max_tokens", 1),
    ("completions", "n", 1),
    ("completions", "logprobs", 0),
    ("completions", "prompt_logprobs", 0),
    ("responses", "max_output_tokens", 1),
    ("responses", "top_logprobs", 0),
    ("messages", "max_tokens", 1),
    ("messages", "top_k", 0),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP) as running:
        yield running


async def told(stack: Stack, path: str, name: str, value: int) -> tuple[int, str | None, str]:
    """Return status, field and text of the answer to a body with this number."""
    body = {"model": "demo", **BODIES[path], name: value}
    if name == "top_logprobs" and path == "chat/completions":
        body["logprobs"] = True
    status, found, _ = await post(stack, f"/v1/{path}", json=body)
    error = found.get("error") or {}
    return status, error.get("param"), error.get("message", "")


@pytest.mark.parametrize(("path", "name", "least"), COUNTS)
async def test_the_limit_below_which_a_number_is_refused_is_itself_taken(
    stack: Stack, path: str, name: str, least: int
) -> None:
    for value in (-1, -(10**30)):
        status, param, message = await told(stack, path, name, value)
        assert (400, f"{name}: must be at least {least}, got {value}") == (status, message)
        assert param in (name, None)
    assert 200 == (await told(stack, path, name, least))[0]


@pytest.mark.parametrize(
    ("path", "name", "most"),
    [
        ("chat/completions", "n", 16),
        ("completions", "n", 16),
        ("chat/completions", "top_logprobs", 20),
        ("chat/completions", "prompt_logprobs", 20),
        ("completions", "logprobs", 20),
    ],
)
async def test_the_limit_above_which_a_number_is_refused_is_that_of_the_service(
    stack: Stack, path: str, name: str, most: int
) -> None:
    for value in (most + 1, 10**12):
        status, _, message = await told(stack, path, name, value)
        assert 400 == status
        assert re.fullmatch(rf"{name}: must be (at least \d and )?at most {most}, got {value}", message)


async def test_a_number_that_the_service_refuses_has_the_name_that_the_caller_gave_it(stack: Stack) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        status, param, message = await told(stack, "chat/completions", name, 10**9)
        assert (400, name) == (status, param)
        assert message.startswith(name)
