"""Prompts of an exact length. Their content means nothing; only what they share counts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from loadtest.load.schedule.plan import Planned

_FIRST = 3
"""Small ids are often special tokens."""


class Prompts:
    """Makes prompts for one model.

    Args:
        vocabulary: token ids are below this.
        context: longest prompt and output together; 0: unknown.
        seed: of all content.
    """

    def __init__(self, vocabulary: int, context: int, seed: int) -> None:
        self._first = min(_FIRST, max(0, vocabulary - 1))
        self._vocabulary = max(vocabulary, self._first + 1)
        self._context = context
        self._seed = seed
        self._shared = lru_cache(maxsize=256)(self._draw)

    def lengths(self, planned: Planned) -> tuple[int, int]:
        """Return prompt and output tokens, cut to what the context holds."""
        prompt, output = planned.prompt_tokens, planned.output_tokens
        if not self._context or prompt + output <= self._context:
            return prompt, output
        output = max(1, min(output, self._context // 4))
        return max(1, min(prompt, self._context - output)), output

    def ids(self, planned: Planned, tokens: int) -> Sequence[int]:
        """Make a prompt of so many tokens."""
        if planned.blocks:
            parts = [self._shared(f"block-{block}", planned.block_tokens) for block in planned.blocks]
            return [token for part in parts for token in part][:tokens]
        shared = min(planned.shared_tokens, tokens - 1)
        own = self._draw(f"{planned.kind}/{planned.number}/{planned.at_s}", tokens - max(0, shared))
        return [*self._shared(planned.group, shared), *own] if shared > 0 else own

    def _draw(self, name: str, count: int) -> list[int]:
        # numpy draws 100,000 tokens in a millisecond; the standard library would hold the event loop up for fifty.
        drawn = np.random.default_rng([self._seed & 0xFFFFFFFF, zlib.crc32(name.encode())])
        made: list[int] = drawn.integers(self._first, self._vocabulary, count).tolist()
        return made
