"""Lua scripts and single commands, as a pipeline sends them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it."""

    name: str
    source: bytes
    sha: str
    """SHA-1 of the source in hex: the script's name in Redis."""


PLAIN = Script("command", b"", "")
"""Placeholder of a single command, which Redis can't have lost."""


def pack(*words: str | bytes | float) -> bytes:
    """Return a command in Redis' protocol."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
