"""Parsed output of a choice: pieces of text, reasoning and tool calls, joined and remembered."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.links.receiver import AS_TEXT, Parsed

_AS_TEXT = 0xFFFF_FFFF
"""Size of a piece that is the text of its delta."""

NOTHING = pb.DeltaParsed()
"""Piece of a delta whose tokens gave no output yet."""


def join_calls(calls: Iterable[types.ToolCallDelta]) -> list[types.ToolCallDelta]:
    """Return one delta for each call. What is joined is copied."""
    found: dict[int, types.ToolCallDelta] = {}
    parts: dict[int, list[str]] = {}
    for call in calls:
        if call.index in found:
            parts.setdefault(call.index, [found[call.index].arguments]).append(call.arguments)
        else:
            found[call.index] = call
    for index, texts in parts.items():
        first = found[index]
        found[index] = types.ToolCallDelta(index=index, id=first.id, name=first.name, arguments="".join(texts))
    return list(found.values())


def add_to(delta: api.Delta, parsed: pb.DeltaParsed) -> None:
    """Write a piece into a client's delta."""
    delta.text = parsed.text
    if parsed.reasoning:
        delta.reasoning = parsed.reasoning
    if parsed.tool_calls:
        delta.tool_calls.extend(parsed.tool_calls)


class ParsedHistory:
    """Parsed pieces of a choice, one for each delta: four bytes, and some ten beside its text where it is not the text
    of the delta.
    """

    __slots__ = ("_bytes", "_sizes")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._sizes = array("I")

    def add(self, piece: Parsed) -> None:
        """Append the piece of the next delta; None where it has none."""
        if piece is AS_TEXT:
            # Nearly every call.
            self._sizes.append(_AS_TEXT)
            return
        data = b"" if piece is None else piece.SerializeToString()
        self._bytes += data
        self._sizes.append(len(data))

    def pieces(self, texts: Iterable[str]) -> Iterator[pb.DeltaParsed | None]:
        """Yield the piece of each delta, given their texts."""
        at = 0
        data = bytes(self._bytes)
        for size, text in zip(self._sizes, texts, strict=True):
            if size == _AS_TEXT:
                yield pb.DeltaParsed(text=text)
                continue
            yield pb.DeltaParsed.FromString(data[at : at + size]) if size else None
            at += size


def joined(pieces: Iterable[pb.DeltaParsed | None]) -> pb.DeltaParsed:
    """Return several pieces as one."""
    found = [piece for piece in pieces if piece is not None]
    return pb.DeltaParsed(
        text="".join([piece.text for piece in found]),
        reasoning="".join([piece.reasoning for piece in found]),
        tool_calls=join_calls(call for piece in found for call in piece.tool_calls),
    )
