"""Routes of vLLM's tokenizer API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from cluster.errors import InvalidRequestError
from penstock.models import FieldViolation
from penstock.v1 import inference_pb2 as api
from penstock.values.objects import UINT32, BodyError, Fields, shown, within
from router.http.bodies import count_of, read_request
from router.http.calls import Calls, ignored_headers

_OWN = ("add_special_tokens", "add_generation_prompt", "return_token_strs")
"""Fields that only these bodies have."""
_LONG = 4_096
"""Tokens from which on an answer is written in a thread."""


class TokenizerRoutes:
    """Handlers of the tokenizer API. A request without a model asks for the only one that its caller may use."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/tokenizer_info", self.info)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """Return the tokens of a text or a conversation."""
        body = await self._calls.json(request)
        model = await self._model(request, body.get("model"))
        count, ignored = read_tokenize(body, model)
        found = await self._calls.inference.CountTokens(count, *self._calls.caller(request))
        described = await self._calls.inference.GetModel(api.GetModelRequest(model=model), *self._calls.caller(request))
        answer = {
            "count": found.tokens,
            "max_model_len": described.model.max_context_tokens,
            "tokens": list(found.token_ids),
            "token_strs": list(found.names) if count.names else None,
        }
        # In a thread where it is long, because the event loop has streams to serve.
        written = asyncio.to_thread(json.dumps, answer) if found.tokens > _LONG else None
        text = json.dumps(answer) if written is None else await written
        return web.json_response(text=text, headers=ignored_headers(ignored))

    async def detokenize(self, request: web.Request) -> web.StreamResponse:
        """Return the text of tokens."""
        fields = Fields("", await self._calls.json(request), ignore_unknown=True)
        tokens = fields.take("tokens")
        if not isinstance(tokens, list) or not set(map(type, tokens)) <= {int}:
            raise fields.wrong("tokens", f"must be a list of token ids, got {shown(tokens)}")
        for token in (min(tokens), max(tokens)) if tokens else ():
            within(fields, "tokens", token, UINT32)
        asked = api.DetokenizeRequest(model=await self._model(request, fields.take("model")), token_ids=tokens)
        try:
            found = await self._calls.inference.Detokenize(asked, *self._calls.caller(request))
        except InvalidRequestError as error:
            named = [
                FieldViolation(each.field.replace("token_ids", "tokens", 1), each.description)
                for each in error.violations
            ]
            raise InvalidRequestError(named) from error
        return web.json_response({"prompt": found.text})

    async def info(self, request: web.Request) -> web.StreamResponse:
        """Return the configuration of a tokenizer; the query may have the model."""
        model = await self._model(request, request.query.get("model"))
        asked = api.GetModelRequest(model=model, tokenizer_config=True)
        found = await self._calls.inference.GetModel(asked, *self._calls.caller(request))
        return web.json_response(json.loads(found.tokenizer_config))

    async def _model(self, request: web.Request, named: Any) -> str:
        if named is not None:
            if not isinstance(named, str):
                raise BodyError("model", f"must be text, got {shown(named)}")
            return named
        listed = await self._calls.inference.ListModels(api.ListModelsRequest(), *self._calls.caller(request))
        names = [model.name for model in listed.models]
        if len(names) != 1:
            raise BodyError("model", f"is required where there are several models: {', '.join(names)}")
        return names[0]


def read_tokenize(body: Mapping[str, Any], model: str) -> tuple[api.CountTokensRequest, tuple[str, ...]]:
    """Translate a body. Return with it the fields that nobody knows.

    Raises:
        BodyError: names the field that can't be served as written.
    """
    fields = dict(body)
    chat = "messages" in fields
    if not chat and not isinstance(fields.get("prompt"), str):
        raise BodyError("prompt", f"must be text, or messages must be given, got {shown(fields.get('prompt'))}")
    own = Fields("", {name: fields.pop(name, None) for name in _OWN}, False)
    special, begins = (None if body.get(name) is None else own.flag(name) for name in _OWN[:2])
    if begins and fields.get("continue_final_message"):
        raise BodyError("add_generation_prompt", "must be false or absent with continue_final_message, got true")
    asked = read_request({**fields, "model": model}, {}, chat=chat)
    count = count_of(asked.generate)
    count.names = own.flag("return_token_strs")
    if special is not None:
        count.add_special_tokens = special
    if begins is not None and chat:
        count.add_generation_prompt = begins
    return count, asked.ignored
