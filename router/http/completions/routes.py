"""Route of completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from aiohttp import web

from cluster.errors import InvalidRequestError
from penstock.models import FieldViolation
from penstock.v1 import inference_pb2 as api
from penstock.values.results import Receipt
from router.http.bodies import as_written
from router.http.calls import Calls, answer_headers, timing_headers
from router.http.completions.bodies import AskedTexts, answer, read_completions
from router.http.completions.chunks import TextChunks
from router.http.event_stream import EventStream, SharedStream

_I = TypeVar("_I")
_T = TypeVar("_T")

AT_ONCE = 64
"""Prompts of one request that wait or run at the same time. The others follow: one request must not fill the line."""
_LONG = 4_096
"""Log probabilities of prompts from which on an answer is written in a thread, because it takes milliseconds."""


class CompletionRoutes:
    """Handler of completions. Each prompt is a request of its own; the answer has them all, or the first error."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self.completions)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue texts."""
        asked = read_completions(await self._calls.json(request), request.headers)
        echoes = await self._echoes(request, asked)
        answer = (self._stream if asked.asked.stream else self._whole)(request, asked, echoes)
        names = asked.asked.names
        # The answer has what it needs of them, and a stream lives long.
        del asked, echoes
        try:
            return await answer
        except InvalidRequestError as error:
            raise as_written(error, names) from error

    async def _whole(self, request: web.Request, asked: AskedTexts, echoes: Sequence[str]) -> web.StreamResponse:
        async def one(generate: api.GenerateRequest) -> api.GenerateResponse:
            return await self._calls.generate(request, generate)

        replies = await _each(asked.generates, one)

        head = self._head(asked)

        def written() -> bytes:
            found = {**answer(asked, echoes, replies), **head}
            return web.json_response(found).body  # type: ignore[return-value]  # it is text

        long = sum(len(reply.prompt_logprobs) for reply in replies) > _LONG
        body = await asyncio.to_thread(written) if long else written()
        headers = answer_headers(request, replies[0].request_id, asked.asked.ignored)
        headers |= timing_headers([Receipt.from_proto(reply.receipt) for reply in replies])
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _head(self, asked: AskedTexts) -> dict[str, Any]:
        shared = self._calls.shared_fields(asked.asked)
        return {"created": int(time.time()), "model": asked.asked.generate.model, **shared}

    async def _echoes(self, request: web.Request, asked: AskedTexts) -> list[str]:
        """Return the text of each prompt; empty where it is not echoed."""
        if not asked.echo:
            return [""] * len(asked.generates)

        async def one(generate: api.GenerateRequest) -> str:
            if not generate.prompt.HasField("tokens"):
                return generate.prompt.text
            ids = api.DetokenizeRequest(model=generate.model, token_ids=generate.prompt.tokens.ids)
            try:
                shown = await self._calls.inference.Detokenize(ids, *self._calls.caller(request))
            except InvalidRequestError as error:
                raise _named(error, "prompt") from error
            return shown.text

        return await _each(asked.generates, one)

    def _stream(self, request: web.Request, asked: AskedTexts, echoes: Sequence[str]) -> Awaitable[web.StreamResponse]:
        chunks, ignored = TextChunks(asked.options(), self._head(asked)), asked.asked.ignored
        parts = [chunks.part(prompt, echo) for prompt, echo in enumerate(echoes)]
        wanted = [api.StreamGenerateRequest(generate=generate) for generate in asked.generates]
        if asked.asked.received is not None:
            wanted[0].resume.received_tokens.extend(asked.asked.received)

        def headers() -> Mapping[str, str]:
            return answer_headers(request, chunks.request_id, ignored)

        if len(parts) == 1:
            return self._calls.stream(request, wanted[0], parts[0], headers)
        whole, lock = EventStream(request, parts[0], headers, goes_on=asked.comes_back), asyncio.Lock()
        streams = [SharedStream(whole, part, lock) for part in parts]

        async def one(prompt: int) -> None:
            call = self._calls.caller(request, streams[prompt])
            await self._calls.inference.StreamGenerate(wanted[prompt], *call)

        return self._calls.answer(request, whole, _each(range(len(parts)), one))


async def _each(items: Sequence[_I], work: Callable[[_I], Awaitable[_T]]) -> list[_T]:
    """Do some work for each prompt, `AT_ONCE` at a time. The first error ends all of it.

    Raises:
        PenstockError: that error. It names the prompt where there are several.
    """
    if len(items) == 1:
        return [await work(items[0])]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, item: _I) -> _T:
        async with room:
            try:
                return await work(item)
            except InvalidRequestError as error:
                raise _named(error, f"prompt[{number}]") from error

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, item)) for number, item in enumerate(items)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _named(error: InvalidRequestError, prompt: str) -> InvalidRequestError:
    """Name the prompt that is wrong as in the body."""
    wrong = ("prompt", "token_ids")
    return InvalidRequestError(
        [
            FieldViolation(prompt, each.description) if each.field.startswith(wrong) else each
            for each in error.violations
        ]
    )
