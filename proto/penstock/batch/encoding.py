"""Guess of what a line is that is not UTF-8. Pure.

Files are read so that bytes that are not UTF-8 become halves of surrogate pairs (Python's "surrogateescape"). So a bad
byte is found with its line, and the lines before it are read as usual.
"""

from __future__ import annotations

import json

ESCAPED = "surrogateescape"
"""How files are read whose lines are checked here: the argument `errors` of `open`."""
_BEGINNINGS = (
    (b"\x1f\x8b", "a gzip file: unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file: unpack it"),
    (b"\xfd7zXZ", "an xz file: unpack it"),
    (b"BZh", "a bzip2 file: unpack it"),
    (b"PK\x03\x04", "a zip file: unpack it"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xfe", "UTF-16: convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16: convert it to UTF-8"),
)
_GUESSES = tuple((beginning.decode(errors=ESCAPED), guess) for beginning, guess in _BEGINNINGS)


def encoding_problem(text: str) -> str | None:
    """Return what is wrong with the encoding of a line; None for nothing."""
    guess = next((guess for beginning, guess in _GUESSES if text.startswith(beginning)), None)
    if guess is None and "\0" in text:
        # JSON writes this character as \u0000. UTF-16 has it beside every Latin letter.
        guess = "UTF-16: convert it to UTF-8"
    if guess is not None:
        return f"is not UTF-8 text; it looks like {guess}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = error.start
    else:
        return None
    if (byte := _byte(text[at])) is None:
        return f"has half of a surrogate pair, which is no character, at column {at + 1}"
    # In one-byte encodings of Western languages most letters are ASCII, so few of the others are neighbours.
    alone = sum(_byte(character) is not None for character in text[max(0, at - 1) : at + 2]) == 1
    guess = "Latin-1 or Windows-1252" if alone else "another encoding"
    return f"is not UTF-8: byte 0x{byte:02x} at column {at + 1}; the file may be {guess}"


def _byte(character: str) -> int | None:
    """Return the byte that a half of a surrogate pair stands for; None for any other character."""
    number = ord(character)
    return number - 0xDC00 if 0xDC80 <= number <= 0xDCFF else None


def is_unicode(value: object) -> bool:
    """Return whether no text of a JSON value has half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
