"""Routes of OpenAI's API: conversations, completions and models."""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any

from aiohttp import web

from penstock.batch.output import completion_object
from penstock.v1 import inference_pb2 as api
from penstock.values.results import Completion, Receipt
from router.http.bodies import Asked, read_request
from router.http.calls import REQUEST_ID, Calls
from router.http.chunks import ChunkOptions, Chunks, receipt_object

IGNORED = "x-penstock-ignored"
"""Header with the fields of the body that nobody knows."""


class Routes:
    """Handlers of OpenAI's API."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def add_to(self, app: web.Application) -> None:
        """Add all routes to an application."""
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        for path in ("/health", "/ping"):
            app.router.add_get(path, _health)
        app.router.add_get("/version", _version)

    # --- generation ---------------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        return await self._generate(request, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue a text."""
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        asked = read_request(await self._calls.json(request), request.headers, chat=chat)
        if asked.stream:
            return await self._stream(request, asked, chat=chat)
        reply = await self._calls.generate(request, asked.generate)
        completion = Completion.from_proto(reply)
        found = completion_object(completion, model=asked.generate.model, created=int(time.time()), chat=chat)
        found |= self._shared(asked)
        if asked.token_ids:
            for choice, said in zip(completion.choices, found["choices"], strict=True):
                said["token_ids"] = list(choice.token_ids)
        if asked.receipt:
            found["usage"]["receipt"] = receipt_object(reply.receipt)
        headers = {**_headers(request, completion.request_id, asked), **timing_headers(completion.receipt)}
        return web.json_response(found, headers=headers)

    async def _stream(self, request: web.Request, asked: Asked, *, chat: bool) -> web.StreamResponse:
        options = ChunkOptions(
            chat=chat,
            usage=asked.usage,
            running_usage=asked.running_usage,
            token_ids=asked.token_ids,
            receipt=asked.receipt,
            event_ids=bool(asked.generate.idempotency_key),
            received=asked.received,
        )
        head = {"created": int(time.time()), "model": asked.generate.model, **self._shared(asked)}
        chunks = Chunks(head, options)
        generate = api.StreamGenerateRequest(generate=asked.generate)
        if asked.received is not None:
            generate.resume.received_tokens.extend(asked.received)
        return await self._calls.stream(request, generate, chunks, lambda: _headers(request, chunks.request_id, asked))

    def _shared(self, asked: Asked) -> dict[str, Any]:
        """Return the fields that whole answers and chunks share."""
        digest = self._calls.inference.digest(asked.generate.model)
        fields: dict[str, Any] = {"system_fingerprint": f"fp_{digest[:16]}" if digest else None}
        return {**fields, "service_tier": asked.tier} if asked.tier else fields

    # --- models -------------------------------------------------------------------------------------------------------

    async def models(self, request: web.Request) -> web.StreamResponse:
        """List the models that the caller may use."""
        return web.json_response({"object": "list", "data": await self._listed(request)})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """Describe a model."""
        asked = api.GetModelRequest(model=request.match_info["model"])
        found = await self._calls.inference.GetModel(asked, *self._calls.caller(request))
        return web.json_response(_model(found.model))

    async def _listed(self, request: web.Request) -> list[dict[str, Any]]:
        found = await self._calls.inference.ListModels(api.ListModelsRequest(), *self._calls.caller(request))
        return [_model(each) for each in found.models]


def timing_headers(receipt: Receipt) -> dict[str, str]:
    """Return how long a request waited and ran, as browsers and OpenAI's clients show it."""
    attempts = receipt.attempts
    parts = {
        "queue": sum(attempt.queue_time for attempt in attempts),
        "prefill": sum(attempt.prefill_time for attempt in attempts),
        "decode": sum(attempt.decode_time for attempt in attempts),
    }
    return {
        "openai-processing-ms": f"{1000 * receipt.total_time:.0f}",
        "server-timing": ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in parts.items()),
    }


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
