"""Names of a prompt's beginnings: one number per block, computed from all tokens up to the block's end."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, repeat

BLOCKS_PER_SIZE = 32
"""Number of blocks of each size, the given one first: a prompt of a million tokens has 200 blocks."""
GROWTH = 4
"""Factor from each size to the next."""
_SIZES = 12
COLD_TOKENS = 1_024
"""Number of first tokens by which a prompt's home is drawn. With fewer, one shared beginning would draw all prompts to
one replica. With more, the home would move while a conversation grows."""
_TOKEN_BYTES = array("I").itemsize


@dataclass(frozen=True, slots=True)
class Trail:
    """A request as prefix affinity sees it."""

    blocks: tuple[int, ...] = ()
    """Names of the prompt's full blocks, shortest beginning first. Other processes have other names."""
    session: int | None = None
    """Name of the session in this process; None for none."""
    place: bytes = b""
    """Key that draws the home, the same at every router; empty for a request without a home."""
    tokens: int = 0
    """Length of the prompt."""
    of_adapter: bool = False
    """Whether the home is that of the request's adapter."""


def trail_of(
    ids: Sequence[int], scope: bytes, session: str, *, block_tokens: int, prefix: bool = True, sessions: bool = True
) -> Trail:
    """Name a prompt's beginnings and its session.

    Args:
        ids: the prompt's token ids.
        scope: tenant salt and adapter, which separate caches. The same prompt has other names in another scope.
        session: the client's session id; empty for none.
        block_tokens: size of the first blocks. Only full blocks get a name, because engines cache only full blocks.
        prefix: whether to name beginnings.
        sessions: whether to name the session.
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


def adapter_place(adapter: str) -> bytes:
    """Return the key that draws the home of an adapter: one for all tenants and prompts."""
    return _digest(b"adapter", b"", adapter.encode())


def block_ends(block_tokens: int, tokens: int) -> tuple[int, ...]:
    """Return the ends of the full blocks of a prompt with this number of tokens."""
    ends = _all_ends(block_tokens)
    return ends[: bisect_right(ends, tokens)]


@lru_cache(maxsize=16)
def _all_ends(block_tokens: int) -> tuple[int, ...]:
    sizes = chain.from_iterable(repeat(block_tokens * GROWTH**step, BLOCKS_PER_SIZE) for step in range(_SIZES))
    return tuple(accumulate(sizes))


def _names(data: bytes, ends: Sequence[int], scope: bytes) -> tuple[int, ...]:
    # Python's own hash of bytes has a secret key per process, so a client can't choose a prompt that has another one's
    # name. It is 30 times as fast as a digest.
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
