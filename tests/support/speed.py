"""How much slower this machine is than the one on which the tests' time limits were chosen."""

from __future__ import annotations

import functools
import time

LEAST, MOST = 1.0, 4.0
_ROUNDS = 400_000
_QUIET_S = 0.05
"""Seconds that one measurement takes on a quiet core of the machine on which the limits were chosen."""


def measured() -> float:
    """Return the factor now, 1 to 4. Takes a twentieth of a second on a quiet machine, and counts what else runs."""
    began = time.perf_counter()
    value = 0
    for number in range(_ROUNDS):
        value = (value * 31 + number) & 0xFFFF
    return bounded((time.perf_counter() - began) / _QUIET_S)


def bounded(factor: float) -> float:
    """Return a factor between the two bounds: a fast machine keeps the limits, a stuck one must not wait for ever."""
    return min(MOST, max(LEAST, factor))


@functools.cache
def patience() -> float:
    """Return the factor measured when this process asked first, by which helpers stretch their time limits."""
    return measured()
