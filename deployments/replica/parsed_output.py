"""Parsed output of one choice: what the engine's parser finds, in the form that clients get."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from deployments.engines.base import OutputParser
from penstock.models import OutputParsing, ParsedDelta, ToolCallDelta

_LONG, _SHORT = 24, 9
"""Letters and digits of a call's id: behind "call_", and of an id that has nothing else."""


class TextOnly:
    """Parser of an engine that has none: all output is text."""

    short_call_ids = False

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        return ParsedDelta(text) if text else None

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return 0


class ParsedOutput:
    """A parser with the rules that hold for every one.

    Calls are numbered in order from 0. Id and name of a call come first, and once. The id depends on the choice alone,
    so every replica that parses the same output gives the same one. A replica that continues an output feeds it what
    came before, in the same pieces or in others.
    """

    def __init__(self, parser: OutputParser, parsing: OutputParsing, request_id: str) -> None:
        """`request_id` is the cluster's id of the choice."""
        self._parser = parser
        self._parsing = parsing
        self._request_id = request_id
        self._numbers: dict[int, int] = {}
        """Number of each call, by the parser's index."""
        self._unnamed: dict[int, str] = {}
        """Arguments that came before the name of their call, by the parser's index."""

    @property
    def called(self) -> bool:
        """Whether the output has a tool call."""
        return bool(self._numbers)

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        """Take new output and return what it adds; None for nothing. `last`: nothing follows."""
        piece = self._parser.feed(token_ids, text, last=last)
        if piece is not None and (piece.tool_calls or (piece.reasoning and self._parsing.without_reasoning)):
            piece = self._in_order(piece)
        return piece

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count the reasoning in the whole output, in tokens."""
        return self._parser.reasoning_tokens(token_ids)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _in_order(self, piece: ParsedDelta) -> ParsedDelta | None:
        calls: list[ToolCallDelta] = []
        for each in piece.tool_calls:
            if (call := self._numbered(each)) is None:
                continue
            if calls and calls[-1].index == call.index:
                before = calls.pop()
                call = ToolCallDelta(call.index, before.id, before.name, before.arguments + call.arguments)
            calls.append(call)
        reasoning = "" if self._parsing.without_reasoning else piece.reasoning
        return ParsedDelta(piece.text, reasoning, tuple(calls)) if piece.text or reasoning or calls else None

    def _numbered(self, call: ToolCallDelta) -> ToolCallDelta | None:
        number = self._numbers.get(call.index)
        if number is None:
            arguments = self._unnamed.pop(call.index, "") + call.arguments
            if not call.name:
                self._unnamed[call.index] = arguments
                return None
            number = self._numbers[call.index] = len(self._numbers)
            if number and self._parsing.single_call:
                return None
            return ToolCallDelta(number, self._call_id(number), call.name, arguments)
        if (number and self._parsing.single_call) or not call.arguments:
            return None
        return ToolCallDelta(number, arguments=call.arguments)

    def _call_id(self, number: int) -> str:
        digest = hashlib.blake2b(f"{self._request_id}\0{number}".encode(), digest_size=_LONG // 2).hexdigest()
        return digest[:_SHORT] if self._parser.short_call_ids else f"call_{digest}"
