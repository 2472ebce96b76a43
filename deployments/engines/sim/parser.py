"""The simulated engine's parser: reasoning and tool calls in the format of Hermes and Qwen3."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from deployments.engines.pieces import behind
from penstock.models import ParsedDelta, ToolCallDelta

_THINK, _THOUGHT = "<think>", "</think>"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


class SimParser:
    """Parser that reads the whole text anew each time, and returns what is new in it."""

    short_call_ids = False

    def __init__(self, encode: Callable[[str], Sequence[int]], *, tools: bool) -> None:
        """`encode` tokenizes a text. `tools`: whether the request has any; without them a call is text."""
        self._encode = encode
        self._tools = tools
        self._text = ""
        self._sent = ParsedDelta()

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        self._text += text
        whole = parse(self._text, last=last, tools=self._tools)
        piece, self._sent = behind(whole, self._sent), whole
        return piece

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return len(self._encode(self._sent.reasoning)) if self._sent.reasoning else 0


def parse(text: str, *, last: bool, tools: bool) -> ParsedDelta:
    """Parse the beginning of an output. What may become a tag is left out, unless this is all (`last`)."""
    reasoning = ""
    if text.startswith(_THINK):
        reasoning, ended, text = text[len(_THINK) :].partition(_THOUGHT)
        if not ended:
            return ParsedDelta(reasoning=_without_tag(reasoning, _THOUGHT, last=last))
    elif not last and _THINK.startswith(text):
        return ParsedDelta()
    if not tools:
        return ParsedDelta(text, reasoning)
    content, begun, rest = text.partition(_CALL)
    if not begun:
        return ParsedDelta(_without_tag(content, _CALL, last=last), reasoning)
    return ParsedDelta(content, reasoning, tuple(_calls(rest)))


def _calls(text: str) -> Iterator[ToolCallDelta]:
    for number, body in enumerate(text.split(_CALL)):
        call, ended, _ = body.partition(_CALLED)
        name, arguments = _NAME.search(call), _ARGUMENTS.search(call)
        if name is None:
            return
        written = call[arguments.end() :] if arguments is not None else ""
        if ended:
            written = written.rstrip().removesuffix("}")
        else:
            # The last brace is that of the call, unless more follows.
            written = _without_tag(written, _CALLED, last=False).rstrip().removesuffix("}")
        yield ToolCallDelta(number, name=name.group(1), arguments=written)


def _without_tag(text: str, tag: str, *, last: bool) -> str:
    """Return the text without an end that may be the beginning of a tag."""
    if last:
        return text
    held = next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
    return text[: len(text) - held]
