"""Single Redis commands, as a lane takes them."""

from __future__ import annotations

from cluster.queue.scripts import Script

PLAIN = Script("command", b"", "")
"""Stands for a command that is no script; Redis can't have forgotten it."""


def pack(*words: str | bytes | float) -> bytes:
    """Write a command in Redis' protocol."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
