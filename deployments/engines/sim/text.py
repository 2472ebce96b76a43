"""From tokens to text for the simulated engine, with or without a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from cluster.digests import CONFIG_FILE, TOKENIZER_FILE

_PRINTABLE = range(32, 127)
"""Byte values that render as themselves when there is no tokenizer."""


class Vocabulary:
    """The tokens that exist and their texts.

    Args:
        files: tokenizer files by name; without tokenizer.json, tokens are bytes.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._tokenizer: Any = None
        self.natural_ids: Sequence[int] = _PRINTABLE
        self.size = 256
        self.end_id: int | None = None
        if TOKENIZER_FILE in files:
            self._load(files)

    def decoder(self) -> Callable[[int], str]:
        """Start a text. Call the result with one token after the other; it returns the text that each one adds."""
        if self._tokenizer is None:
            return lambda token: chr(token) if token in _PRINTABLE else ""
        from tokenizers.decoders import DecodeStream

        stream, tokenizer = DecodeStream(skip_special_tokens=True), self._tokenizer
        return lambda token: stream.step(tokenizer, token) or ""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. Without a tokenizer, other characters than printable ASCII have none."""
        if self._tokenizer is None:
            return [ord(character) for character in text if ord(character) in _PRINTABLE]
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def show(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included."""
        if self._tokenizer is None:
            return "".join(map(self.decoder(), token_ids))
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def _load(self, files: Mapping[str, bytes]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_buffer(files[TOKENIZER_FILE])
        added = self._tokenizer.get_added_tokens_decoder()
        self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        natural = [
            token
            for token in range(self.size)
            # Such a token is a part of a character. Texts made of these would be full of replacement characters.
            if token not in added and "\ufffd" not in self._tokenizer.decode([token])
        ]
        self.natural_ids = natural or [token for token in range(self.size) if token not in added]
        end = _end_token(files)
        self.end_id = self._tokenizer.token_to_id(end) if end else None


class StopText:
    """Text that watches for stop strings.

    The end of the text is held back as long as it could be the beginning of a stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held_back = max((len(each) for each in stop), default=1) - 1
        self._text = ""
        self._released = 0
        self.match = ""
        """Stop string that ended the text."""

    def add(self, text: str, *, may_stop: bool) -> None:
        """Append the text of a token. If it completes a stop string, set `match` and cut the text before it."""
        before = len(self._text)
        self._text += text
        if not may_stop or not text:
            return
        found = [
            (at + len(stop), at, stop)
            for stop in self._stop
            if (at := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if found:
            # Like vLLM: if several complete at once, the first in the list wins.
            _, at, self.match = min(found, key=itemgetter(0))
            self._text = self._text[:at]

    def release(self, *, ended: bool) -> str:
        """Return the text that can be sent now."""
        end = len(self._text) - (0 if ended or self.match else self._held_back)
        if end <= self._released:
            return ""
        start, self._released = self._released, end
        return self._text[start:end]

    def skip(self, characters: int) -> None:
        """Treat the first characters as sent."""
        self._released = characters


def _end_token(files: Mapping[str, bytes]) -> str:
    token = json.loads(files.get(CONFIG_FILE, b"{}")).get("eos_token")
    return token.get("content", "") if isinstance(token, dict) else token or ""
