"""Bound on the output that is kept for clients that read too slowly.

The deltas of a slow reader merge, so it costs memory only. That grows with the output, and log probabilities are a
hundred times as large as tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from weakref import WeakSet

from cluster.errors import SlowReaderError
from cluster.settings import RouterSettings
from router.generation.choice import Choice

_LOG = logging.getLogger(__name__)
LOOK_S = 2.0
WORTH_FOLLOWING = 1 << 16
"""Bytes. A choice that ended with less than that unread is not followed any more."""


class SlowReaders:
    """Clients of one pool of one router that leave output unread."""

    def __init__(self, choices: Mapping[str, Choice], per_stream: int, total: int) -> None:
        """`choices` are those that wait or run; the bounds are in bytes, estimated."""
        self._choices = choices
        self._per_stream = per_stream
        self._total = total
        self._ended: WeakSet[Choice] = WeakSet()
        self.unread = 0
        """Bytes of all, at the last look."""
        self.stopped = 0
        """Choices that were ended for it, since start."""

    @classmethod
    def of(cls, router: RouterSettings, choices: Mapping[str, Choice]) -> SlowReaders:
        """Watch choices within the bounds that the settings name."""
        return cls(choices, round(router.max_unread_mb * (1 << 20)), round(router.max_unread_total_mb * (1 << 20)))

    def follow(self, choice: Choice) -> None:
        """Go on counting what an ended choice's client has not read."""
        if choice.output.pending_bytes > WORTH_FOLLOWING:
            self._ended.add(choice)

    async def watch(self) -> None:
        """Look every two seconds, until cancelled. A stream grows by little between two looks."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """End the choices that keep more than one may, and then the largest until all together keep less."""
        sizes = [(choice.output.pending_bytes, choice) for choice in (*self._choices.values(), *self._ended)]
        self.unread = sum(size for size, _choice in sizes)
        if self.unread <= min(self._per_stream, self._total):
            return
        sizes.sort(key=lambda one: -one[0])
        for size, choice in sizes:
            if size <= self._per_stream and self.unread <= self._total:
                return
            self.unread -= size
            self.stopped += 1
            limit = self._per_stream if size > self._per_stream else self._total
            _LOG.warning("client.too_slow", extra={"request": choice.entry.request_id, "unread_bytes": size})
            choice.stop_unread(SlowReaderError(size, limit))
