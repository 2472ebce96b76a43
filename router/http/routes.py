"""Routes of OpenAI's API: conversations and models."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Awaitable
from typing import Any

from aiohttp import web

from cluster.errors import InvalidRequestError
from penstock.batch.output import completion_object
from penstock.v1 import inference_pb2 as api
from penstock.values.results import Completion
from penstock.wire import model_task_from_wire
from router.http.anthropic.models import VERSION, model_info, models_page
from router.http.bodies import Asked, as_chat_has_it, read_request
from router.http.calls import Calls, answer_headers, timing_headers
from router.http.chunks import ChunkOptions, Chunks, receipt_object
from router.http.drain import Drain

_CREATED = 0
"""When a model was made, in seconds: nobody knows. A pool of the settings has no time at which it came, and the
registry keeps that of an entry's last change.
"""


class Routes:
    """Handlers of OpenAI's API."""

    def __init__(self, calls: Calls, drain: Drain) -> None:
        """`drain` knows whether this router takes new calls."""
        self._calls, self._drain = calls, drain

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self.health)
        app.router.add_get("/version", _version)

    async def health(self, request: web.Request) -> web.StreamResponse:
        """Answer balancers, which send nothing to a router that drains."""
        self._drain.check()
        return web.Response()

    # --- generation ---------------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        asked = read_request(await self._calls.json(request), request.headers, chat=True)
        answer = self._stream(request, asked) if asked.stream else self._whole(request, asked)
        names = asked.names
        # The answer has what it needs of it, and a stream lives long.
        del asked
        try:
            return await answer
        except InvalidRequestError as error:
            raise as_chat_has_it(error, names) from error

    async def _whole(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        reply = await self._calls.generate(request, asked.generate)
        completion = Completion.from_proto(reply)
        found = completion_object(
            completion,
            model=asked.generate.model,
            created=int(time.time()),
            chat=True,
            tokens_as_ids=asked.tokens_as_ids,
        )
        found |= self._calls.shared_fields(asked)
        if asked.token_ids:
            for choice, said in zip(completion.choices, found["choices"], strict=True):
                said["token_ids"] = list(choice.token_ids)
        if asked.receipt:
            found["usage"]["receipt"] = receipt_object(reply.receipt)
        headers = answer_headers(request, completion.request_id, asked.ignored)
        return web.json_response(found, headers={**headers, **timing_headers([completion.receipt])})

    def _stream(self, request: web.Request, asked: Asked) -> Awaitable[web.StreamResponse]:
        options = ChunkOptions.of(asked, event_ids=bool(asked.generate.idempotency_key))
        head = {"created": int(time.time()), "model": asked.generate.model, **self._calls.shared_fields(asked)}
        chunks = Chunks(head, options)
        generate = api.StreamGenerateRequest(generate=asked.generate)
        if asked.received is not None:
            generate.resume.received_tokens.extend(asked.received)
        ignored = asked.ignored
        return self._calls.stream(
            request, generate, chunks, lambda: answer_headers(request, chunks.request_id, ignored)
        )

    # --- models -------------------------------------------------------------------------------------------------------

    async def models(self, request: web.Request) -> web.StreamResponse:
        """List the models that the caller may use."""
        found = await self._calls.inference.ListModels(api.ListModelsRequest(), *self._calls.caller(request))
        if VERSION in request.headers:
            return web.json_response(models_page(found.models, request.query))
        data = [card for each in found.models for card in (_model(each), *_adapters(each))]
        return web.json_response({"object": "list", "data": data})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """Describe a model."""
        asked = api.GetModelRequest(model=request.match_info["model"])
        found = await self._calls.inference.GetModel(asked, *self._calls.caller(request))
        adapter = asked.model if asked.model in found.model.lora_adapters else ""
        if VERSION in request.headers:
            return web.json_response(model_info(found.model, adapter))
        if adapter:
            return web.json_response(next(card for card in _adapters(found.model) if card["id"] == adapter))
        return web.json_response(_model(found.model))


def _model(model: api.Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": _CREATED,
        "owned_by": "penstock",
        "root": model.alias_of[0] if model.alias_of else model.name,
        "parent": None,
        "max_model_len": model.max_context_tokens or None,
        "task": _task(model),
    }


def _adapters(model: api.Model) -> list[dict[str, Any]]:
    """Return the model's LoRA adapters as models, as vLLM lists them."""
    return [{**_model(model), "id": name, "root": name, "parent": model.name} for name in model.lora_adapters]


def _task(model: api.Model) -> str | None:
    """Return the task of a model; None until it is known."""
    task = model_task_from_wire(model.task)
    return task.value if task is not None else None


async def _version(request: web.Request) -> web.StreamResponse:
    return web.json_response({"version": importlib.metadata.version("penstock-llm")})
