"""How often a request's key is looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.http import calls
from router.identity import Authenticator, Caller
from tests.router.http.test_openai import ASK, HTTP, post
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = {"messages": ASK, "max_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {"messages": ASK},
    "/v1/responses": {"input": "a", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "a"},
    "/tokenize": {"prompt": "a"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stack, Keys]]:
    folder = tmp_path_factory.mktemp("stack")
    keys = Keys(folder / "keys.toml")
    sections = {"auth": {"keys_file": str(keys.path)}}
    async with running_stack(folder, router=HTTP, sections=sections) as stack:
        yield stack, keys


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tenants of all callers that are looked up from now on."""
    found: list[str] = []
    look = Authenticator.__call__

    def noted(authenticator: Authenticator, context: Any) -> Caller:
        caller = look(authenticator, context)
        found.append(caller.tenant)
        return caller

    monkeypatch.setattr(Authenticator, "__call__", noted)
    return found


async def ask(stack: Stack, path: str, key: str, **more: Any) -> int:
    body = {"model": "demo", **BODIES[path], **more}
    return (await post(stack, path, json=body, headers={"authorization": f"Bearer {key}"}))[0]


@pytest.mark.parametrize("path", BODIES)
async def test_the_key_of_a_request_is_looked_at_once(
    keyed: tuple[Stack, Keys], looks: list[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(calls, "LOOK_S", 60.0)
    stack, keys = keyed
    for key in (keys.acme, keys.other):
        assert 200 == await ask(stack, path, key)
    assert ["acme", "other"] == looks


async def test_a_request_whose_body_comes_late_is_looked_at_anew(
    keyed: tuple[Stack, Keys], looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LOOK_S", 0.0)
    stack, keys = keyed
    assert 200 == await ask(stack, "/v1/chat/completions", keys.acme)
    assert ["acme", "acme"] == looks
