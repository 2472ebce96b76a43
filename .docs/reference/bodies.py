"""The page of the fields in OpenAI's bodies, from what the readers take and from what is said of other fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from penstock.batch.input import read_line
from penstock.values.messages.message import read_message
from penstock.values.objects import BodyError, Fields
from penstock.values.tools import read_tools
from penstock.values.unsupported import (
    CALL_FUNCTION,
    CHAT,
    COMPLETION,
    IMAGE_PART,
    IMAGE_URL,
    MESSAGE,
    TEXT_PART,
    TOOL,
    TOOL_CALL,
    TOOL_FUNCTION,
    Unsupported,
)
from reference.markdown import code, page, table
from router.http.bodies import read_request
from router.http.completions.bodies import read_completions

INTRO = """What Penstock does with each field of a body for `/v1/chat/completions` and `/v1/completions`, over HTTP and
in batch files. Null is the same as absent, for every field."""
HOW = """- *honoured*: it has its effect, or is refused with the reason.
- *ignored*: it changes nothing in Penstock, and is accepted.
- *refused*: it would change the answer, and Penstock does not support it. The error names it. Values that change
nothing are accepted; the table has them.
- *left out*: it changes no answer and is not supported. Over HTTP it is ignored, and named in the header
`x-penstock-ignored`. In a batch file it is refused, and with `--ignore-unknown` ignored and listed.

Any other field is left out."""
HONOURED, IGNORED, NONE = "honoured", "ignored", ""
CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"
_MESSAGES = [{"role": "user", "content": "Hi"}]


def render() -> str:
    """Return the page."""
    chat, completion = _fields(CHAT_URL, CHAT), _fields(COMPLETIONS_URL, COMPLETION)
    call = {"id": "1", "function": {"name": "f"}}
    message = {**_MESSAGES[0], "content": [{"type": "text", "text": "Hi"}], "tool_calls": [call]}
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    inside = [
        *_rows("messages[]", _taken(lambda: read_message(_of(message))), MESSAGE),
        *_rows("messages[].content[]", {"type": HONOURED, "text": HONOURED}, TEXT_PART),
        *_rows("messages[].content[]", {"image_url": HONOURED, "file_id": _said(Unsupported())}, _only_of_images()),
        *_rows("messages[].content[].image_url", {"url": f"{HONOURED}; a data URL"}, IMAGE_URL),
        *_rows("messages[].tool_calls[]", _taken(lambda: read_message(_of(message)), ".tool_calls[0]"), TOOL_CALL),
        *_rows(
            "messages[].tool_calls[].function",
            _taken(lambda: read_message(_of(message)), ".tool_calls[0].function"),
            CALL_FUNCTION,
        ),
        *_rows("tools[]", _taken(lambda: read_tools(_of(tools)), ".tools[0]"), TOOL),
        *_rows("tools[].function", _taken(lambda: read_tools(_of(tools)), ".tools[0].function"), TOOL_FUNCTION),
    ]
    return page(
        "Fields of OpenAI's bodies",
        INTRO,
        HOW,
        "## Bodies",
        table(
            ["field", "chat", "completion"],
            [
                [code(name), chat.get(name, "left out"), completion.get(name, "left out")]
                for name in sorted({*chat, *completion})
            ],
        ),
        "## Messages and tools",
        table(["field", "what happens"], inside),
    )


def _only_of_images() -> Mapping[str, Unsupported]:
    return {name: field for name, field in IMAGE_PART.items() if name not in TEXT_PART}


def _of(value: Mapping[str, Any]) -> Fields:
    return Fields("", value, ignore_unknown=False)


def _fields(url: str, known: Mapping[str, Unsupported]) -> dict[str, str]:
    chat = url == CHAT_URL
    body = {"model": "m", **({"messages": _MESSAGES} if chat else {"prompt": "Hi"})}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body})
    filed = _taken(lambda: read_line(line, 1), "body")
    asked = _taken(lambda: read_request(body, {}, chat=chat))
    both = {name: HONOURED if name in filed else f"{HONOURED} over HTTP" for name in {**filed, **asked}}
    if not chat:
        both |= {name: f"{HONOURED} over HTTP" for name, field in known.items() if _read_before(body, name, field)}
    found = {name: _said(field) for name, field in known.items()}
    for name, what in both.items():
        also = f"; in batch files {found[name]}" if what != HONOURED and name in found else NONE
        found[name] = f"{what}{also}"
    return found


def _read_before(body: Mapping[str, Any], name: str, field: Unsupported) -> bool:
    """Return whether the route of completions reads a field itself that others refuse."""
    if False not in field.neutral or not field.changes_answers:
        return False
    try:
        read_completions({**body, name: True}, {})
    except BodyError:
        return False
    return True


def _rows(place: str, honoured: Mapping[str, str], known: Mapping[str, Unsupported]) -> list[list[str]]:
    found = {**honoured, **{name: _said(field) for name, field in known.items() if name not in honoured}}
    return [[code(f"{place}.{name}"), what] for name, what in found.items()]


def _taken(read: Callable[[], object], path: str = "") -> dict[str, str]:
    """Return the names that a reader takes of the object at a path."""
    found: dict[str, str] = {}
    take = Fields.take
    seen: list[Fields] = []

    def recorded(self: Fields, name: str) -> Any:
        if self.path == path.removeprefix("."):
            seen.append(self)
            if self is seen[0]:
                found[name] = HONOURED
        return take(self, name)

    Fields.take = recorded  # type: ignore[method-assign]  # what a reader asks for is written nowhere else
    try:
        read()
    finally:
        Fields.take = take  # type: ignore[method-assign]
    return found


def _said(field: Unsupported) -> str:
    if field.always_neutral:
        return IGNORED
    neutral = " or ".join(code(json.dumps(value)) for value in field.neutral)
    what = "refused" if field.changes_answers else "left out"
    unless = f" unless {neutral}" if neutral else NONE
    return f"{what}{unless}{f'; {field.instead}' if field.instead else NONE}"
