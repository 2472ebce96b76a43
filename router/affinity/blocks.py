"""Names the beginnings of a prompt: one number per block, each over everything up to the block's end."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, repeat

BLOCKS_PER_SIZE = 32
"""So many blocks have the given size, so many the fourfold, and so on: a prompt of a million tokens has 200 blocks."""
GROWTH = 4
_SIZES = 12
COLD_TOKENS = 1_024
"""A prompt's home is drawn by so many of its first tokens: fewer, and a shared beginning would gather all; more, and
the home would move while a conversation grows."""
_TOKEN_BYTES = array("I").itemsize


@dataclass(frozen=True, slots=True)
class Trail:
    """Is what affinity knows of a request."""

    blocks: tuple[int, ...] = ()
    """Names of the prompt's full blocks, shortest beginning first; they mean something to this process only."""
    session: int | None = None
    """Names the session, to this process only; None for none."""
    place: bytes = b""
    """Draws the home, the same at every router; empty for a request without one."""
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
    blocks: tuple[int, ...] = ()
    place = b""
    if prefix and len(ids) >= block_tokens:
        data = array("I", ids).tobytes()
        ends = block_ends(block_tokens, len(ids))
        blocks = _names(data, ends, scope)
        first = ends[bisect_right(ends, COLD_TOKENS) - 1] if ends[0] <= COLD_TOKENS else ends[0]
        place = _digest(b"prefix", scope, data[: first * _TOKEN_BYTES])
    if not (sessions and session):
        return Trail(blocks, None, place, len(ids))
    return Trail(blocks, hash((scope, session)), _digest(b"session", scope, session.encode()), len(ids))


def block_ends(block_tokens: int, tokens: int) -> tuple[int, ...]:
    """Return where the full blocks of a prompt of so many tokens end."""
    ends = _all_ends(block_tokens)
    return ends[: bisect_right(ends, tokens)]


@lru_cache(maxsize=16)
def _all_ends(block_tokens: int) -> tuple[int, ...]:
    sizes = chain.from_iterable(repeat(block_tokens * GROWTH**step, BLOCKS_PER_SIZE) for step in range(_SIZES))
    return tuple(accumulate(sizes))


def _names(data: bytes, ends: Sequence[int], scope: bytes) -> tuple[int, ...]:
    # Python's own hash of bytes is keyed per process, so nobody can aim at another one's names, and 30 times as fast
    # as a digest.
    name = hash(scope)
    names = []
    start = 0
    for end in ends:
        stop = end * _TOKEN_BYTES
        name = hash((name, data[start:stop]))
        names.append(name)
        start = stop
    return tuple(names)


def _digest(kind: bytes, scope: bytes, data: bytes) -> bytes:
    return blake2b(kind + b"\0" + scope + b"\0" + data, digest_size=8).digest()
