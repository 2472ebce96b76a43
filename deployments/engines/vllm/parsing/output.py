"""vLLM's parser of one sequence behind our protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from deployments.engines.pieces import joined
from deployments.engines.vllm.parsing.hermes import HermesPlace
from deployments.engines.vllm.parsing.passing import NOTHING, Passing
from deployments.engines.vllm.parsing.tokens import TokenTexts
from penstock.models import ParsedDelta, ToolCallDelta

_LOG = logging.getLogger(__name__)


class VllmOutputParser:
    """Parser of one sequence. After a fault of vLLM's parser the rest of the output is text."""

    __slots__ = (
        "_called", "_failed", "_fed", "_given", "_markers", "_parser", "_passed", "_passing", "_place", "_prompt",
        "_reasoning", "_reasons", "_request", "_text", "_tokens", "_unseen", "short_call_ids",
    )  # fmt: skip

    def __init__(
        self,
        parser: Any,
        request: Any,
        prompt: Sequence[int],
        tokens: TokenTexts,
        *,
        short_call_ids: bool,
        passing: Passing = NOTHING,
    ) -> None:
        """`parser` is a fresh one of vLLM, `request` its ChatCompletionRequest, and `prompt` the prompt's ids.
        `passing`: what the parser need not see token by token.
        """
        self.short_call_ids = short_call_ids
        self._passing = passing
        self._markers: frozenset[str] | None = None
        """Characters without which output is handed on as it is; None where the parser must see it."""
        self._reasons = False
        """Whether that output is reasoning, and not text."""
        self._passed: list[tuple[int, str]] = []
        """Tokens that the parser has not seen, with their text."""
        self._place: HermesPlace | None = None
        """Place in the output from which what the parser says is known."""
        self._given: list[str] = []
        """Text or arguments that tokens gave which the parser has not seen."""
        self._parser = parser
        self._request = request
        self._prompt: list[int] | None = list(prompt)
        """Until the first output: a parser looks at the prompt once."""
        self._tokens = tokens
        self._fed: list[str] = []
        """All text."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._called = False
        self._unseen: list[str] = []
        """Text since the last output of the parser."""
        self._failed = False

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        if self._failed:
            return ParsedDelta(text) if text else None
        pieces: list[ParsedDelta | None] = []
        untaken: Iterator[tuple[Sequence[int], str]] = iter(())
        try:
            if not last and self._tokens.alone(token_ids):
                # Nearly every call.
                return self._take(token_ids, text)
            if last and not token_ids and not text and self._nothing_held():
                return None
            untaken = iter(list(self._tokens.split(token_ids, text, last=last)))
            # One by one: what came before a fault counts.
            for ids, own in untaken:
                pieces.append(self._take(ids, own))
            if last:
                self._catch_up()
                pieces.append(self._parse([], "", last=True))
                pieces.append(self._rest())
        except Exception:  # noqa: BLE001 - a parser must not end the stream
            _LOG.exception("parser.failed", extra={"parser": type(self._parser).__name__})
            self._failed = True
            rest = "".join([*self._unseen, *(own for _, own in untaken), self._tokens.left()])
            pieces.append(ParsedDelta(rest) if rest else None)
        return joined(pieces)

    def _nothing_held(self) -> bool:
        """Return whether the parser is known to have handed on all text, so that it has nothing to say at the end."""
        if self._place is not None:
            return self._place.all_handed_on
        return self._markers is not None and not self._reasons and self._parser.tool_parser is None

    def _take(self, ids: Sequence[int], text: str) -> ParsedDelta | None:
        """Take one token with its text."""
        markers, place = self._markers, self._place
        if place is not None:
            if len(ids) == 1 and (found := place.take(text)) is not None:
                # Nearly every token.
                self._passed.append((ids[0], text))
                if not found:
                    self._unseen.append(text)
                    return None
                self._unseen.clear()
                self._given.append(found)
                if place.index < 0:
                    return ParsedDelta(found)
                return ParsedDelta(tool_calls=(ToolCallDelta(place.index, arguments=found),))
        elif (
            markers is not None
            and text
            and len(ids) == 1
            and markers.isdisjoint(text)
            and ids[0] not in self._passing.special
        ):
            self._passed.append((ids[0], text))
            return ParsedDelta(reasoning=text) if self._reasons else ParsedDelta(text)
        self._unseen.append(text)
        self._catch_up()
        self._fed.append(text)
        piece = self._parse(ids, text, last=False)
        if piece is not None and not self._called:
            self._look_for_passage(piece, text)
        if self._markers is None and self._passing.place is not None:
            self._place = self._passing.place(self._parser)
        return piece

    def _look_for_passage(self, piece: ParsedDelta, text: str) -> None:
        """Find out whether the parser holds nothing back, and hands on what follows."""
        if piece.reasoning == text and not piece.text:
            markers, self._reasons = self._passing.reasoning, True
        elif piece.text == text and not piece.reasoning and self._parser._stream_state.reasoning_ended:
            markers, self._reasons = self._passing.text, False
        else:
            return
        if markers is not None and markers.isdisjoint(text):
            self._markers = markers

    def _catch_up(self) -> None:
        """Give the parser what it has not seen."""
        place, self._place, self._markers = self._place, None, None
        if not self._passed:
            return
        ids, text = [token for token, _ in self._passed], "".join([text for _, text in self._passed])
        self._passed.clear()
        self._fed.append(text)
        message = self._parser.parse_delta(text, ids, self._request, prompt_token_ids=None, finished=False)
        wanted: ParsedDelta | None
        if place is not None:
            wanted = self._given_by(place.index)
        elif self._reasons:
            self._reasoning.append(text)
            wanted = ParsedDelta(reasoning=text)
        else:
            self._text.append(text)
            wanted = ParsedDelta(text)
        if (_piece(message) if message is not None else None) != wanted:
            _LOG.error("parser.passed_otherwise", extra={"parser": type(self._parser).__name__})

    def _given_by(self, index: int) -> ParsedDelta | None:
        found = "".join(self._given)
        self._given.clear()
        if not found:
            return None
        if index < 0:
            self._text.append(found)
            return ParsedDelta(found)
        return ParsedDelta(tool_calls=(ToolCallDelta(index, arguments=found),))

    def _parse(self, ids: Sequence[int], text: str, *, last: bool) -> ParsedDelta | None:
        message = self._parser.parse_delta(text, list(ids), self._request, prompt_token_ids=self._prompt, finished=last)
        self._prompt = None
        if message is None or (piece := _piece(message)) is None:
            return None
        self._unseen.clear()
        if piece.text:
            self._text.append(piece.text)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        self._called = self._called or bool(piece.tool_calls)
        return piece

    def _rest(self) -> ParsedDelta | None:
        """Return what the parser still holds back, such as the beginning of a call that was cut.

        Older parsers forget it. What they make of the whole text has it.
        """
        tool_parser = self._parser.tool_parser
        if self._called or tool_parser is None or tool_parser.engine_based_streaming:
            return None
        text, fed = "".join(self._text), "".join(self._fed)
        if len(text) + sum(map(len, self._reasoning)) == len(fed):
            return None
        _, content, calls = self._parser.parse(fed, self._request, enable_auto_tools=True)
        rest = content.removeprefix(text) if content and content.startswith(text) else ""
        found = tuple(
            ToolCallDelta(number, name=call.name, arguments=call.arguments) for number, call in enumerate(calls or ())
        )
        return ParsedDelta(rest, tool_calls=found) if rest or found else None

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count as the parser does. Where it does not count, take the size of the reasoning's text."""
        try:
            if self._reasons and self._place is None and not self._failed:
                self._catch_up()
            if not self._reasoning:
                return 0
            if counted := int(self._parser.count_reasoning_tokens(token_ids)):
                return counted
            return _size("".join(self._reasoning), self._parser.model_tokenizer)
        except Exception:  # noqa: BLE001 - as in `feed`
            _LOG.exception("parser.failed", extra={"parser": type(self._parser).__name__})
            return 0


def _size(text: str, tokenizer: Any) -> int:
    """Count the tokens of a text."""
    if isinstance(fast := getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        # Without transformers' layers around it, which take most of the time.
        return len(fast.encode(text, add_special_tokens=False))
    return len(tokenizer.encode(text, add_special_tokens=False))


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
