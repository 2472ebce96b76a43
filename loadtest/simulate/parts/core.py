"""The simulated engine's scheduler with KV blocks that come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

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
        self._blocks = LoadedBlocks(limits.kv_tokens // limits.block_size, limits.block_size, tiers)
        super().__init__(limits, self._blocks)
        self.block_size = limits.block_size
        """Tokens per KV block."""
        self._expected: dict[str, int] = {}
        """Tokens of sequences whose KV entries came with them, until they join the batch."""

    def expect(self, sequence_id: str, tokens: int) -> None:
        """Let the next sequence of this name have the KV entries of its first tokens. They share no blocks."""
        self._expected[sequence_id] = tokens

    def add(self, sequence_id: str, prompt_tokens: int, block_hashes: Sequence[int] = ()) -> None:
        came = self._expected.get(sequence_id)
        super().add(sequence_id, prompt_tokens, () if came is not None else block_hashes)
        self._entries[sequence_id].computed = came or 0

    def remove(self, sequence_id: str) -> None:
        self._expected.pop(sequence_id, None)
        super().remove(sequence_id)

    def _admit(self, shares: dict[Any, int], budget: int) -> list[Any]:
        admitted = super()._admit(shares, budget)
        if self._expected:
            for entry in admitted:
                # One that is preempted later computes its prompt here.
                self._expected.pop(entry.sequence_id, None)
            for entry in islice(self._waiting, 1):
                entry.computed = self._expected.get(entry.sequence_id, entry.computed)
        return admitted

    def _take_cached(self, entry: Any) -> None:
        if entry.sequence_id not in self._expected:
            super()._take_cached(entry)

    def usable(self, prompt_tokens: int, hashes: Sequence[int]) -> Sequence[int]:
        """Return the blocks of a prompt that need not be computed: not the one with its last token."""
        return hashes[: (prompt_tokens - 1) // self.block_size]

    def beginning(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks the GPU has."""
        return self._blocks.beginning(hashes)

    def load(self, before: Sequence[int], hashes: Sequence[int]) -> None:
        """Take blocks that came from below, which follow those before."""
        self._blocks.load(before, hashes)
