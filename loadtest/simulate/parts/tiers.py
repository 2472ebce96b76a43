"""KV blocks below the GPU: who keeps which, and how long a load takes. No clock: times are arguments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from loadtest.simulate.parts.settings import Tier


class Link:
    """Way for KV blocks. Transfers follow each other."""

    def __init__(self, gb_per_s: float, latency_s: float) -> None:
        self._bytes_per_s = 1e9 * gb_per_s
        self._latency_s = latency_s
        self._free_at = 0.0
        self.bytes = 0
        """All that were sent."""

    def send(self, size: int, now: float) -> float:
        """Return when a transfer ends that is asked for now."""
        self.bytes += size
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        return self._free_at + self._latency_s


class _Kept:
    """Blocks of one tier. The least recently used goes first."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def use(self, block: int) -> None:
        """Keep a block, as the one that was used last."""
        self._blocks[block] = None
        self._blocks.move_to_end(block)
        if len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


class Found(NamedTuple):
    """Where a part of a prompt's beginning is."""

    tier: str
    tokens: int


class TierStore:
    """Tiers of one replica. Each keeps what the GPU computed or used last, so a smaller one holds a part of a larger.

    Args:
        tiers: the fastest first.
        block_tokens: tokens per block.
        kv_bytes: of a token.
    """

    def __init__(self, tiers: Sequence[Tier], block_tokens: int, kv_bytes: int) -> None:
        self._block_tokens = block_tokens
        self._block_bytes = block_tokens * kv_bytes
        self._kept = {tier.name: _Kept(tier.tokens // block_tokens) for tier in tiers}
        self.links = {tier.name: Link(tier.gb_per_s, tier.latency_s) for tier in tiers}

    def use(self, blocks: Iterable[int]) -> None:
        """Keep blocks in every tier. The last one goes last."""
        for block in blocks:
            for kept in self._kept.values():
                kept.use(block)

    def find(self, blocks: Iterable[int]) -> list[Found]:
        """Return where the beginning of `blocks` is, up to the first that no tier has."""
        found: list[Found] = []
        for block in blocks:
            tier = next((name for name, kept in self._kept.items() if block in kept), None)
            if tier is None:
                break
            before = found.pop().tokens if found and found[-1].tier == tier else 0
            found.append(Found(tier, before + self._block_tokens))
        return found

    def load(self, found: Sequence[Found], now: float) -> float:
        """Begin to load what was found. Return when it is there."""
        sizes: dict[str, int] = {}
        for each in found:
            blocks = each.tokens // self._block_tokens
            sizes[each.tier] = sizes.get(each.tier, 0) + blocks * self._block_bytes
        return max((self.links[tier].send(size, now) for tier, size in sizes.items()), default=now)
