"""Routes of Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping

from aiohttp import web

from cluster.errors import InvalidRequestError
from penstock.models import FieldViolation
from penstock.v1 import inference_pb2 as api
from router.http.anthropic.bodies import AskedMessage, read_messages
from router.http.anthropic.errors import error_object
from router.http.anthropic.events import MessageEvents, message_object
from router.http.anthropic.models import VERSION
from router.http.anthropic.places import MessagePlaces
from router.http.bodies import as_written, count_of
from router.http.calls import REQUEST_ID, Calls, answer_headers, own_id

_PATH, _MODELS = "/v1/messages", "/v1/models"
_TOOL = re.compile(r"^prompt\.chat\.(tools\[\d+\]\.)(parameters)?")
_REQUEST_ID = "request-id"
"""Header in which Anthropic's SDK looks for the id of a request."""


class MessagesRoutes:
    """Handlers of the Messages API."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        calls.error_bodies.append((_is_anthropics, error_object))

    def add_to(self, app: web.Application) -> None:
        app.on_response_prepare.append(_name_answer)
        app.router.add_post(_PATH, self.create)
        app.router.add_post(f"{_PATH}/count_tokens", self.count)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        asked = read_messages(await self._calls.json(request), request.headers)
        answer = self._stream(request, asked) if asked.stream else self._whole(request, asked)
        names, places = asked.names, asked.places
        # The answer has what it needs of it, and a stream lives long.
        del asked
        try:
            return await answer
        except InvalidRequestError as error:
            raise _named(error, names, places) from error

    async def _whole(self, request: web.Request, asked: AskedMessage) -> web.StreamResponse:
        reply = await self._calls.generate(request, asked.generate)
        headers = answer_headers(request, reply.request_id, asked.ignored)
        message = message_object(reply, asked.generate.model, continues=asked.continues)
        return web.json_response(message, headers=headers)

    def _stream(self, request: web.Request, asked: AskedMessage) -> Awaitable[web.StreamResponse]:
        keyed, ignored = bool(asked.generate.idempotency_key), asked.ignored
        called = own_id(request)
        events = MessageEvents(
            asked.generate.model, called, event_ids=keyed, after=asked.after, continues=asked.continues
        )
        generate = api.StreamGenerateRequest(generate=asked.generate)
        if asked.after is not None:
            generate.resume.received_tokens.append(asked.after.tokens)
        return self._calls.stream(
            request, generate, events, lambda: answer_headers(request, events.request_id, ignored)
        )

    async def count(self, request: web.Request) -> web.StreamResponse:
        """Count the tokens of a conversation."""
        asked = read_messages(await self._calls.json(request), request.headers, counted=True)
        try:
            found = await self._calls.inference.CountTokens(count_of(asked.generate), *self._calls.caller(request))
        except InvalidRequestError as error:
            raise _named(error, asked.names, asked.places) from error
        return web.json_response({"input_tokens": found.tokens})


def _named(error: InvalidRequestError, names: Mapping[str, str], places: MessagePlaces) -> InvalidRequestError:
    """Return an error of the services with the names that a body has for their fields."""
    named = as_written(error, names).violations
    return InvalidRequestError(
        [FieldViolation(places.written(_TOOL.sub(_of_tool, each.field)), each.description) for each in named]
    )


def _of_tool(found: re.Match[str]) -> str:
    return found[1] + ("input_schema" if found[2] else "")


def _is_anthropics(request: web.Request) -> bool:
    """Return whether a client of Anthropic's API reads the answer: that of models has the path of OpenAI's."""
    return request.path.startswith(_PATH) or (request.path.startswith(_MODELS) and VERSION in request.headers)


async def _name_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Repeat the request id where Anthropic's clients look for it."""
    if _is_anthropics(request) and REQUEST_ID in response.headers:
        response.headers[_REQUEST_ID] = response.headers[REQUEST_ID]
