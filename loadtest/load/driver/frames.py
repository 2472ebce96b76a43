"""Messages between a Locust process and its driver: a length of four bytes, then msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

_HEAD = 4


def frame(kind: str, body: Any) -> bytes:
    packed: bytes = msgpack.packb([kind, body])
    return len(packed).to_bytes(_HEAD, "big") + packed


class Unframer:
    """Splitter of a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """Yield the messages that are complete now."""
        self._rest += data
        while len(self._rest) >= _HEAD:
            end = _HEAD + int.from_bytes(self._rest[:_HEAD], "big")
            if len(self._rest) < end:
                return
            kind, body = msgpack.unpackb(bytes(self._rest[_HEAD:end]), strict_map_key=False)
            del self._rest[:end]
            yield kind, body
