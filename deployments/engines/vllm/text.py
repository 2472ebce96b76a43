"""The text of a sequence: from the bytes of its tokens where these are all of it, else by vLLM's detokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cluster.token_bytes import TokenBytes, unfinished


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


class ByteDecoder:
    """Decoder of a sequence's tokens by their bytes.

    The Rust library's stream, which vLLM's detokenizer uses, decodes the last tokens twice for each new one, and the
    whole prompt at the first. Both give the same text in the same pieces: nothing while it ends inside of a character.
    """

    __slots__ = ("_bytes", "_held")

    def __init__(self, token_bytes: Mapping[int, bytes], held: bytes = b"") -> None:
        """`held` is a part of a character that came before."""
        self._bytes = token_bytes
        self._held = held

    def decode(self, token_id: int) -> str:
        """Return the text that one more token releases: "" inside a character."""
        data = self._held + self._bytes[token_id]
        text = data.decode("utf-8", "replace")
        if text.endswith(_UNFINISHED):
            self._held = data
            return ""
        if self._held:
            self._held = b""
        return text


_UNFINISHED = "\ufffd"
"""What stands for bytes that are no character, or not yet."""
_CHARACTER_BYTES = 4


class ByteTexts:
    """Maker of texts from the bytes of tokens, for one tokenizer."""

    def __init__(self, encoder: Any) -> None:
        """`encoder` is a `tokenizers.Tokenizer`."""
        self._shown, self._skipped = TokenBytes(encoder), TokenBytes(encoder, skip_special=True)
        self.exact = self._shown.exact
        """Whether texts of this tokenizer can be made so."""

    def after(self, prompt: Sequence[int], *, skip_special: bool) -> PlainText:
        """Return the text that follows a prompt, which may end inside of a character. `skip_special`: special tokens
        have no text.
        """
        token_bytes = self._skipped if skip_special else self._shown
        begun = unfinished(b"".join([token_bytes[each] for each in prompt[-_CHARACTER_BYTES:]]))
        return PlainText(ByteDecoder(token_bytes, begun).decode)


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
