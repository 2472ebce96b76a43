"""The simulated engine's scheduler with KV blocks that come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.engines.sim import BatchCore, CoreLimits
from deployments.engines.sim.kv import KvBlocks, KvHold
from loadtest.simulate.parts.tiers import TierStore


class LoadedBlocks(KvBlocks):
    """KV cache of a GPU with tiers below. What it computes goes to the tiers at once, and costs nothing there."""

    def __init__(self, total: int, block_size: int, tiers: TierStore | None) -> None:
        super().__init__(total, block_size)
        self._tiers = tiers

    def beginning(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks are here."""
        for number, block in enumerate(hashes):
            if block not in self._holders and block not in self._kept:
                return number
        return len(hashes)

    def load(self, before: Sequence[int], hashes: Sequence[int]) -> None:
        """Keep blocks that came from below. Others go for them; where the room is too small, so do the last of them.

        Args:
            before: the blocks before them, which stay if they are still here.
            hashes: the blocks that came.
        """
        for block in reversed(hashes):
            if block not in self._holders:
                self._kept[block] = None
                self._kept.move_to_end(block)
        for block in reversed(before):
            if block in self._kept:
                self._kept.move_to_end(block)
        self._evict()

    def publish(self, hold: KvHold, hashes: Sequence[int], computed: int) -> None:
        before = len(hold.hashes)
        super().publish(hold, hashes, computed)
        if self._tiers is not None:
            self._tiers.use(hold.hashes[before:])

    def release(self, hold: KvHold) -> None:
        if self._tiers is not None:
            # The end of a prompt goes first, as on the GPU.
            self._tiers.use(reversed(hold.hashes))
        super().release(hold)


class PartsCore(BatchCore):
    """Batch whose sequences may find KV entries that this engine did not compute."""

    def __init__(self, limits: CoreLimits, tiers: TierStore | None = None) -> None:
        super().__init__(limits)
        self.block_size = limits.block_size
        """Tokens per KV block."""
        self._kv: LoadedBlocks = LoadedBlocks(limits.kv_tokens // limits.block_size, limits.block_size, tiers)

    def usable(self, prompt_tokens: int, hashes: Sequence[int]) -> Sequence[int]:
        """Return the blocks of a prompt that need not be computed: not the one with its last token."""
        return hashes[: (prompt_tokens - 1) // self.block_size]

    def beginning(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks the GPU has."""
        return self._kv.beginning(hashes)

    def load(self, before: Sequence[int], hashes: Sequence[int]) -> None:
        """Take blocks that came from below, which follow those before."""
        self._kv.load(before, hashes)
