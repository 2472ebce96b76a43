"""Output cut into single tokens with their text.

Many of vLLM's parsers look for a special token and for its text in the same piece of output. They are right only where
each piece is one token. A delta may have several, and its text may lag behind its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence


class TokenTexts:
    """Splitter of one sequence's output. What it gives depends on tokens and text alone, not on the deltas."""

    __slots__ = ("_begin", "_decode", "_ids", "_left", "_waiting")

    def __init__(self, begin: Callable[[], Callable[[int], str]], *, lags: bool) -> None:
        """`begin` starts to decode the output: its result returns the text that one more token adds. `lags`: whether
        text may come after the tokens that it belongs to.
        """
        self._begin = begin
        self._decode = begin() if lags else None
        """None as long as each delta was one token with its text."""
        self._ids: list[int] = []
        """Tokens that were not decoded here."""
        self._waiting: deque[tuple[int, str]] = deque()
        """Tokens whose text has not come yet."""
        self._left = ""
        """Text that belongs to tokens that wait."""

    def alone(self, token_ids: Sequence[int]) -> bool:
        """Return whether a delta is one token with its own text. It is taken then, and not to be split."""
        if self._decode is not None or len(token_ids) != 1:
            return False
        self._ids.append(token_ids[0])
        return True

    def split(self, token_ids: Sequence[int], text: str, *, last: bool) -> Iterator[tuple[list[int], str]]:
        """Yield single tokens with their text. With `last`, those whose text does not come too, and all of the text."""
        if self._decode is None:
            if self.alone(token_ids):
                yield [token_ids[0]], text
                return
            if not token_ids:
                if text:
                    yield [], text
                return
            self._decode = self._begin()
            for token in self._ids:
                self._decode(token)
            self._ids.clear()
        decode, waiting = self._decode, self._waiting
        waiting.extend((token, decode(token)) for token in token_ids)
        left = self._left + text
        while waiting and len(waiting[0][1]) <= len(left):
            token, own = waiting.popleft()
            size = len(own)
            yield [token], left[:size]
            left = left[size:]
        self._left = left
        if last:
            self._left = ""
            # The text is cut before a stop string, and the model's end has none.
            for number, (token, _) in enumerate(waiting):
                yield [token], "" if number else left
            if left and not waiting:
                yield [], left
            waiting.clear()

    def left(self) -> str:
        """Return the text that has come and was not given. It is not given any more."""
        left, self._left = self._left, ""
        return left
