"""Stored form of bodies and results: compressed if that makes it smaller. The first byte says whether it is."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgpack

_PLAIN, _DEFLATED = b"\0", b"\1"
_WORTH_TRYING = 128
"""Bytes below which deflate's overhead exceeds its gain."""
_LEVEL = 1
"""Level that takes half the time of level 6 for a tenth more bytes on JSON-like text."""


def pack_blob(data: bytes) -> bytes:
    if len(data) >= _WORTH_TRYING:
        small = zlib.compress(data, _LEVEL)
        if len(small) < len(data):
            return _DEFLATED + small
    return _PLAIN + data


def unpack_blob(blob: bytes) -> bytes:
    """Undo `pack_blob`."""
    return zlib.decompress(blob[1:]) if blob[:1] == _DEFLATED else blob[1:]


def pack_block(items: Sequence[bytes]) -> bytes:
    """Pack items together: bodies of one job are similar, so they compress better with one dictionary."""
    return pack_blob(msgpack.packb(list(items)))


def unpack_block(blob: bytes) -> list[bytes]:
    """Undo `pack_block`."""
    items: list[bytes] = msgpack.unpackb(unpack_blob(blob))
    return items
