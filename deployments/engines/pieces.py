"""Pieces of parsed output: their sum, and the rest behind one."""

from __future__ import annotations

from collections.abc import Iterable

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


def behind(whole: ParsedDelta, before: ParsedDelta) -> ParsedDelta | None:
    """Return what an output has behind its beginning `before`; None where that is all of it."""
    text, reasoning = whole.text[len(before.text) :], whole.reasoning[len(before.reasoning) :]
    calls = []
    for number, call in enumerate(whole.tool_calls):
        if number >= len(before.tool_calls):
            calls.append(call)
        elif rest := call.arguments[len(before.tool_calls[number].arguments) :]:
            calls.append(ToolCallDelta(call.index, arguments=rest))
    return ParsedDelta(text, reasoning, tuple(calls)) if text or reasoning or calls else None
