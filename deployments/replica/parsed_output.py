"""Parsed output of one choice: what the engine's parser finds, in the form that clients get."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cluster.models import ParsedSize
from deployments.engines.base import OutputParser
from deployments.engines.pieces import behind, joined, larger, size_of
from penstock.models import OutputParsing, ParsedDelta, ToolCallDelta

_LONG, _SHORT = 24, 9
"""Letters and digits of a call's id: behind "call_", and of an id that has nothing else."""
_EMPTY = ParsedDelta()


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
    so every replica that parses the same output gives the same one.
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
        self._sent: ParsedSize | None = None
        """Size of the output that the client has while it is not that of `_whole`; None if it is."""
        self._whole = _EMPTY
        """The output before a resume, and behind it as far as the client has it."""

    @property
    def called(self) -> bool:
        """Whether the output has a tool call."""
        return bool(self._numbers)

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        """Take new output and return what it adds; None for nothing. `last`: nothing follows."""
        piece = self._parser.feed(token_ids, text, last=last)
        if piece is not None and (piece.tool_calls or piece.reasoning):
            piece = self._in_order(piece)
        return piece if self._sent is None else self._unsent(piece, self._sent)

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count the reasoning in the whole output, in tokens."""
        return self._parser.reasoning_tokens(token_ids)

    def replay(self, deltas: Iterable[tuple[Sequence[int], str]], sent: ParsedSize | None) -> list[ParsedDelta | None]:
        """Take the output before a resume. Return the parsed piece of each delta.

        The replica before may have cut the output in other places, and a parser may hold back more or less at the end
        of them. What comes next begins where the client's output ends.

        Args:
            deltas: token ids and text of each delta that the client got.
            sent: size of the parsed output that the client has; None where it is not known.
        """
        pieces = [self.feed(token_ids, text) for token_ids, text in deltas]
        whole = joined(pieces) or _EMPTY
        if sent is not None and sent != size_of(whole):
            self._whole, self._sent = whole, sent
        return pieces

    # --- inside -------------------------------------------------------------------------------------------------------

    def _unsent(self, piece: ParsedDelta | None, sent: ParsedSize) -> ParsedDelta | None:
        whole = joined((self._whole, piece)) or _EMPTY
        size = size_of(whole)
        sent_now = larger(sent, size)
        self._whole, self._sent = (_EMPTY, None) if sent_now == size else (whole, sent_now)
        return behind(whole, sent)

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
