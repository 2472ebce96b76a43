"""The server that is tested, and plain requests to it. Needs nothing of Penstock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

MARKS = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow]
"""Marks of every module."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK: list[Any] = [{"role": "user", "content": "What is a penstock?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}}
]
ANSWER = (
    "<think>They ask about rain.</think>One moment."
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
"""What the simulated model with tools says."""


@dataclass(frozen=True)
class Reply:
    """An answer on the wire."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The object in the body."""
        return json.loads(self.body)

    @property
    def data(self) -> list[str]:
        """The data of each event of a stream. Comments are left out."""
        lines = self.body.decode().split("\n")
        return [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]

    @property
    def chunks(self) -> list[Any]:
        """The objects of a stream of OpenAI's form that ended well."""
        assert self.data[-1] == "[DONE]", self.body[-300:]
        return [json.loads(each) for each in self.data[:-1]]


@dataclass(frozen=True)
class Target:
    """A server and its models."""

    base: str
    model: str
    tool_model: str
    """Model that calls tools, and reasons."""
    embedding_model: str
    """Empty where the server has none."""
    classifier_model: str
    """As above."""
    image_model: str
    """As above."""
    key: str
    """API key; empty where none is needed."""
    origin: str
    """Origin of a page that may call the server; empty where none may."""
    complete: bool
    """Whether a missing endpoint is a failure. Otherwise its tests are skipped."""
    simulated: bool = False
    """Whether no grammar can shape an answer. It must be refused then, never forgotten."""

    async def call(self, method: str, path: str, *, key: bool = True, **more: Any) -> Reply:
        """Make a request. Without `key` nobody is named as its caller."""
        headers = {"authorization": f"Bearer {self.key}"} if key and self.key else {}
        headers.update(more.pop("headers", {}))
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.base + path, headers=headers, **more) as reply,
        ):
            return Reply(reply.status, reply.headers, await reply.read())

    async def post(self, path: str, body: Any, **more: Any) -> Reply:
        """Send an object."""
        return await self.call("POST", path, json=body, **more)

    async def ok(self, path: str, body: Any) -> Any:
        """Send an object that the server takes; return the one that it answers."""
        reply = await self.post(path, body)
        assert reply.status == 200, reply.body
        return reply.json

    async def shaped(self, path: str, body: Any, param: str | None) -> Any:
        """Do as `ok`, with a body that shapes the answer; skip the rest where engines are simulated."""
        if self.simulated:
            refused(await self.post(path, body), 400, param)
            pytest.skip("simulated engines can't shape an answer, and the server says so")
        return await self.ok(path, body)

    async def chunks(self, path: str, body: Any) -> list[Any]:
        """Return the chunks of a stream of OpenAI's form that ends well."""
        reply = await self.post(path, {**body, "stream": True})
        assert reply.status == 200, reply.body
        assert reply.headers["content-type"].startswith("text/event-stream")
        return reply.chunks

    def chat(self, **more: Any) -> dict[str, Any]:
        """Build a short conversation."""
        return {"model": self.model, "messages": ASK, "max_tokens": 8, "temperature": 0, **more}

    def text(self, **more: Any) -> dict[str, Any]:
        """Build a short text to continue."""
        return {"model": self.model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **more}

    def tools(self, **more: Any) -> dict[str, Any]:
        """Build a conversation with a tool."""
        ask = [{"role": "user", "content": "Does it rain in Paris and Oslo? Use the tool."}]
        return {"model": self.tool_model, "messages": ask, "tools": TOOLS, "max_tokens": 300, "temperature": 0, **more}


def named(value: Any) -> str | None:
    """Name a case of a test by the fields that it sets."""
    if not isinstance(value, dict):
        return None
    return ",".join(f"{name}={json.dumps(each, separators=(',', ':'))}" for name, each in value.items())[:60] or "none"


def refused(reply: Reply, status: int | tuple[int, ...], param: str | tuple[str, ...] | None = None) -> dict[str, Any]:
    """Check the form of an error, and return it. Its `param` begins with one of the given names."""
    wanted = (status,) if isinstance(status, int) else status
    assert reply.status in wanted, (reply.status, reply.body)
    assert reply.headers["content-type"].startswith("application/json")
    error = reply.json["error"]
    assert {"message", "type", "param", "code"} <= set(error), error
    assert error["message"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    found: dict[str, Any] = error
    return found
