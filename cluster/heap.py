"""Keeps the garbage collector away from what lives as long as the process."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 10_000
"""Surviving allocations between two collections of the youngest generation; Python's 700 comes many times per frame."""


def settle_heap() -> None:
    """Call once when a process has started: modules, models and tables are never looked at again.

    A full collection otherwise walks every object of every imported module, while all streams wait.
    """
    gc.collect()
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, middle, old)
