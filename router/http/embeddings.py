"""Routes for vectors, classes and scores, as OpenAI and vLLM's server have them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web

from cluster.errors import InvalidRequestError
from penstock.batch.embeddings import (
    EMBEDDINGS_URL,
    EmbedBody,
    Encoding,
    ScoreBody,
    embedding_value,
    prompt_usage,
    read_classify,
    read_embed,
    read_rerank,
    read_score,
)
from penstock.models import RequestClass
from penstock.v1 import embeddings_pb2 as api
from penstock.v1 import types_pb2
from penstock.values.embeddings import Scores
from penstock.values.objects import Fields
from penstock.values.results import Receipt
from router.embeddings.servicer import EmbeddingServicer
from router.http.bodies import as_written, tier_class
from router.http.calls import Calls, answer_headers, timing_headers

Body = TypeVar("Body")
_AT_ONCE = 16
"""Vectors that are written in one turn of the event loop. Other calls need their turn too."""


class EmbeddingRoutes:
    """Handlers of requests to models that embed or classify."""

    def __init__(self, calls: Calls, embeddings: EmbeddingServicer) -> None:
        self._calls = calls
        self._embeddings = embeddings

    def add_to(self, app: web.Application) -> None:
        app.router.add_post(EMBEDDINGS_URL, self.embeddings)
        for path in ("/score", "/v1/score"):
            app.router.add_post(path, self.score)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            app.router.add_post(path, self.rerank)
        for path in ("/classify", "/v1/classify"):
            app.router.add_post(path, self.classify)

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """Return vectors."""
        body: EmbedBody = await self._body(request, read_embed)
        with _named(body.names):
            reply = await self._embeddings.Embed(body.request, *self._calls.caller(request))
        head = {
            "id": f"embd-{reply.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.request.model,
            "usage": prompt_usage(reply.usage.prompt_tokens),
        }
        text = await _with_vectors(head, reply.vectors, body.encoding)
        headers = _headers(request, reply.request_id, body.ignored, reply.receipt)
        return web.Response(text=text, content_type="application/json", headers=headers)

    async def classify(self, request: web.Request) -> web.StreamResponse:
        """Return the numbers of the model's classes."""
        body = await self._body(request, read_classify)
        with _named(body.names):
            reply = await self._embeddings.Classify(body.request, *self._calls.caller(request))
        data = []
        for index, result in enumerate(reply.results):
            values = list(result.values)
            best = max(range(len(values)), key=values.__getitem__)
            label = reply.labels[best] if reply.labels else None
            data.append({"index": index, "label": label, "probs": values, "num_classes": len(values)})
        return self._answer(request, body.ignored, reply, f"classify-{reply.request_id}", body.request.model, data)

    async def score(self, request: web.Request) -> web.StreamResponse:
        """Return how well documents fit queries."""
        body, reply = await self._scored(request, read_score)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(reply.scores)]
        return self._answer(request, body.ignored, reply, f"score-{reply.request_id}", body.request.model, data)

    async def rerank(self, request: web.Request) -> web.StreamResponse:
        """Return the documents that fit a query best."""
        body, reply = await self._scored(request, read_rerank)
        results: list[dict[str, Any]] = []
        for each in Scores.from_proto(reply).ranking(body.top or None):
            result: dict[str, Any] = {"index": each.index, "relevance_score": each.score}
            if body.documents:
                result["document"] = {"text": body.documents[each.index]}
            results.append(result)
        found = {
            "id": f"rerank-{reply.request_id}",
            "model": body.request.model,
            "results": results,
            "usage": prompt_usage(reply.usage.prompt_tokens),
        }
        return web.json_response(found, headers=_headers(request, reply.request_id, body.ignored, reply.receipt))

    async def _scored(
        self, request: web.Request, read: Callable[[Fields, RequestClass], ScoreBody]
    ) -> tuple[ScoreBody, api.ScoreResponse]:
        body = await self._body(request, read)
        with _named(body.names):
            return body, await self._embeddings.Score(body.request, *self._calls.caller(request))

    async def _body(self, request: web.Request, read: Callable[[Fields, RequestClass], Body]) -> Body:
        fields = Fields("", await self._calls.json(request), ignore_unknown=True)
        return read(fields, tier_class(fields))

    def _answer(
        self,
        request: web.Request,
        ignored: Iterable[str],
        reply: api.ClassifyResponse | api.ScoreResponse,
        name: str,
        model: str,
        data: list[dict[str, Any]],
    ) -> web.StreamResponse:
        found = {
            "id": name,
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": data,
            "usage": prompt_usage(reply.usage.prompt_tokens),
        }
        return web.json_response(found, headers=_headers(request, reply.request_id, ignored, reply.receipt))


@contextmanager
def _named(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors of the services name fields as the body does."""
    try:
        yield
    except InvalidRequestError as error:
        raise as_written(error, names) from error


async def _with_vectors(head: Mapping[str, Any], vectors: Iterable[bytes], encoding: Encoding) -> str:
    """Return the body of an answer. Numbers in JSON take long to write, so other calls get their turns in between."""
    parts = []
    for index, vector in enumerate(vectors):
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        one = {"object": "embedding", "index": index, "embedding": embedding_value(vector, encoding)}
        parts.append(json.dumps(one, separators=(",", ":")))
    return f'{json.dumps(head)[:-1]}, "data": [{",".join(parts)}]}}'


def _headers(
    request: web.Request, request_id: str, ignored: Iterable[str], receipt: types_pb2.Receipt
) -> dict[str, str]:
    return {**answer_headers(request, request_id, ignored), **timing_headers([Receipt.from_proto(receipt)])}
