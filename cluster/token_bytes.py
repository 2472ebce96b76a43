"""The bytes of single tokens, which together are the bytes of a text."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"
"""Token around others. Decoders treat the first and the last token of a text in another way."""


class TokenBytes(dict[int, bytes]):
    """Bytes of tokens by id, made when they are first asked for.

    The bytes of a sequence of tokens, one after another, are its text in UTF-8. Only the space before the first word of
    a text, which some tokenizers drop, is among them: the same token has it inside a text. An id without a token has no
    bytes.
    """

    def __init__(self, encoder: tokenizers.Tokenizer, *, skip_special: bool = False) -> None:
        """`skip_special`: special tokens have no bytes."""
        super().__init__()
        if skip_special:
            added = encoder.get_added_tokens_decoder()
            self.update({number: b"" for number, token in added.items() if token.special})
        self._name: Callable[[int], str | None] = encoder.id_to_token
        decoder = encoder.decoder
        self._decode: Callable[[Sequence[str]], str] = " ".join if decoder is None else decoder.decode
        kinds = set(_kinds(decoder))
        self._byte_level = "ByteLevel" in kinds
        self._only_bytes = kinds <= {"ByteLevel", "Sequence"}
        self._byte_fallback = "ByteFallback" in kinds
        self._left = self._decode([_ANCHOR])
        self._right = len(self._decode([_ANCHOR, _ANCHOR])) - len(self._left)

    @property
    def exact(self) -> bool:
        """Whether these bytes alone make the text: no decoder changes it by what stands beside a token."""
        return self._byte_level and self._only_bytes

    def __missing__(self, token_id: int) -> bytes:
        name = self._name(token_id)
        found = b"" if name is None else self._bytes(name)
        if name is not None:
            # Ids outside of the vocabulary are not kept: there are four billion of them.
            self[token_id] = found
        return found

    def _bytes(self, name: str) -> bytes:
        if self._byte_level:
            try:
                return bytes([_ALPHABET[character] for character in name])
            except KeyError:
                # An added token, such as one with a space in its name.
                return name.encode()
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(name)):
            return bytes([int(byte[1], 16)])
        whole = self._decode([_ANCHOR, name, _ANCHOR])
        return whole[len(self._left) : len(whole) - self._right].encode()


def unfinished(data: bytes) -> bytes:
    """Return the bytes at the end of a text that are the beginning of a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _kinds(decoder: Any) -> Iterator[str]:
    """Yield the names of a decoder's parts."""
    if decoder is None:
        return
    parts: list[Mapping[str, Any]] = [json.loads(decoder.__getstate__())]
    while parts:
        part = parts.pop()
        yield part["type"]
        parts += part.get("decoders", ())


def _alphabet() -> dict[str, int]:
    """Return the byte of each character in the names of byte-level tokens: printable Latin-1 stands for itself, and the
    other bytes have characters from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _alphabet()
