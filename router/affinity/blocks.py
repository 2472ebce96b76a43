"""Names the beginnings of a prompt: one digest per block, each over everything up to the block's end."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, repeat

BLOCKS_PER_SIZE = 64
"""So many blocks have the given size, so many the fourfold, and so on: a prompt of a million tokens has 400 blocks."""
GROWTH = 4
_SIZES = 12
_DIGEST_BYTES = 8
_TOKEN_BYTES = array("I").itemsize


@dataclass(frozen=True, slots=True)
class Trail:
    """Is what affinity knows of a request."""

    blocks: tuple[bytes, ...] = ()
    """Digests of the prompt's full blocks, shortest beginning first."""
    session: bytes = b""
    """Names the session; empty for none."""
    tokens: int = 0
    """Length of the prompt."""


def trail_of(
    ids: Sequence[int], scope: bytes, session: str, *, block_tokens: int, prefix: bool = True, sessions: bool = True
) -> Trail:
    """Name a prompt's beginnings and its session.

    Args:
        ids: the prompt's token ids.
        scope: what keeps caches apart: tenant salt and adapter. The same prompt in another scope has other names.
        session: the client's session id; empty for none.
        block_tokens: size of the first blocks. Only full blocks are named, as engines cache nothing less.
        prefix: whether beginnings are wanted.
        sessions: whether the session is wanted.
    """
    named = _digest(b"session\0" + scope + b"\0" + session.encode()) if sessions and session else b""
    blocks = tuple(_blocks(ids, scope, block_tokens)) if prefix else ()
    return Trail(blocks, named, len(ids))


def block_ends(block_tokens: int, tokens: int) -> tuple[int, ...]:
    """Return where the full blocks of a prompt of so many tokens end."""
    ends = _all_ends(block_tokens)
    return ends[: bisect_right(ends, tokens)]


@lru_cache(maxsize=16)
def _all_ends(block_tokens: int) -> tuple[int, ...]:
    sizes = chain.from_iterable(repeat(block_tokens * GROWTH**step, BLOCKS_PER_SIZE) for step in range(_SIZES))
    return tuple(accumulate(sizes))


def _blocks(ids: Sequence[int], scope: bytes, block_tokens: int) -> list[bytes]:
    if len(ids) < block_tokens:
        return []
    data = array("I", ids).tobytes()
    digest = _digest(b"prefix\0" + scope)
    digests = []
    start = 0
    for end in block_ends(block_tokens, len(ids)):
        stop = end * _TOKEN_BYTES
        digest = blake2b(digest + data[start:stop], digest_size=_DIGEST_BYTES).digest()
        digests.append(digest)
        start = stop
    return digests


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
