"""The simulated KV cache: blocks of tokens. Prompts with the same beginning share blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class KvHold:
    """Blocks of one sequence."""

    hashes: list[int] = field(default_factory=list)
    """Hashes of shareable blocks, from the beginning of the prompt."""
    private: int = 0
    """Number of blocks after the shareable ones."""


class KvBlocks:
    """Counts of blocks: held by sequences, kept for their content, or free. Of the kept ones, the least recently used
    goes first.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self._total = total
        self._block_size = block_size
        self._holders: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def usage(self) -> float:
        """Part of the blocks that sequences hold, 0 to 1."""
        return self._held / self._total if self._total else 0.0

    @property
    def _held(self) -> int:
        return len(self._holders) + self._private

    @property
    def free(self) -> int:
        """Number of blocks that no sequence holds."""
        return self._total - len(self._holders) - self._private

    def take(self, blocks: int) -> bool:
        """Take private blocks for several sequences at once. Return False, and change nothing, if there is no room.

        The caller corrects `KvHold.private` of each sequence.
        """
        if blocks > self._total - len(self._holders) - self._private:
            return False
        self._private += blocks
        if self._kept:
            self._evict()
        return True

    def take_cached(self, hold: KvHold, hashes: Sequence[int]) -> int:
        """Take the longest known beginning of `hashes`. Return its number of tokens."""
        for block in hashes:
            if block in self._kept:
                del self._kept[block]
                self._holders[block] = 1
            elif block in self._holders:
                self._holders[block] += 1
            else:
                break
            hold.hashes.append(block)
        return len(hold.hashes) * self._block_size

    def fits(self, hold: KvHold, tokens: int) -> bool:
        """Return whether there is room to make the hold large enough for `tokens`."""
        return -(-tokens // self._block_size) - len(hold.hashes) - hold.private <= self.free

    def grow(self, hold: KvHold, tokens: int) -> bool:
        """Make the hold large enough for `tokens`. Return False, and change nothing, if there is no room."""
        more = -(-tokens // self._block_size) - len(hold.hashes) - hold.private
        if more <= 0:
            return True
        if not self.take(more):
            return False
        hold.private += more
        return True

    def publish(self, hold: KvHold, hashes: Sequence[int], computed: int) -> None:
        """Make the fully computed blocks of the prompt shareable."""
        for block in hashes[len(hold.hashes) : computed // self._block_size]:
            hold.private -= 1
            self._private -= 1
            self._kept.pop(block, None)
            # If another sequence computed the same block meanwhile, the two share it from now on.
            self._holders[block] = self._holders.get(block, 0) + 1
            hold.hashes.append(block)

    def release(self, hold: KvHold) -> None:
        """Free all blocks of the hold. Shareable ones stay known until their room is needed."""
        if hold.hashes:
            # The end of a prompt goes first, because its beginning serves more prompts.
            for block in reversed(hold.hashes):
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]
                    self._kept[block] = None
            hold.hashes.clear()
        self._private -= hold.private
        hold.private = 0

    def _evict(self) -> None:
        while self._held + len(self._kept) > self._total:
            self._kept.popitem(last=False)
