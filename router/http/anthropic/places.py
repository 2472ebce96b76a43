"""Places in a body that the messages of its chat, and the calls in them, come from. Pure."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MESSAGE = re.compile(r"prompt\.chat\.messages\[(\d+)\]")
_CALL = re.compile(r"\.tool_calls\[(\d+)\]")
_NAMES = {".arguments": ".input", ".tool_call_id": ".tool_use_id"}


@dataclass(frozen=True, slots=True)
class MessagePlaces:
    """Places by the numbers of the chat's messages. A stream lives long, so these are numbers alone."""

    system: bool
    """Whether the first message is the body's `system`."""
    messages: array[int]
    """Message of the body that each of the others comes from."""
    ends: array[int]
    """How many of `blocks` belong to it and those before it."""
    blocks: array[int]
    """Blocks with calls and their results."""

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]], *, system: bool) -> MessagePlaces:
        """Find the places of messages that were translated."""
        found = cls(system, array("I"), array("I"), array("I"))
        for number, message in enumerate(messages):
            for blocks in _chat_messages(message):
                found.messages.append(number)
                found.blocks.extend(blocks)
                found.ends.append(len(found.blocks))
        return found

    def written(self, field: str) -> str:
        """Return what the body calls one of our fields; the field itself where it is none of a message."""
        found = _MESSAGE.match(field)
        if found is None:
            return field
        number, rest = int(found[1]) - self.system, field[found.end() :]
        if number < 0:
            return "system"
        place = f"messages[{self.messages[number]}]"
        begin = self.ends[number - 1] if number else 0
        if call := _CALL.match(rest):
            place += f".content[{self.blocks[begin + int(call[1])]}]"
            rest = rest[call.end() :]
        elif rest == ".tool_call_id":
            place += f".content[{self.blocks[begin]}]"
        return place + _NAMES.get(rest, rest)


def _chat_messages(message: Mapping[str, Any]) -> Iterator[Iterable[int]]:
    """Yield the blocks with calls or results of each message of the chat that one of the body becomes."""
    content = message["content"]
    kinds = ["text"] if isinstance(content, str) else [block["type"] for block in content]
    if message["role"] != "user":
        yield [number for number, kind in enumerate(kinds) if kind == "tool_use"]
        return
    text = False
    for number, kind in enumerate(kinds):
        if kind != "tool_result":
            text = True
            continue
        if text:
            yield ()
        text = False
        yield (number,)
    if text:
        yield ()
