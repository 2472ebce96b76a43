"""vLLM's parser of one sequence behind our protocol."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from penstock.models import ParsedDelta, ToolCallDelta

_LOG = logging.getLogger(__name__)


class VllmOutputParser:
    """Parser of one sequence. After a fault of vLLM's parser the rest of the output is text."""

    __slots__ = ("_failed", "_parser", "_prompt", "_reasoning", "_request", "_unseen", "short_call_ids")

    def __init__(self, parser: Any, request: Any, prompt: Sequence[int], *, short_call_ids: bool) -> None:
        """`parser` is a fresh one of vLLM. `request` is its ChatCompletionRequest, and `prompt` the prompt's ids."""
        self.short_call_ids = short_call_ids
        self._parser = parser
        self._request = request
        self._prompt: list[int] | None = list(prompt)
        """Until the first output: a parser looks at the prompt once."""
        self._reasoning: list[str] = []
        self._unseen: list[str] = []
        """Text since the last output of the parser."""
        self._failed = False

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        if self._failed:
            return ParsedDelta(text) if text else None
        try:
            message = self._parser.parse_delta(
                text, list(token_ids), self._request, prompt_token_ids=self._prompt, finished=last
            )
        except Exception:  # noqa: BLE001 - a parser must not end the stream
            _LOG.exception("parser.failed", extra={"parser": type(self._parser).__name__})
            self._failed = True
            rest = "".join([*self._unseen, text])
            return ParsedDelta(rest) if rest else None
        self._prompt = None
        piece = None if message is None else _piece(message)
        if piece is None:
            self._unseen.append(text)
            return None
        self._unseen.clear()
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        return piece

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count as the parser does. Where it does not count, take the size of the reasoning's text."""
        if not self._reasoning:
            return 0
        try:
            if counted := int(self._parser.count_reasoning_tokens(token_ids)):
                return counted
            tokenizer = self._parser.model_tokenizer
            return len(tokenizer.encode("".join(self._reasoning), add_special_tokens=False))
        except Exception:  # noqa: BLE001 - as in `feed`
            _LOG.exception("parser.failed", extra={"parser": type(self._parser).__name__})
            return 0


def _piece(message: Any) -> ParsedDelta | None:
    """Translate vLLM's DeltaMessage; None for an empty one."""
    text, reasoning = message.content or "", message.reasoning or ""
    calls = tuple(map(_call, message.tool_calls)) if message.tool_calls else ()
    return ParsedDelta(text, reasoning, calls) if text or reasoning or calls else None


def _call(call: Any) -> ToolCallDelta:
    function = call.function
    if function is None:
        return ToolCallDelta(call.index)
    return ToolCallDelta(call.index, name=function.name or "", arguments=function.arguments or "")
