"""Requests for responses as lines of a batch's file, and their results. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.batch.body import Body, read_body
from penstock.v1 import inference_pb2 as api
from penstock.v1 import jobs_pb2
from penstock.values.objects import BodyError, Fields, shown
from router.http.responses import body as responses
from router.http.responses.answer import ended
from router.http.responses.events import UNENDED, Events
from router.http.responses.items import Item, chat_messages, reference
from router.http.responses.pieces import pieces_of_choice
from router.http.responses.places import Places

URL = "/v1/responses"
_NO = {
    "previous_response_id": "write the whole conversation into input",
    "background": "a batch runs in the background",
    "stream": "results of a batch are in its file",
}
_ID_LETTERS = 32


def read_response_line(fields: Fields) -> Body:
    """Read the body of a line.

    Raises:
        BodyError: it can't be served as written. Names the field.
    """
    given = fields.rest()
    for name, instead in _NO.items():
        if given.get(name):
            raise fields.wrong(name, f"must be absent in a batch, got {shown(given[name])}; {instead}")
    if given.get("store"):
        raise fields.wrong("store", "must be false or absent in a batch: the responses are in its file only")
    if given.get("truncation") == "auto":
        raise fields.wrong("truncation", "must be disabled in a batch, where no conversation is shortened; got auto")
    try:
        asked = responses.read_body({**given, "store": False})
        _check_tools(asked.shown["tools"])
        items = list(map(_new_item, range(len(asked.items)), asked.items))
        messages, of_messages = chat_messages(asked.instructions, items)
        places = Places(of_messages, asked.tool_places)
        try:
            found = read_body(Fields("", {**asked.chat, "messages": messages}, ignore_unknown=True), chat=True)
        except BodyError as error:
            raise places.body_error(error) from None
    except BodyError as error:
        raise fields.wrong(error.field, error.problem) from None
    ignored = (f"{fields.path}.{name}" for name in (*asked.ignored, *places.paths(found.ignored)))
    return Body(
        found.model,
        found.prompt,
        found.sampling,
        found.session_id,
        found.options,
        tuple(ignored),
        json.dumps(asked.shown, ensure_ascii=False),
        found.constraint,
    )


def _check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    # What a job finds wrong with a tool later is told by its number among all functions.
    for index, tool in enumerate(tools):
        if tool["type"] != "function":
            raise BodyError(f"tools[{index}].type", f'must be "function" in a batch, got {shown(tool["type"])}')


def _new_item(index: int, item: Item) -> tuple[str, Item]:
    where = f"input[{index}]"
    if reference(item) is not None:
        raise BodyError(where, "must not refer to a stored item in a batch")
    return where, item


def response_object(job_id: str, result: jobs_pb2.JobResult) -> dict[str, Any]:
    """Return the response of a line. It is the same whenever it is asked for."""
    name = hashlib.sha256(f"{job_id}/{result.index}".encode()).hexdigest()[:_ID_LETTERS]
    ended_at = result.ended_at.ToSeconds()
    base = {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": ended_at,
        **json.loads(result.response_fields),
        **UNENDED,
    }
    reply = result.response
    events = Events(str(base["id"]), base)
    for piece in pieces_of_choice(reply.choices[0], reply.usage.reasoning_tokens):
        events.add(piece)
    end = api.ChoiceEnd(finish_reason=reply.choices[0].finish_reason)
    finished = api.Finished(choices=[end], usage=reply.usage, unenforced=reply.unenforced)
    return ended(events, finished, ended_at)[1]
