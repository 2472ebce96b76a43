"""Requests for responses that may begin: with their whole conversation, as a chat."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from cluster.responses.contract import ResponseName
from penstock.v1 import inference_pb2 as api
from penstock.values.objects import BodyError
from router.http.bodies import KEY, SESSION, read_request
from router.http.responses.body import AskedResponse
from router.http.responses.conversation import Placed
from router.http.responses.events import UNENDED
from router.http.responses.items import Item, chat_messages
from router.http.responses.places import Places
from router.http.responses.stored import StoredRequest
from router.identity import Caller


@dataclass(frozen=True, slots=True)
class ReadyResponse:
    """A request that may begin."""

    asked: AskedResponse
    name: ResponseName
    caller: Caller
    base: Mapping[str, Any]
    """Fields of the response that do not change."""
    items: Sequence[Item]
    digest: str
    generate: api.GenerateRequest
    places: Places
    names: Mapping[str, str]
    ignored: tuple[str, ...]

    def stored(self) -> StoredRequest:
        """Return what the store keeps of it. It may have megabytes of images, so it is made where it is needed."""
        packed = self.generate.SerializeToString()
        return StoredRequest(packed, self.base, self.items, self.digest, self.caller.api_key)


def read_ready(
    request: web.Request, asked: AskedResponse, name: ResponseName, caller: Caller, digest: str, items: Sequence[Placed]
) -> ReadyResponse:
    """Translate a request whose conversation is known.

    Raises:
        BodyError: names the field that can't be served as written.
    """
    response_id = name.response_id
    messages, of_messages = chat_messages(asked.instructions, items)
    places = Places(of_messages, asked.tool_places)
    keyed = asked.background or (asked.stream and asked.store) or bool(request.headers.get(KEY))
    headers = {SESSION: request.headers.get(SESSION, ""), KEY: response_id if keyed else ""}
    try:
        chat = read_request({**asked.chat, "messages": messages}, headers, chat=True)
    except BodyError as error:
        raise places.body_error(error) from None
    base = {"id": response_id, "object": "response", "created_at": int(time.time()), **asked.shown, **UNENDED}
    own = [item for _, item in items]
    ignored = (*asked.ignored, *places.paths(chat.ignored))
    return ReadyResponse(asked, name, caller, base, own, digest, chat.generate, places, chat.names, ignored)
