"""What is counted in the measured part of a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from loadtest.benchmarks.cells.model_cell import CLASSES
from loadtest.benchmarks.cells.model_line import CellEntry
from loadtest.benchmarks.cells.setup import PREFILL_MS, SLO_MS, PoolSize


@dataclass(slots=True)
class CellTally:
    """Counts of one simulation."""

    size: PoolSize
    arrived: int = 0
    granted: int = 0
    ended: int = 0
    in_time: list[int] = field(default_factory=lambda: [0] * CLASSES)
    """Requests with the first token in the time of their class, by class."""
    by_class: list[int] = field(default_factory=lambda: [0] * CLASSES)
    waits: Counter[int] = field(default_factory=Counter)
    """Requests by milliseconds of waiting."""
    longest: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("free", "pinned", "small"), 0))
    """Longest wait in milliseconds by kind of request; small: of tenants with less than a mean one's requests."""
    late: Counter[str] = field(default_factory=Counter)
    """Requests beyond their class's time, by kind."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Requests by kind."""
    moved: int = 0
    """Moves of requests."""
    most_moved: int = 0
    """Most moves of one request."""
    replicas_moved: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    """Script calls by kind."""
    idle_beside_a_line: list[float] = field(default_factory=list)
    """Part of all slots that is free while requests wait elsewhere for as many, second by second."""
    spread: list[float] = field(default_factory=list)
    """Largest difference of the cells' work per room, second by second."""
    served: np.ndarray = field(init=False)
    """Tokens of granted requests by class and tenant."""
    asked: np.ndarray = field(init=False)
    """Tokens of requests that arrived, or waited when the measured time began."""
    small: list[bool] = field(default_factory=list)
    """Whether a tenant sends less than the mean one."""

    def __post_init__(self) -> None:
        """Make room for the tenants."""
        self.served, self.asked = (np.zeros((CLASSES, self.size.tenants)) for _ in range(2))

    def came(self, entry: CellEntry) -> None:
        """Count an arrival."""
        self.arrived += 1
        self.asked[entry.request_class, entry.tenant] += entry.prompt + entry.output

    def got_slot(self, entry: CellEntry, wait_ms: int) -> None:
        """Count a request that begins."""
        self.granted += 1
        self.waits[wait_ms] += 1
        self.served[entry.request_class, entry.tenant] += entry.prompt + entry.output
        self._judge(entry, wait_ms)

    def waits_still(self, entry: CellEntry, wait_ms: int) -> None:
        """Count a request that waits at the end, if that is longer than others waited."""
        for kind in self._kinds(entry):
            self.longest[kind] = max(self.longest[kind], wait_ms)
        if wait_ms + entry.prompt * PREFILL_MS > SLO_MS[entry.request_class]:
            self._judge(entry, wait_ms)

    def _kinds(self, entry: CellEntry) -> tuple[str, ...]:
        kind = "pinned" if entry.pinned else "free"
        return (kind, "small") if self.small[entry.tenant] else (kind,)

    def _judge(self, entry: CellEntry, wait_ms: int) -> None:
        which = entry.request_class
        self.by_class[which] += 1
        good = wait_ms + entry.prompt * PREFILL_MS <= SLO_MS[which]
        self.in_time[which] += good
        for kind in self._kinds(entry):
            self.kinds[kind] += 1
            self.late[kind] += not good
            if wait_ms > self.longest[kind]:
                self.longest[kind] = wait_ms

    def wait(self, part: float) -> int:
        """Return the wait that this part of the requests does not exceed, in milliseconds."""
        left = part * self.waits.total()
        for wait_ms in sorted(self.waits):
            left -= self.waits[wait_ms]
            if left <= 0:
                return wait_ms
        return 0
