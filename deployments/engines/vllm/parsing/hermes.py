"""What Hermes' parser says of most tokens, known without it.

At each token that parser reads all of the text again, and all JSON of its calls. What it says follows from the text
alone, and most of that is plain:

- Before the first call it hands on text as it is. It holds back what may be the beginning of a tag until more follows.
- Before the name of a call and before its arguments it says nothing.
- It hands on arguments as they are. It holds back white space too, and of complete JSON the last brace. JSON can't be
  complete before all brackets are closed.
- Behind a call it says nothing until another one begins, and never again behind one without a name.

Anything else is left to it: the name, the last brace, and both tags.
"""

from __future__ import annotations

import re
from typing import Any

START, END = "<tool_call>", "</tool_call>"
_TEXT, _NAME, _ARGUMENTS, _BODY, _BEHIND, _NOTHING = range(6)
"""What the parser waits for: the first call, a call's name, its arguments, their end, the next call; nothing any more.
"""
_BRACKETS = frozenset("{}[]")
_SIGNS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)
_DEEPEST = 200
"""Depth of brackets from which the parser decides: Python's JSON reader fails at some depth."""
_DIGITS = 2000
"""Digits in a row from which the parser decides: Python reads no integer of 4300 digits."""
_LONG_NUMBER = re.compile(rf"\d{{{_DIGITS}}}")


class HermesPlace:
    """Place in an output from which the parser's next words are known."""

    __slots__ = ("_digits", "_held", "_json", "_text", "_tool", "_waits", "index")

    def __init__(self, tool: Any, waits: int, index: int, text: str) -> None:
        self._tool = tool
        """vLLM's parser. Only functions of it that change nothing are called."""
        self._waits = waits
        self.index = index
        """Number of the call that arguments belong to; -1 in text."""
        self._text = text
        """Text of the call so far; outside of calls, as much of the end as may belong to a tag."""
        self._json = _OpenJson()
        self._held = ""
        """End of the text that the parser holds back."""
        self._digits = 0

    @classmethod
    def after(cls, parser: Any) -> HermesPlace | None:
        """Return the place of a DelegatingParser that has just read a token; None where it must see the next one."""
        state, tool = parser._stream_state, parser.tool_parser
        if not state.tool_call_text_started:
            return None
        text: str = state.previous_text
        if START not in text:
            shown = _without(text, START)
            return cls(tool, _TEXT, -1, text[len(shown) :]) if tool._sent_content_idx == len(shown) else None
        count, call = _last_call(text)
        seen: list[dict[str, Any]] = tool.prev_tool_call_arr
        if not seen:
            return None
        if "name" not in seen[-1]:
            return cls(tool, _NOTHING, 0, "") if call is None or len(seen) < count else cls(tool, _NAME, 0, call)
        if len(seen) != count:
            return None
        if call is None:
            return cls(tool, _BEHIND, 0, text[1 - len(START) :])
        place, sent = cls(tool, _ARGUMENTS, count - 1, call), tool.streamed_args_for_tool[-1]
        found = place._arguments()
        return place if found == sent and (not sent or place._begin_body()) else None

    @property
    def all_handed_on(self) -> bool:
        """Whether the parser has handed on all text, and no call has begun."""
        return self._waits == _TEXT and not self._text

    def take(self, text: str) -> str | None:
        """Take one token's text and return what it adds to text or arguments, often nothing; None where the parser must
        see it, which ends this place.
        """
        waits = self._waits
        if waits == _TEXT:
            return self._in_text(text)
        if waits == _BODY:
            return self._in_body(text)
        if waits == _NOTHING:
            return ""
        self._text += text
        if waits == _BEHIND:
            if ">" in text and START in self._text:
                return None
            self._text = self._text[1 - len(START) :]
            return ""
        if waits == _NAME:
            return None if '"' in text and self._tool._extract_tool_name(self._text) else ""
        if ">" in text and END in self._text:
            return None
        found = self._arguments()
        return found if not found or self._begin_body() else None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _in_text(self, text: str) -> str | None:
        held = self._text + text
        if "<" not in held:
            return held
        if START in held:
            return None
        shown = _without(held, START)
        self._text = held[len(shown) :]
        return shown

    def _arguments(self) -> str:
        """Return the arguments as the parser finds them in an open call."""
        return self._tool._extract_tool_args(_without(self._text, END).strip(), False) or ""

    def _begin_body(self) -> bool:
        """Go on with arguments that have begun. Return False where the call may be complete JSON already."""
        shown = _without(self._text, END).rstrip()
        if not shown.lstrip().startswith("{") or _LONG_NUMBER.search(shown) or not self._json.takes(shown):
            return False
        self._waits, self._held, self._text = _BODY, self._text[len(shown) :], ""
        return True

    def _in_body(self, text: str) -> str | None:
        held = self._held + text
        self._digits = self._digits + len(text) if text.isdecimal() else 0
        if self._digits > _DIGITS or not self._json.takes(text) or ("<" in held and END in held):
            return None
        shown = (_without(held, END) if "<" in held else held).rstrip()
        self._held = held[len(shown) :]
        return shown


class _OpenJson:
    """JSON of an object as it comes, as far as is needed to know that it is not complete."""

    __slots__ = ("_depth", "_quoted", "_unread")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._unread = ""

    def takes(self, text: str) -> bool:
        """Take more text. Return False where all brackets may be closed, or many are open."""
        self._unread += text
        if _BRACKETS.isdisjoint(text):
            return True
        signs = _SIGNS.findall(self._unread)
        self._unread = ""
        for sign in signs:
            if sign == '"':
                self._quoted = not self._quoted
            elif sign == "\\":
                # The end of the text: what it escapes follows.
                self._unread = sign
            elif not self._quoted and sign in _BRACKETS:
                self._depth += 1 if sign in "{[" else -1
                if not 0 < self._depth < _DEEPEST:
                    return False
        return True


def _last_call(text: str) -> tuple[int, str | None]:
    """Return the number of calls that have begun, and the text of the last one; None where it has ended."""
    count, begin = 0, text.find(START)
    while begin >= 0:
        count, begin = count + 1, begin + len(START)
        end = text.find(END, begin)
        if end < 0:
            return count, text[begin:]
        begin = text.find(START, end + len(END))
    return count, None


def _without(text: str, tag: str) -> str:
    """Return a text without an end that may be the beginning of a tag."""
    at = text.rfind("<")
    return text[:at] if at >= 0 and tag.startswith(text[at:]) else text
