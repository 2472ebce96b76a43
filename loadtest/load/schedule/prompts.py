"""Prompts of an exact length. Their content has no meaning; only their shared parts count."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from loadtest.load.schedule.plan import PlannedRequest

_FIRST = 3
"""First id to use. Small ids are often special tokens."""


class Prompts:
    """Source of prompts for one model.

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

    def lengths(self, planned: PlannedRequest) -> tuple[int, int]:
        """Return prompt and output tokens, cut to fit in the context."""
        prompt, output = planned.prompt_tokens, planned.output_tokens
        if not self._context or prompt + output <= self._context:
            return prompt, output
        output = max(1, min(output, self._context // 4))
        return max(1, min(prompt, self._context - output)), output

    def ids(self, planned: PlannedRequest, tokens: int) -> Sequence[int]:
        """Return a prompt of this many tokens."""
        if planned.blocks:
            parts = [self._shared(f"block-{block}", planned.block_tokens) for block in planned.blocks]
            return [token for part in parts for token in part][:tokens]
        shared = min(planned.shared_tokens, tokens - 1)
        own = self._draw(f"{planned.kind}/{planned.number}/{planned.at_s}", tokens - max(0, shared))
        return [*self._shared(planned.group, shared), *own] if shared > 0 else own

    def _draw(self, name: str, count: int) -> list[int]:
        # numpy draws 100,000 tokens in a millisecond. The standard library would block the event loop for fifty.
        drawn = np.random.default_rng([self._seed & 0xFFFFFFFF, zlib.crc32(name.encode())])
        made: list[int] = drawn.integers(self._first, self._vocabulary, count).tolist()
        return made
