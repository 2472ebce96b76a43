"""Lua scripts and single commands, as a pipeline sends them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """Script as Redis gets it."""

    name: str
    source: bytes
    sha: str
    """SHA-1 of the source, in hexadecimal digits: its name in Redis."""


PLAIN = Script("command", b"", "")
"""Stands for a single command, which Redis can't have forgotten."""


def pack(*words: str | bytes | float) -> bytes:
    """Write a command in Redis' protocol."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
