"""Keeps the garbage collector from stopping a process for long: what lives as long as the process is never looked at
again, and full collections, which look at everything else while all streams wait, come seldom where they take long.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

_YOUNG_OBJECTS = 10_000
"""Surviving allocations between two collections of the youngest generation; Python's 700 comes many times per frame."""
_MIDDLE = 10
"""Collections of the youngest generation per one of the middle one, and of those per full one; Python's own numbers."""
_NEVER = 1 << 30
FULL_SHARE = 1 / 300
"""Largest part of the time that full collections take. Ten thousand streams are some million objects, and a full
collection of them 0.3 to 1 s: it then comes after minutes, and garbage in cycles that outlived the younger generations
waits for it."""


class FullCollections:
    """Is a callback of the collector that bounds what full collections take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._next_at = 0.0
        self.held = False
        """Whether none comes for now."""

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """See `gc.callbacks`."""
        now = self._clock()
        if info["generation"] == 2:
            if phase == "start":
                self._began_at = now
                return
            self._next_at = now + (now - self._began_at) / FULL_SHARE
            self._hold(True)
        elif self.held and phase == "stop" and now >= self._next_at:
            self._hold(False)

    def _hold(self, held: bool) -> None:
        self.held = held
        gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE, _NEVER if held else _MIDDLE)


_FULL = FullCollections()


def settle_heap() -> None:
    """Call when a process has started; again is harmless."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE, _MIDDLE)
    if _FULL not in gc.callbacks:
        gc.callbacks.append(_FULL)
