"""The playground's answers, as lines of JSON: one per event of the stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from cluster.terminal.json_values import plain
from penstock.client import Delta, Event, Finished, GenerateOptions, PenstockClientError, Queued, RequestClass, Resumed
from router.console.answers import dumps
from router.console.bodies import field, read_body
from router.console.caller import CLIENT
from router.console.errors import fields_of

TIMEOUT_S = 600.0
_CLASSES = {each.name.lower(): each for each in RequestClass}
_SHOWN = {
    Delta: ("choice_index", "text", "reasoning", "tool_calls"),
    Queued: ("request_id", "position", "eta"),
    Resumed: ("choice_index", "replica_id", "exact"),
}
"""Fields of events that the page needs, where it does not need all."""


class ChatRoutes:
    """Handlers of the playground."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/chat", self.chat)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation, or a prompt of text. A page that leaves cancels it."""
        body = await read_body(request)
        async with request.app[CLIENT].stream(
            field(body, "model", str, ""),
            body["prompt"] if "prompt" in body else field(body, "messages", list, []),
            field(body, "sampling", dict, {}),
            _options(body),
            timeout=TIMEOUT_S,
        ) as stream:
            events = aiter(stream)
            # An error before the first event is the answer's status.
            first = await anext(events, None)
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson; charset=utf-8"})
            await response.prepare(request)
            async for line in _lines(first, events):
                await response.write(dumps(line).encode("utf-8", errors="replace") + b"\n")
        await response.write_eof()
        return response


def _options(body: dict[str, Any]) -> GenerateOptions:
    name = field(body, "request_class", str, "interactive")
    if name not in _CLASSES:
        raise ValueError(f"request_class: must be one of {', '.join(_CLASSES)}, got {name[:40]!r}")
    return GenerateOptions(
        request_class=_CLASSES[name],
        lora_adapter=field(body, "lora_adapter", str, ""),
        session_id=field(body, "session_id", str, ""),
        tools=field(body, "tools", list, []),
        reasoning_effort=field(body, "reasoning_effort", str, ""),
        chat_template_kwargs=field(body, "chat_template_kwargs", dict, {}) or None,
    )


async def _lines(first: Event | None, events: AsyncIterator[Event]) -> AsyncIterator[dict[str, Any]]:
    """Yield events as the page has them; the last one is `finished` or `error`."""
    try:
        if first is not None:
            yield event_fields(first)
        async for event in events:
            yield event_fields(event)
    except PenstockClientError as error:
        yield plain({"event": "error", **fields_of(error)})


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event with its name."""
    names = _SHOWN.get(type(event))
    fields = {name: plain(getattr(event, name)) for name in names} if names else plain(event)
    fields.pop("resume_token", None)
    if isinstance(event, Finished):
        fields.pop("token_ids", None)
    return {"event": type(event).__name__.lower(), **fields}
