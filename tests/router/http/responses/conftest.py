"""Routers with the Responses API, and OpenAI's SDK as their client."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from deployments import demo_model
from tests.support.stack import Stack, running_stack, sim_pool

REASONING = "The user asks for the weather, so I look."
TEXT = "Let me look."
CITIES = ("Ulm", "Bonn")
CALLS = [f'<tool_call>\n{{"name": "look", "arguments": {{"city": "{city}"}}}}\n</tool_call>' for city in CITIES]
ANSWER = "\n".join([f"<think>{REASONING}</think>\n\n{TEXT}", *CALLS])
TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.reasoning_content or "" }}{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""
"""Template that shows all of a conversation."""
WEIGHTS = Path(demo_model.__file__).parent / "weights"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "name": "look", "description": "Looks.", "parameters": PARAMETERS, "strict": False}
HTTP = {"http": {"port": 0, "max_body_bytes": 1 << 16}}


def base(stack: Stack, router: int = 0) -> str:
    """Return the address of a router's HTTP API."""
    http = stack.routers[router].http
    assert http is not None
    return f"http://127.0.0.1:{http.port}"


def sdk(stack: Stack, router: int = 0, key: str = "none") -> openai.AsyncOpenAI:
    """Return OpenAI's client of a router."""
    return openai.AsyncOpenAI(base_url=f"{base(stack, router)}/v1", api_key=key, max_retries=0)


async def call(stack: Stack, method: str, path: str, router: int = 0, **more: Any) -> tuple[int, Any, Any]:
    """Return status, object and headers of a plain request."""
    async with aiohttp.ClientSession() as session, session.request(method, base(stack, router) + path, **more) as reply:
        return reply.status, json.loads(await reply.read() or b"null"), reply.headers


def pool_with_tools(folder: Path, **settings: Any) -> dict[str, Any]:
    """Describe a pool whose model reasons and calls tools."""
    model = folder / "model"
    shutil.copytree(WEIGHTS, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return {**sim_pool(answer=ANSWER, max_model_len=1_024, **settings), "model": str(model)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One router."""
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"max_model_len": 512}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of the router."""
    async with sdk(stack) as found:
        yield found


def results_of(response: Any) -> list[Any]:
    """Answer each call of a response."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": item.call_id, "output": "Rain."} for item in calls]


def written_again(question: str, response: Any, results: list[Any]) -> list[Any]:
    """Return the conversation as a client writes it that stores nothing at the server."""
    return [{"role": "user", "content": question}, *(item.to_dict() for item in response.output), *results]
