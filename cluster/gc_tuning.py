"""Memory of long-lived processes: tuning of the garbage collector, so that it does not stop a process for long, and
memory that goes back to the system.

Objects that live as long as the process are excluded from collection. Full collections scan all other objects while
every stream waits, so they become rare where they take long.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_YOUNG_OBJECTS = 10_000
"""Surviving allocations between two collections of the youngest generation. Python's default of 700 is reached many
times per frame."""
_MIDDLE = 10
"""Number of collections of the youngest generation per collection of the middle one, and of those per full one;
Python's own number for both."""
_NEVER = 1 << 30
FULL_SHARE = 1 / 300
"""Largest part of the time that full collections may take. Ten thousand streams are some million objects, and a full
collection of them takes 0.3 to 1 s. It then comes after minutes, and until then garbage in cycles that outlived the
younger generations stays in memory."""


class FullCollections:
    """Callback of the collector that bounds the time of full collections."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._next_at = 0.0
        self.held = False
        """Whether full collections are switched off for now."""

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Measure a full collection and switch further ones off until they fit FULL_SHARE; `gc.callbacks` calls it."""
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


def collect_rarely() -> None:
    """Set the thresholds. Call it before large imports: with Python's own thresholds the import of vLLM collects 1,500
    times, for a fifth of its time.
    """
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE, _MIDDLE)


def settle_heap() -> None:
    """Exclude all present objects from collection and set the thresholds. Call it when a process has started; further
    calls are harmless.
    """
    gc.collect()
    gc.freeze()
    collect_rarely()
    if _FULL not in gc.callbacks:
        gc.callbacks.append(_FULL)


def trim_heap() -> None:
    """Give memory that is free in the C library back to the system, where the library can. It keeps hundreds of
    megabytes otherwise. Takes up to 0.1 s. Other Python code runs meanwhile, but waits where it allocates from a part
    of the heap that is being trimmed: call it in a thread, and seldom.
    """
    if (trim := _trimmer()) is not None:
        trim(0)


@cache
def _trimmer() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        # Only glibc has it.
        return None
