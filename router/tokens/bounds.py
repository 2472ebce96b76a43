"""Bounds on the memory that encoding takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from cluster.gc_tuning import trim_heap

T = TypeVar("T")

LARGE_CHARACTERS = 1 << 20
"""Length from which texts are encoded one at a time. Each takes a hundred bytes per character meanwhile."""
TRIM_CHARACTERS = 2 << 20
"""Characters after which the memory that encoding leaves behind is given back. They take over half a second."""


class EncodingBounds:
    """Bounds of all tokenizers of a process. Only threads beside the event loop encode within them, because giving
    memory back takes a while.
    """

    def __init__(self, trim: Callable[[], None] = trim_heap) -> None:
        """`trim` gives memory back."""
        self._trim = trim
        self._large, self._counting = threading.Lock(), threading.Lock()
        self._characters = 0
        """Characters that were encoded since memory was given back."""

    def run(self, call: Callable[[], T], characters: int) -> T:
        """Encode so many characters, a large text alone."""
        with self._large if characters >= LARGE_CHARACTERS else nullcontext():
            found = call()
        with self._counting:
            self._characters += characters
            due = self._characters >= TRIM_CHARACTERS
            if due:
                self._characters = 0
        if due:
            self._trim()
        return found
