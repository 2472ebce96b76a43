"""What a long run showed so far. Requests are judged when they end and then forgotten, so that hours fit in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.chaos.checker import Bounds, Violation, check_requests, silences
from tests.chaos.history import Cancelled, Failed, FaultRecord, Finished, History, Request, Tokens

EXAMPLES = 20
"""Violations that are kept; the others are only counted."""
GROWN = 1.1
"""Memory in the last quarter of a run over that in the second one; the first one warms up."""
SLACK_BYTES = 8 << 20


@dataclass(slots=True)
class Episode:
    """A fault with its end, and what clients felt until the next one began."""

    name: str
    began_at: float
    silence_s: float = 0.0
    failed_calls: int = 0


@dataclass(slots=True)
class Tally:
    """Folds requests as they end."""

    bounds: Bounds
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed_calls: int = 0
    tokens: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Broken invariants."""
    violations: list[Violation] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    faults: int = 0
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Resident bytes of processes that lived all the time, in turns."""

    def fold(self, history: History) -> None:
        """Take over the requests that are through."""
        over = [request for request in history.requests if request.ended_at is not None]
        if not over:
            return
        history.requests[:] = [request for request in history.requests if request.ended_at is None]
        during = self._episode_at(max(request.events[-1].at for request in over)).name
        found = check_requests(History(requests=over), self.bounds)
        self.blame([Violation(each.invariant, f"{each.detail} ({during})") for each in found])
        for request in over:
            self._count(request)

    def blame(self, found: Sequence[Violation]) -> None:
        """Add violations."""
        self.kinds.update(violation.invariant for violation in found)
        self.violations.extend(found[: max(0, EXAMPLES - len(self.violations))])

    def prove(self, faults: list[FaultRecord]) -> None:
        """Take over what was done; what nothing shows is a violation."""
        self.faults += len(faults)
        self.blame([Violation("I8", f"nothing shows that this happened: {f.name}") for f in faults if not f.proof])
        faults.clear()

    def _count(self, request: Request) -> None:
        self.requests += 1
        self.finished += request.finished
        for event in request.events:
            match event:
                case Tokens():
                    self.tokens += len(event.ids)
                case Failed():
                    self.failed_calls += 1
                    self._episode_at(event.at).failed_calls += 1
                case Cancelled():
                    self.cancelled += 1
                case Finished():
                    pass
        for heard_at, event in silences(request):
            # A silence belongs to what had begun by its end.
            episode = self._episode_at(event.at)
            episode.silence_s = max(episode.silence_s, event.at - heard_at)

    def _episode_at(self, at: float) -> Episode:
        if not self.episodes or self.episodes[0].began_at > at:
            self.episodes.insert(0, Episode("nothing broken yet", float("-inf")))
        return next(episode for episode in reversed(self.episodes) if episode.began_at <= at)

    def note_memory(self, sizes: dict[str, int]) -> None:
        """Add a sample of each process' memory."""
        for name, size in sizes.items():
            self.memory.setdefault(name, []).append(size)

    def quarters(self) -> dict[str, tuple[float, float]]:
        """Return the median of each process' memory in the second and in the last quarter, in MB."""
        found = {}
        for name, sizes in self.memory.items():
            if len(sizes) >= 4:
                quarter = len(sizes) // 4
                found[name] = (median(sizes[quarter : 2 * quarter]) / 1e6, median(sizes[-quarter:]) / 1e6)
        return found

    def judge_memory(self) -> None:
        """Blame what grew."""
        for name, (early, late) in self.quarters().items():
            if late > early * GROWN + SLACK_BYTES / 1e6:
                self.blame([Violation("I5", f"{name} grew from {early:.0f} to {late:.0f} MB")])

    def by_fault(self) -> list[tuple[str, int, float, int]]:
        """List name, times, longest silence (s) and failed calls per kind of episode."""
        names = dict.fromkeys(episode.name for episode in self.episodes)
        rows = []
        for name in names:
            same = [episode for episode in self.episodes if episode.name == name]
            longest = max(episode.silence_s for episode in same)
            rows.append((name, len(same), longest, sum(episode.failed_calls for episode in same)))
        return rows
