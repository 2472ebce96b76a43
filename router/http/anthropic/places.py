"""Places in a body that the messages of its chat, and the calls in them, come from. Pure."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

_MESSAGE = re.compile(r"prompt\.chat\.messages\[(\d+)\]")
_CALL = re.compile(r"\.tool_calls\[(\d+)\]")
_PART = re.compile(r"\.parts\[(\d+)\](?:\.image\b.*)?")
_NAMES = {".arguments": ".input", ".tool_call_id": ".tool_use_id"}


@dataclass(frozen=True, slots=True)
class MessagePlaces:
    """Places by the numbers of the chat's messages. A stream lives long, so these are numbers alone."""

    system: bool
    """Whether the first message is the body's `system`."""
    messages: array[int]
    """Message of the body that each of the others begins with."""
    ends: array[int]
    """How many of `blocks` belong to it and those before it."""
    blocks: array[int]
    """Blocks with calls and their results, and all blocks of the user between two results where one is an image."""
    owners: array[int]
    """Message of the body that each of `blocks` is in."""
    results: array[int]
    """Whether each of `messages` is the result of a call: 1, or 0."""

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]], *, system: bool) -> MessagePlaces:
        """Find the places of messages that were translated."""
        found = cls(system, array("I"), array("I"), array("I"), array("I"), array("B"))
        for role, turn in groupby(enumerate(messages), key=lambda each: each[1]["role"]):
            for number, blocks, is_result in (_of_user if role == "user" else _of_others)(list(turn)):
                found.messages.append(number)
                found.results.append(is_result)
                for owner, block in blocks:
                    found.owners.append(owner)
                    found.blocks.append(block)
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
        begin = self.ends[number - 1] if number else 0
        if call := _CALL.match(rest):
            place = self._block(begin + int(call[1]))
            rest = rest[call.end() :]
        elif part := _PART.match(rest):
            at, rest = int(part[1]), rest[part.end() :]
            place = f"{self._block(begin)}.content[{at}]" if self.results[number] else self._block(begin + at)
        elif rest == ".tool_call_id":
            place = self._block(begin)
        else:
            place = f"messages[{self.messages[number]}]"
        return place + _NAMES.get(rest, rest)

    def _block(self, at: int) -> str:
        return f"messages[{self.owners[at]}].content[{self.blocks[at]}]"


_Turn: TypeAlias = Sequence[tuple[int, Mapping[str, Any]]]
"""Messages of one role, which follow each other, after their numbers."""
_Found: TypeAlias = Iterator[tuple[int, Iterable[tuple[int, int]], bool]]
"""Messages of the chat: the one of the body that each begins with, its blocks that have places of their own, and
whether it is the result of a call."""


def _of_others(turn: _Turn) -> _Found:
    yield turn[0][0], [(number, at) for number, at, kind in _kinds(turn) if kind == "tool_use"], False


def _of_user(turn: _Turn) -> _Found:
    for is_result, blocks in groupby(_kinds(turn), key=lambda block: block[2] == "tool_result"):
        places = list(blocks)
        if is_result:
            yield from ((number, [(number, at)], True) for number, at, _ in places)
        else:
            shows = any(kind == "image" for _, _, kind in places)
            yield places[0][0], [(number, at) for number, at, _ in places if shows], False


def _kinds(turn: _Turn) -> Iterator[tuple[int, int, str]]:
    """Yield the type of each block, after its message and its place in it."""
    for number, message in turn:
        content = message["content"]
        kinds = ["text"] if isinstance(content, str) else [block["type"] for block in content]
        for at, kind in enumerate(kinds):
            yield number, at, kind
