"""Time as a dependency, so that policies can be tested by moving it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time. `wall_ms` may jump, `monotonic` never does."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.monotonic()


class ManualClock:
    """Clock that stands still until it is moved; for tests and simulations."""

    def __init__(self, wall_ms: int = 1_000_000) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic = 0.0

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return int(self._wall_ms)

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._wall_ms += seconds * 1000
        self._monotonic += seconds

    def jump_wall(self, seconds: float) -> None:
        """Step the wall clock only, as an NTP correction does; negative seconds step it back."""
        self._wall_ms += seconds * 1000
