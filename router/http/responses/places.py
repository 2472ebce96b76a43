"""Fields of a chat, as the client of the Responses API wrote them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cluster.errors import InvalidRequestError
from penstock.models import FieldViolation
from penstock.values.objects import BodyError
from router.http.errors import WrittenError, in_body

_FIELDS = {
    "sampling.structured_output.json_schema": "text.format.schema",
    "sampling.structured_output": "text.format",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "sampling.max_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "sampling.logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
    "reasoning.effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "prompt.chat.messages": "input",
    "messages": "input",
    "prompt.chat.tools": "tools",
    "prompt.chat.": "",
    "prompt.chat": "input",
}
"""Beginnings of fields, and what they are in a body."""
_AS_OURS = ("reasoning.",)
"""Beginnings of places that are called here as our fields are, and otherwise in a chat."""
_CALL = re.compile(r"(?:prompt\.chat\.)?(messages\[\d+\]\.tool_calls\[\d+\])(?:\.function)?")
_MESSAGE = re.compile(r"(?:prompt\.chat\.)?(messages\[\d+\])")
_CONTENT = re.compile(r"(?:prompt\.chat\.)?(messages\[\d+\])\.(?:content|parts)(?:(\[\d+\])(?:\.image\b.*)?)?")
_TOOL = re.compile(r"(?:prompt\.chat\.)?(tools\[\d+\])\.function")
_ANY_TOOL = re.compile(r"(?:prompt\.chat\.)?tools\[(\d+)\](?:\.function)?")
_CHOICE = re.compile(r"tool_choice\.(?:function|allowed_tools)")


class Places:
    """Places in a body that the messages of its chat, calls in them, and tools come from."""

    def __init__(self, of_messages: Mapping[str, str], of_tools: Sequence[str]) -> None:
        self._of_messages = of_messages
        self._of_tools = of_tools

    def body_error(self, error: BodyError) -> BodyError:
        """Return an error of the reader of chats as one of this body."""
        return BodyError(self._place(error.field), error.problem)

    def invalid(self, error: InvalidRequestError) -> WrittenError:
        """Return an error of the services as one of this body."""
        return WrittenError([FieldViolation(self._written(v.field), v.description) for v in error.violations])

    def _written(self, field: str) -> str:
        place = self._place(field)
        return place if place.startswith(_AS_OURS) else in_body(place)

    def paths(self, ignored: Sequence[str]) -> tuple[str, ...]:
        """Return the names of fields that were left out."""
        return tuple(map(self._place, ignored))

    def _place(self, field: str) -> str:
        if (found := _CALL.match(field)) and (place := self._of_messages.get(found[1])):
            rest = field[found.end() :]
            return place + (".call_id" if rest == ".id" else rest)
        if (found := _CONTENT.match(field)) and (place := self._of_messages.get(f"{found[1]}.content")):
            return place + (found[2] or "") + field[found.end() :]
        if (found := _MESSAGE.match(field)) and (place := self._of_messages.get(found[1])):
            rest = field[found.end() :]
            return place + (".call_id" if rest == ".tool_call_id" else rest)
        if (found := _ANY_TOOL.match(field)) and int(found[1]) < len(self._of_tools):
            return self._of_tools[int(found[1])] + field[found.end() :]
        return place_of(field)


def place_of(field: str) -> str:
    """Return the place in a body that a field of its chat comes from, where that is no message."""
    if found := _TOOL.match(field):
        return found[1] + field[found.end() :]
    if found := _CHOICE.match(field):
        return "tool_choice" + field[found.end() :]
    for beginning, name in _FIELDS.items():
        if field.startswith(beginning):
            return name + field.removeprefix(beginning)
    return field
