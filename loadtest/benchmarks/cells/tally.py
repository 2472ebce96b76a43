"""What is counted in the measured part of a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from loadtest.benchmarks.cells.model_cell import CLASSES
from loadtest.benchmarks.cells.model_line import CellEntry
from loadtest.benchmarks.cells.setup import PREFILL_MS, SLO_MS, PoolSize


@dataclass(slots=True, eq=False)
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
    longest_by_class: list[int] = field(default_factory=lambda: [0] * CLASSES)
    """Longest wait in milliseconds by class."""
    unavailable: int = 0
    """Requests whose cell did not answer; their clients get an error."""
    moved: int = 0
    """Moves of requests."""
    most_moved: int = 0
    """Most moves of one request."""
    replicas_moved: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    """Script calls by kind."""
    idle_beside_a_line: list[float] = field(default_factory=list)
    """Part of all slots that is free while requests wait elsewhere for as many, second by second."""
    busy: list[float] = field(default_factory=list)
    """Part of the slots of cells that answer that is in use, second by second."""
    spread: list[float] = field(default_factory=list)
    """Largest difference of the cells' work per room, second by second."""
    served: list[list[int]] = field(init=False)
    """Tokens of granted requests by class and tenant."""
    asked: list[list[int]] = field(init=False)
    """Tokens of requests that arrived."""
    carried: list[list[int]] = field(init=False)
    """Tokens of requests that waited when this began."""
    small: list[bool] = field(default_factory=list)
    """Whether a tenant sends less than the mean one."""

    def __post_init__(self) -> None:
        """Make room for the tenants."""
        self.served, self.asked, self.carried = ([[0] * self.size.tenants for _ in range(CLASSES)] for _ in range(3))

    def due(self) -> np.ndarray:
        """Return the tokens that each tenant wanted, by class."""
        wanted: np.ndarray = np.array(self.asked, dtype=float) + np.array(self.carried)
        return wanted

    def came(self, entry: CellEntry) -> None:
        """Count an arrival."""
        self.arrived += 1
        self.asked[entry.request_class][entry.tenant] += entry.prompt + entry.output

    def waits_from_before(self, entry: CellEntry) -> None:
        """Count a request that waits as this begins."""
        self.carried[entry.request_class][entry.tenant] += entry.prompt + entry.output

    def got_slot(self, entry: CellEntry, wait_ms: int) -> None:
        """Count a request that begins."""
        self.granted += 1
        self.waits[wait_ms] += 1
        self.served[entry.request_class][entry.tenant] += entry.prompt + entry.output
        self._judge(entry, wait_ms)

    def waits_still(self, entry: CellEntry, wait_ms: int, *, last: bool) -> None:
        """Count a request that waits at the end, if that is longer than others waited. Only where this is the `last`
        part of a run, and the time of its class has passed, is it judged here.
        """
        which = entry.request_class
        if last and wait_ms + entry.prompt * PREFILL_MS > SLO_MS[which]:
            self._judge(entry, wait_ms)
            return
        self._note_wait(entry, wait_ms)

    def _note_wait(self, entry: CellEntry, wait_ms: int) -> None:
        longest, which = self.longest_by_class, entry.request_class
        longest[which] = max(longest[which], wait_ms)
        for kind in self._kinds(entry):
            self.longest[kind] = max(self.longest[kind], wait_ms)

    def add(self, part: CellTally) -> None:
        """Add what was counted in a later part of the same run."""
        self.arrived += part.arrived
        self.granted += part.granted
        self.ended += part.ended
        self.moved += part.moved
        self.replicas_moved += part.replicas_moved
        self.unavailable += part.unavailable
        self.most_moved = max(self.most_moved, part.most_moved)
        self.in_time = [sum(each) for each in zip(self.in_time, part.in_time, strict=True)]
        self.by_class = [sum(each) for each in zip(self.by_class, part.by_class, strict=True)]
        self.longest_by_class = [max(each) for each in zip(self.longest_by_class, part.longest_by_class, strict=True)]
        self.longest = {kind: max(wait, part.longest[kind]) for kind, wait in self.longest.items()}
        for own, other in (
            (self.waits, part.waits),
            (self.late, part.late),
            (self.kinds, part.kinds),
            (self.messages, part.messages),
        ):
            own.update(other)  # type: ignore[arg-type]
        self.idle_beside_a_line += part.idle_beside_a_line
        self.spread += part.spread
        self.busy += part.busy
        self.served = (np.array(self.served) + np.array(part.served)).tolist()
        self.asked = (np.array(self.asked) + np.array(part.asked)).tolist()

    def _kinds(self, entry: CellEntry) -> tuple[str, ...]:
        kind = "pinned" if entry.pinned else "free"
        return (kind, "small") if self.small[entry.tenant] else (kind,)

    def _judge(self, entry: CellEntry, wait_ms: int) -> None:
        which, kind = entry.request_class, "pinned" if entry.pinned else "free"
        small, kinds = self.small[entry.tenant], self.kinds
        self.by_class[which] += 1
        kinds[kind] += 1
        if small:
            kinds["small"] += 1
        if wait_ms + entry.prompt * PREFILL_MS <= SLO_MS[which]:
            self.in_time[which] += 1
        else:
            self.late[kind] += 1
            self.late["small"] += small
        if wait_ms:
            self._note_wait(entry, wait_ms)

    def wait(self, part: float) -> int:
        """Return the wait that this part of the requests does not exceed, in milliseconds."""
        left = part * self.waits.total()
        for wait_ms in sorted(self.waits):
            left -= self.waits[wait_ms]
            if left <= 0:
                return wait_ms
        return 0
