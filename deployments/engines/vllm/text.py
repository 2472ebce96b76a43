"""The text of a sequence, made from tokens by vLLM's detokenizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Text(Protocol):
    """Text of one sequence, piece by piece."""

    match: str
    """Stop string that the tokens completed; "" until one did."""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        """Return the text that these tokens release. Remove tokens after a stop string from the list.

        Args:
            token_ids: the new tokens.
            stop_token: whether the last of them ended the sequence; it has no text.
            last: whether nothing follows, so that nothing is held back.
        """
        ...

    def rest(self) -> str:
        """Return the text that is held back. Nothing may follow. A part of a character gives no text."""
        ...


class PlainText:
    """Text of a sequence without stop strings. It does not keep earlier text."""

    __slots__ = ("_decode", "match")

    def __init__(self, decode: Callable[[int], str]) -> None:
        """`decode` returns the text that one more token releases: "" inside a character."""
        self._decode = decode
        self.match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        ids = token_ids[:-1] if stop_token else token_ids
        if len(ids) == 1:
            return self._decode(ids[0])
        return "".join(map(self._decode, ids))

    def rest(self) -> str:
        return ""


class StoppableText:
    """Text that holds back the possible beginning of a stop string."""

    __slots__ = ("_detokenizer", "match")

    def __init__(self, detokenizer: Any) -> None:
        """`detokenizer` is vLLM's IncrementalDetokenizer. It may have had tokens already."""
        self._detokenizer = detokenizer
        self.match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        detokenizer = self._detokenizer
        before = detokenizer.num_output_tokens()
        self.match = detokenizer.update(token_ids, stop_token) or ""
        if self.match:
            # One step may bring more tokens than the one that completes the stop string.
            del token_ids[detokenizer.num_output_tokens() - before :]
        return str(detokenizer.get_next_output_text(last or bool(self.match), True))

    def rest(self) -> str:
        return str(self._detokenizer.get_next_output_text(True, True))
