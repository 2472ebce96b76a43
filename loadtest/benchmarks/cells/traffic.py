"""Arrivals of a simulated pool, a second at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from cluster.queue.cells.choice import home
from loadtest.benchmarks.cells.model_line import CellEntry
from loadtest.benchmarks.cells.phases import DAY, WHOLE, Day, Moment
from loadtest.benchmarks.cells.setup import CLASS_PARTS, EXPECTED_TOKENS, PoolSize

_SPREAD = 0.6
"""Standard deviation of the logarithm of lengths."""
_LONGEST = 20
"""Longest length in medians."""
_PERIOD_S = 60


class PoolTraffic:
    """Requests of all tenants. The same seed gives the same requests, whatever the number of cells."""

    def __init__(self, size: PoolSize) -> None:
        self._size = size
        self._draw = np.random.default_rng(size.seed)
        parts = 1.0 / np.arange(1, size.tenants + 1) ** size.skew
        # The largest tenants are not the first by name.
        self._names = self._draw.permutation(size.tenants)
        self._until = np.cumsum(parts) / parts.sum()
        self.pinned = self._draw.random(size.tenants) < size.pinned
        self.weights = [(1.0, 2.0, 4.0)[number % 3] if size.weights else 1.0 for number in range(size.tenants)]
        self.part = np.zeros(size.tenants)
        """Part of the requests by tenant."""
        self.part[self._names] = parts / parts.sum()
        self._classes = np.cumsum(CLASS_PARTS)
        self._number = 0
        self.day = Day(DAY if size.day else WHOLE, size.seconds)
        self._homes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Tenants that must go to a cell, and the sums of their parts of the requests, by cell."""

    def moment(self, second: int) -> Moment | None:
        """Return what holds in a second; None in the warm-up."""
        measured = second - self._size.warm_up
        return self.day.at(measured) if measured >= 0 else None

    def homes(self) -> list[float]:
        """Return the part of all requests that must go to each cell."""
        found = [0.0] * self._size.cells
        for tenant in np.flatnonzero(self.pinned).tolist():
            found[home(tenant_name(tenant), self._size.cells)] += float(self.part[tenant])
        return found

    def rate(self, second: int) -> float:
        """Return the requests of a second, as expected."""
        size, measured = self._size, second - self._size.warm_up
        rate = size.rate * (1 + size.swing * math.sin(2 * math.pi * second / _PERIOD_S))
        if (moment := self.moment(second)) is not None:
            rate *= moment.rate
        return rate * size.burst if 0.45 * size.seconds <= measured < 0.55 * size.seconds else rate

    def _heat(self, second: int, tenants: np.ndarray) -> np.ndarray:
        """Let a part of the requests be those of tenants of the hot home."""
        moment = self.moment(second)
        if moment is None or not moment.phase.hot:
            return tenants
        numbers, until = self._at_home(moment.hot_home % self._size.cells)
        if not len(numbers):
            return tenants
        draw = self._draw
        hot = draw.random(len(tenants)) < moment.phase.hot / self._size.cells
        own = numbers[np.searchsorted(until, draw.random(len(tenants)), side="right").clip(0, len(numbers) - 1)]
        return np.where(hot, own, tenants)

    def _at_home(self, cell: int) -> tuple[np.ndarray, np.ndarray]:
        if cell not in self._homes:
            tenants = np.flatnonzero(self.pinned).tolist()
            fixed = [each for each in tenants if home(tenant_name(each), self._size.cells) == cell]
            numbers = np.array(fixed, dtype=np.int64)
            parts = np.cumsum(self.part[numbers])
            self._homes[cell] = numbers, parts / parts[-1] if len(parts) else parts
        return self._homes[cell]

    def second(self, second: int) -> Iterator[tuple[int, CellEntry, bool]]:
        """Yield a second's arrivals in order: the millisecond, the entry, and whether it follows one of its tenant."""
        size, draw = self._size, self._draw
        count = int(draw.poisson(self.rate(second)))
        at = np.sort(draw.integers(0, 1000, count)) + 1000 * second
        tenants = self._names[np.searchsorted(self._until, draw.random(count), side="right").clip(0, size.tenants - 1)]
        tenants = self._heat(second, tenants)
        classes = np.searchsorted(self._classes, draw.random(count), side="right").clip(0, 2)
        prompts, outputs = self._lengths(size.prompt, count), self._lengths(size.output, count)
        follows = draw.random(count) < size.affinity
        routers = draw.integers(0, size.routers, count)
        pinned, weights = self.pinned[tenants], self.weights
        columns = (at, tenants, classes, prompts, outputs, follows, routers, pinned)
        for moment, tenant, which, prompt, output, after, router, fixed in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            self._number += 1
            weight = weights[tenant]
            entry = CellEntry(self._number, tenant, which, prompt=prompt, expected=EXPECTED_TOKENS, weight=weight)
            entry.router, entry.output, entry.arrived_ms, entry.pinned = router, output, moment, fixed
            yield moment, entry, after

    def _lengths(self, median: int, count: int) -> np.ndarray:
        drawn = median * np.exp(_SPREAD * self._draw.standard_normal(count))
        return np.clip(drawn, 1, _LONGEST * median).astype(np.int64)


@cache
def tenant_name(number: int) -> str:
    """Return a tenant's name. The order of names is that of the numbers."""
    return f"tenant-{number:07d}"


@cache
def replica_name(number: int) -> str:
    """Return a replica's name."""
    return f"replica-{number:06d}"
