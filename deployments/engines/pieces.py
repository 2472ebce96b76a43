"""Pieces of parsed output: their sum, their size, and the rest behind a size."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from cluster.models import ParsedSize
from penstock.models import ParsedDelta, ToolCallDelta


def joined(pieces: Iterable[ParsedDelta | None]) -> ParsedDelta | None:
    """Return several pieces as one, with one delta for each call; None where there are none."""
    found = [piece for piece in pieces if piece is not None]
    if len(found) < 2:
        return found[0] if found else None
    calls: dict[int, ToolCallDelta] = {}
    for piece in found:
        for call in piece.tool_calls:
            before = calls.get(call.index)
            calls[call.index] = (
                call
                if before is None
                else ToolCallDelta(call.index, before.id, before.name, before.arguments + call.arguments)
            )
    return ParsedDelta(
        "".join([piece.text for piece in found]),
        "".join([piece.reasoning for piece in found]),
        tuple(calls[number] for number in sorted(calls)),
    )


def size_of(piece: ParsedDelta) -> ParsedSize:
    """Return the size of the output from its beginning."""
    return ParsedSize(len(piece.text), len(piece.reasoning), tuple(len(call.arguments) for call in piece.tool_calls))


def behind(whole: ParsedDelta, sent: ParsedSize) -> ParsedDelta | None:
    """Return the part of an output behind what was sent of it; None where there is none."""
    text, reasoning = whole.text[sent.text :], whole.reasoning[sent.reasoning :]
    calls = []
    for call in whole.tool_calls:
        if call.index >= len(sent.arguments):
            calls.append(call)
        elif rest := call.arguments[sent.arguments[call.index] :]:
            calls.append(ToolCallDelta(call.index, arguments=rest))
    return ParsedDelta(text, reasoning, tuple(calls)) if text or reasoning or calls else None


def larger(one: ParsedSize, other: ParsedSize) -> ParsedSize:
    """Return the larger size in each part."""
    return ParsedSize(
        max(one.text, other.text),
        max(one.reasoning, other.reasoning),
        tuple(max(pair) for pair in zip_longest(one.arguments, other.arguments, fillvalue=0)),
    )
