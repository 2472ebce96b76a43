"""Routes of the HTTP API."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cluster.errors import PenstockError
from penstock.batch.output import completion_object
from penstock.v1 import inference_pb2 as api
from penstock.values.objects import BodyError
from penstock.values.results import Completion
from router.call_context import CallContext
from router.http.bodies import Asked, read_json, read_request
from router.http.chunks import Chunks
from router.http.context import HttpContext
from router.http.errors import HttpError, http_error
from router.http.event_stream import EventStream
from router.identity import Caller
from router.inference.servicer import InferenceServicer
from router.metrics import RouterMetrics

_LOG = logging.getLogger(__name__)

_JSON_TYPE = "application/json"
REQUEST_ID = "x-request-id"
IGNORED = "x-penstock-ignored"
"""Header with the fields of the body that nobody knows."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes:
    """Handlers of the HTTP API, on the same services as the gRPC API."""

    def __init__(
        self,
        inference: InferenceServicer,
        authenticate: Callable[[CallContext], Caller],
        metrics: RouterMetrics,
        *,
        keys: bool,
    ) -> None:
        """`keys`: whether the router knows API keys."""
        self._inference = inference
        self._authenticate = authenticate
        self._metrics = metrics
        self._keys = keys

    def add_to(self, app: web.Application) -> None:
        """Add all routes to an application."""
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        for path in ("/health", "/ping"):
            app.router.add_get(path, _health)
        app.router.add_get("/version", _version)
        app.middlewares.append(self.guard)

    # --- generation ---------------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        return await self._generate(request, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue a text."""
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if request.content_type != _JSON_TYPE:
            # A page in a browser could send any other type to a router on its user's machine without being asked.
            raise BodyError("", f"must have the content type {_JSON_TYPE}, got {request.content_type[:80]}")
        asked = read_request(read_json(await request.read()), request.headers, chat=chat)
        if asked.stream:
            return await self._stream(request, asked, chat=chat)
        context = HttpContext(request, keys=self._keys)
        caller = self._authenticate(context)
        reply = await self._inference.Generate(asked.generate, context, caller)
        completion = Completion.from_proto(reply)
        found = completion_object(completion, model=asked.generate.model, created=int(time.time()), chat=chat)
        if asked.token_ids:
            for choice, said in zip(completion.choices, found["choices"], strict=True):
                said["token_ids"] = list(choice.token_ids)
        return web.json_response(found, headers=_headers(request, completion.request_id, asked))

    async def _stream(self, request: web.Request, asked: Asked, *, chat: bool) -> web.StreamResponse:
        chunks = Chunks(
            asked.generate.model,
            int(time.time()),
            chat=chat,
            usage=asked.usage,
            running_usage=asked.running_usage,
            token_ids=asked.token_ids,
        )
        stream = EventStream(request, chunks, lambda: _headers(request, chunks.request_id, asked))
        context = HttpContext(request, stream, keys=self._keys)
        caller = self._authenticate(context)
        try:
            await self._inference.StreamGenerate(api.StreamGenerateRequest(generate=asked.generate), context, caller)
        except PenstockError as error:
            if not stream.begun:
                raise
            self._note(request, http_error(error))
            await stream.fail(http_error(error))
        finally:
            stream.close()
        return await stream.end()

    # --- models -------------------------------------------------------------------------------------------------------

    async def models(self, request: web.Request) -> web.StreamResponse:
        """List the models that the caller may use."""
        return web.json_response({"object": "list", "data": await self._listed(request)})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """Describe a model."""
        context = HttpContext(request, keys=self._keys)
        caller = self._authenticate(context)
        name = request.match_info["model"]
        found = await self._inference.GetModel(api.GetModelRequest(model=name), context, caller)
        return web.json_response(_model(found.model))

    async def _listed(self, request: web.Request) -> list[dict[str, Any]]:
        context = HttpContext(request, keys=self._keys)
        caller = self._authenticate(context)
        found = await self._inference.ListModels(api.ListModelsRequest(), context, caller)
        return [_model(each) for each in found.models]

    # --- errors -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer every error in OpenAI's form, and count the call."""
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            self._metrics.call(_name(request), "CANCELLED", None)
            raise
        except web.HTTPException as error:
            # No route, another method, or a body that is too large.
            kind = "not_found_error" if error.status == web.HTTPNotFound.status_code else "invalid_request_error"
            return self._answer(
                request, HttpError(error.status, kind, error.reason, error.reason.lower().replace(" ", "_"))
            )
        except Exception as error:  # noqa: BLE001 - the table of errors hides what is not meant for clients
            return self._answer(request, http_error(error))
        self._metrics.call(_name(request), "OK", None)
        return response

    def _answer(self, request: web.Request, error: HttpError) -> web.Response:
        self._note(request, error)
        headers = {**error.headers(), REQUEST_ID: request.headers.get(REQUEST_ID, "")}
        return web.json_response(error.object(), status=error.status, headers={k: v for k, v in headers.items() if v})

    def _note(self, request: web.Request, error: HttpError) -> None:
        self._metrics.call(_name(request), str(error.status), error.code.upper())
        _LOG.info("http.failed", extra={"path": request.path, "status": error.status, "reason": error.code})


def _name(request: web.Request) -> str:
    """Return the name of a route for metrics; the same for all paths that nobody serves."""
    resource = request.match_info.route.resource
    return f"http {resource.canonical}" if resource is not None else "http"


def _headers(request: web.Request, request_id: str, asked: Asked) -> dict[str, str]:
    headers = {REQUEST_ID: request.headers.get(REQUEST_ID) or request_id}
    if asked.ignored:
        headers[IGNORED] = ", ".join(asked.ignored)
    return headers


def _model(model: api.Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "penstock",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_context_tokens or None,
    }


async def _health(request: web.Request) -> web.StreamResponse:
    return web.Response()


async def _version(request: web.Request) -> web.StreamResponse:
    return web.json_response({"version": importlib.metadata.version("penstock-llm")})
