"""Turns a sequence's tokens into text with vLLM's detokenizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Text(Protocol):
    """Gives the text of one sequence, piece by piece."""

    match: str
    """The stop string that the tokens so far completed; "" until one did."""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        """Return the text that these tokens release. Takes out of the list what follows a stop string.

        Args:
            token_ids: new ones.
            stop_token: the last of them ended the sequence; it has no text.
            last: nothing follows, so nothing is held back.
        """
        ...

    def rest(self) -> str:
        """Return what is held back; nothing follows. Part of a character is no text."""
        ...


class PlainText:
    """Is the text of a sequence without stop strings, whose text so far nobody needs."""

    __slots__ = ("_decode", "match")

    def __init__(self, decode: Callable[[int], str]) -> None:
        """`decode` returns what one more token releases: "" inside a character."""
        self._decode = decode
        self.match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        """See `Text`."""
        ids = token_ids[:-1] if stop_token else token_ids
        if len(ids) == 1:
            return self._decode(ids[0])
        return "".join(map(self._decode, ids))

    def rest(self) -> str:
        """See `Text`."""
        return ""


class StoppableText:
    """Holds back what may be the beginning of a stop string."""

    __slots__ = ("_detokenizer", "match")

    def __init__(self, detokenizer: Any) -> None:
        """`detokenizer`: vLLM's IncrementalDetokenizer; it may have had tokens already."""
        self._detokenizer = detokenizer
        self.match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        """See `Text`."""
        detokenizer = self._detokenizer
        before = detokenizer.num_output_tokens()
        self.match = detokenizer.update(token_ids, stop_token) or ""
        if self.match:
            # One step may bring more tokens than the one that completes the stop string.
            del token_ids[detokenizer.num_output_tokens() - before :]
        return str(detokenizer.get_next_output_text(last or bool(self.match), True))

    def rest(self) -> str:
        """See `Text`."""
        return str(self._detokenizer.get_next_output_text(True, True))
