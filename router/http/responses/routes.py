"""Routes of the Responses API."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from cluster.errors import (
    InvalidRequestError,
    KeyReusedError,
    PenstockError,
    RequestNotFoundError,
    ResponseNotFoundError,
    SlowReaderError,
    TakenOverError,
)
from cluster.responses.contract import ResponseClaim, ResponseName, ResponseRecord
from penstock.v1 import inference_pb2 as api
from penstock.values.objects import BodyError, shown
from router.http.bodies import KEY, as_written, count_of, header_text, page_limit
from router.http.calls import Calls, answer_headers
from router.http.context import TOLD
from router.http.event_stream import EventStream
from router.http.responses.answer import ended
from router.http.responses.body import AskedResponse, read_body
from router.http.responses.conversation import Placed, conversation, page
from router.http.responses.encoder import ResponseEncoder, ToldEncoder
from router.http.responses.events import FROM_THE_BEGINNING, Events
from router.http.responses.items import images_of
from router.http.responses.pieces import pieces_of_choice
from router.http.responses.ready import ReadyResponse, read_ready
from router.http.responses.runs import ResponseReader, ResponseRuns
from router.http.responses.shorten import ConversationBounds, bounded, room, shortened, surely_fits
from router.http.responses.stored import StoredRequest, StoredResult, digest_of
from router.identity import Caller

_PATH = "/v1/responses"
_ID = re.compile("resp_[0-9a-f]{32}")
_CANCEL_S = 5.0
"""Longest wait for the end of a response that is cancelled."""
_POLL_S = 0.05
_FLAGS = {"": False, "false": False, "0": False, "true": True, "1": True}
"""Words of a query for yes and no."""


_Build = Callable[[Sequence[Placed]], ReadyResponse]


class ResponseRoutes:
    """Handlers of the Responses API."""

    def __init__(self, calls: Calls, runs: ResponseRuns, max_bytes: int) -> None:
        """`max_bytes`: largest conversation."""
        self._calls = calls
        self._runs = runs
        self._store = runs.store
        self._max_bytes = max_bytes

    def add_to(self, app: web.Application) -> None:
        one = f"{_PATH}/{{response}}"
        app.router.add_post(_PATH, self.create)
        app.router.add_post(f"{_PATH}/input_tokens", self.count)
        app.router.add_get(one, self.retrieve)
        app.router.add_delete(one, self.delete)
        app.router.add_post(f"{one}/cancel", self.cancel)
        app.router.add_get(f"{one}/input_items", self.input_items)

    # --- create -------------------------------------------------------------------------------------------------------

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        body = await self._calls.json(request)
        _, caller = self._calls.caller(request)
        asked, key = read_body(body), header_text(request.headers, KEY)
        # Only a repeat under the key is compared, and a body with images takes tens of milliseconds.
        digest = digest_of(body) if key else ""
        name = ResponseName(caller.tenant, _id_under(caller.tenant, key) if key else f"resp_{secrets.token_hex(16)}")
        if key and asked.store and (record := await self._store.get(name)) is not None and record.known:
            return await self._repeated(request, asked, record, digest)
        ready = await self._ready(request, asked, name, caller, digest)
        places, names = ready.places, ready.names
        way = self._in_background if asked.background else self._streamed if asked.stream else self._whole
        answer = way(request, ready)
        # The answer has what it needs of them, and a stream lives long.
        del body, asked, ready
        try:
            return await answer
        except InvalidRequestError as error:
            raise places.invalid(as_written(error, names)) from None

    async def count(self, request: web.Request) -> web.StreamResponse:
        """Count the tokens of a conversation that a response would begin with."""
        body = await self._calls.json(request)
        _, caller = self._calls.caller(request)
        name = ResponseName(caller.tenant, f"resp_{secrets.token_hex(16)}")
        ready = await self._ready(request, read_body(body), name, caller, "")
        return web.json_response({"object": "response.input_tokens", "input_tokens": await self._count(request, ready)})

    async def _count(self, request: web.Request, ready: ReadyResponse) -> int:
        try:
            found = await self._calls.inference.CountTokens(count_of(ready.generate), *self._calls.caller(request))
        except InvalidRequestError as error:
            raise ready.places.invalid(as_written(error, ready.names)) from None
        return found.tokens

    async def _ready(
        self, request: web.Request, asked: AskedResponse, name: ResponseName, caller: Caller, digest: str
    ) -> ReadyResponse:
        most_bytes = None if asked.shortens else self._max_bytes
        items = await conversation(asked, self._store, caller.tenant, name.response_id, most_bytes)
        build = partial(read_ready, request, asked, name, caller, digest)
        return await self._shortened(request, asked.chat["model"], items, build) if asked.shortens else build(items)

    async def _shortened(
        self, request: web.Request, model: str, items: Sequence[Placed], build: _Build
    ) -> ReadyResponse:
        """Leave out the oldest turns of a conversation that is too long for its model."""
        found = await self._calls.inference.GetModel(api.GetModelRequest(model=model), *self._calls.caller(request))
        if not (context := found.model.max_context_tokens):
            # No replica has told it yet.
            return build(items)
        limits = self._runs.limits
        most_images = found.model.capabilities.max_images
        items = bounded(
            items,
            ConversationBounds(
                context, limits.each.max_messages, limits.max_prompt_bytes, self._max_bytes, most_images
            ),
        )
        ready = build(items)
        most = room(context, ready.generate.sampling.max_tokens)
        # A small file may be a large image.
        shows = any(images_of(item) for _, item in items)
        if not shows and surely_fits(ready.generate.ByteSize(), len(items), most):
            return ready
        return build(await shortened(items, most, lambda part: self._count(request, build(part))))

    async def _repeated(
        self, request: web.Request, asked: AskedResponse, record: ResponseRecord, digest: str
    ) -> web.StreamResponse:
        """Answer a repeat under the same key with the same response."""
        name = record.name
        known = StoredResult.unpack(record.result) if record.ended else StoredRequest.unpack(record.request)
        if known.digest != digest:
            raise KeyReusedError(header_text(request.headers, KEY), name.response_id)
        if asked.stream:
            return await self._tell(request, name, FROM_THE_BEGINNING, asked.ignored)
        if asked.background:
            return await self._object(request, name)
        return self._json(request, (await self._runs.result(name)).response, name.response_id, asked.ignored)

    async def _joined(self, request: web.Request, ready: ReadyResponse) -> web.StreamResponse:
        """Answer a repeat that came while the first call was not stored yet."""
        return await self._repeated(request, ready.asked, await self._record(ready.name), ready.digest)

    async def _in_background(self, request: web.Request, ready: ReadyResponse) -> web.StreamResponse:
        run = await self._runs.create(ready.stored(), ready.caller)
        if run is None:
            return await self._joined(request, ready)
        request[TOLD] = {**request.get(TOLD, {}), **run.opened.result()}
        if ready.asked.stream:
            return await self._tell(request, ready.name, FROM_THE_BEGINNING, ready.ignored)
        queued = {**ready.base, "status": "queued"}
        return self._json(request, queued, ready.name.response_id, ready.ignored)

    async def _whole(self, request: web.Request, ready: ReadyResponse) -> web.StreamResponse:
        reply = await self._calls.generate(request, ready.generate)
        events = Events(ready.name.response_id, ready.base)
        for piece in pieces_of_choice(reply.choices[0], reply.usage.reasoning_tokens):
            events.add(piece)
        end = api.ChoiceEnd(finish_reason=reply.choices[0].finish_reason)
        response = ended(
            events, api.Finished(choices=[end], usage=reply.usage, unenforced=reply.unenforced), int(time.time())
        )[1]
        if ready.asked.store:
            claim = ResponseClaim(ready.name, secrets.token_hex(12))
            response = await self._keep(ready, claim, response, new_run=reply.request_id)
        return self._json(request, response, reply.request_id, ready.ignored)

    async def _streamed(self, request: web.Request, ready: ReadyResponse) -> web.StreamResponse:
        encoder = ResponseEncoder(Events(ready.name.response_id, ready.base), time.time)
        stream = EventStream(request, encoder, lambda: answer_headers(request, encoder.request_id, ready.ignored))
        claim = ResponseClaim(ready.name, secrets.token_hex(12)) if ready.asked.store else None
        call = self._calls.caller(request, stream)
        if claim is not None:
            if not await self._runs.begin(claim, ready.stored(), leased=False):
                return await self._joined(request, ready)
            encoder.note = partial(self._runs.note, claim)
        generation = self._calls.inference.StreamGenerate(api.StreamGenerateRequest(generate=ready.generate), *call)
        ready = replace(ready, generate=api.GenerateRequest())

        async def work() -> None:
            await generation
            if claim is not None and encoder.response is not None:
                encoder.response = await self._keep(ready, claim, encoder.response)
            await stream.send(encoder.last())

        answer = self._calls.answer(request, stream, work())
        return await (answer if claim is None else self._kept(ready, claim, encoder, answer))

    async def _kept(
        self,
        ready: ReadyResponse,
        claim: ResponseClaim,
        encoder: ResponseEncoder,
        answer: Awaitable[web.StreamResponse],
    ) -> web.StreamResponse:
        """Let a stored response go on, or end, as its stream does."""
        try:
            found = await answer
        except asyncio.CancelledError:
            self._runs.take_up(ready.name)
            raise
        except PenstockError as error:
            if not isinstance(error, TakenOverError):
                await self._runs.forget(claim)
            raise
        if encoder.error and encoder.response is not None:
            await self._keep(ready, claim, encoder.response)
        elif encoder.error == SlowReaderError.reason.lower():
            self._runs.take_up(ready.name)
        return found

    async def _keep(
        self, ready: ReadyResponse, claim: ResponseClaim, response: dict[str, Any], *, new_run: str = ""
    ) -> dict[str, Any]:
        """Store a response that has ended. Where it is not stored now, it says so itself: `store` is false then.

        `new_run`: id of the cluster's request, where nothing was stored of the response yet.
        """
        result = StoredResult(response, ready.items, ready.digest, started=True)
        kept = await self._runs.keep(claim, result.packed(), new_run)
        return response if kept else {**response, "store": False}

    # --- read ---------------------------------------------------------------------------------------------------------

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        """Return a response, or its events behind a number."""
        name = self._name(request)
        stream = request.query.get("stream", "").lower()
        if stream not in _FLAGS:
            raise BodyError("stream", f"must be true or false, got {shown(stream)}")
        if not _FLAGS[stream]:
            return await self._object(request, name)
        after = request.query.get("starting_after", "")
        if after and not (after.isascii() and after.isdigit() and len(after) < 16):
            raise BodyError("starting_after", f"must be the number of an event, got {shown(after)}")
        await self._record(name)
        return await self._tell(request, name, int(after) if after else FROM_THE_BEGINNING, ())

    async def _object(self, request: web.Request, name: ResponseName) -> web.StreamResponse:
        record = await self._runs.settled(await self._record(name))
        return self._json(request, _shown(record), name.response_id, ())

    async def _tell(
        self, request: web.Request, name: ResponseName, after: int, ignored: tuple[str, ...]
    ) -> web.StreamResponse:
        """Send the events behind a number, to the response's end."""
        reader = ResponseReader(after)
        told = ToldEncoder(lambda: reader.last)
        stream = EventStream(request, told, lambda: answer_headers(request, name.response_id, ignored))

        async def work() -> None:
            # So that the client hears at once that it is connected.
            await stream.send(b": response\n\n")
            async with contextlib.aclosing(self._runs.follow(name, reader)) as found:
                async for lines in found:
                    await stream.send(lines.encode())

        return await self._calls.answer(request, stream, work())

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        """List the conversation up to the answer."""
        record = await self._record(self._name(request))
        query = request.query
        limit, order = page_limit(query, 20, 100), query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BodyError("order", f"must be asc or desc, got {shown(order)}")
        kept = StoredResult.unpack(record.result) if record.ended else StoredRequest.unpack(record.request)
        found, more = page(kept.items, limit=limit, after=query.get("after", ""), newest_first=order == "desc")
        ids = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {"first_id": None, "last_id": None}
        return web.json_response({"object": "list", "data": found, **ids, "has_more": more})

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """End a response that runs. Return it with its output so far, or as it had ended."""
        name = self._name(request)
        record = await self._record(name)
        if not record.ended:
            await self._store.cancel(name)
            known = await self._stop(request, name)
            began = time.monotonic()
            while not record.ended and (passed := time.monotonic() - began) < _CANCEL_S:
                # The end of a stream comes over its own connection first, if that is still there.
                waits = known and not record.leased and passed < _CANCEL_S / 2
                if not waits and not await self._owned(name):
                    # Whoever adopts it finds out that it was cancelled.
                    await self._runs.adopt(name)
                await asyncio.sleep(_POLL_S)
                record = await self._record(name)
        return self._json(request, _shown(record), name.response_id, ())

    async def _owned(self, name: ResponseName) -> bool:
        found = await self._store.follow(name, 0, 1 << 30, request=False)
        return found is not None and found.owned

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Forget a response. One that runs ends."""
        name = self._name(request)
        record = await self._record(name)
        if not await self._store.delete(name):
            raise ResponseNotFoundError(name.response_id)
        if not record.ended:
            await self._stop(request, name)
        found = {"id": name.response_id, "object": "response", "deleted": True}
        return web.json_response(found)

    async def _stop(self, request: web.Request, name: ResponseName) -> bool:
        """Cancel what makes the output of a response. Return whether there was anything."""
        asked = api.CancelRequest(idempotency_key=name.response_id)
        try:
            await self._calls.inference.Cancel(asked, *self._calls.caller(request))
        except RequestNotFoundError:
            return False
        return True

    # --- help ---------------------------------------------------------------------------------------------------------

    def _name(self, request: web.Request) -> ResponseName:
        _, caller = self._calls.caller(request)
        response_id = request.match_info["response"]
        if not _ID.fullmatch(response_id):
            raise ResponseNotFoundError(response_id)
        return ResponseName(caller.tenant, response_id)

    async def _record(self, name: ResponseName) -> ResponseRecord:
        record = await self._store.get(name)
        if record is None or not record.known:
            raise ResponseNotFoundError(name.response_id)
        return record

    def _json(
        self, request: web.Request, response: Mapping[str, Any], request_id: str, ignored: tuple[str, ...]
    ) -> web.Response:
        return web.json_response(response, headers=answer_headers(request, request_id, ignored))


def _id_under(tenant: str, key: str) -> str:
    """Return the id of the response of an idempotency key."""
    return f"resp_{hashlib.sha256(b'%b|%b' % (tenant.encode(), key.encode())).hexdigest()[:32]}"


def _shown(record: ResponseRecord) -> Mapping[str, Any]:
    if record.ended:
        return StoredResult.unpack(record.result).response
    base = StoredRequest.unpack(record.request).base
    return {**base, "status": "in_progress" if record.started or not base["background"] else "queued"}
