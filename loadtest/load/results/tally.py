"""What clients saw: counts and times that add up over seconds, kinds of requests, and processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.load.results.histogram import Histogram

TIMES = ("ttft", "itl", "tpot", "e2e", "queue")
"""Names of the times, all in seconds.

ttft is the time to the first token, itl the gap between two messages of a stream, tpot (E2E - TTFT) per further token,
e2e the time to the last token, and queue the wait in the queue that the receipt reports. All but itl and tpot count
from the intended time.
"""
_COUNTS = ("ended", "completed", "good", "prompt_tokens", "output_tokens", "cached_tokens", "messages")


@dataclass(slots=True)
class Tally:
    """Sums over requests."""

    ended: int = 0
    """Requests that completed or failed."""
    completed: int = 0
    good: int = 0
    """Requests that completed within the SLO."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Output tokens, counted as they come, so those of requests that failed later count too."""
    cached_tokens: int = 0
    messages: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Number of errors, by reason."""
    times: dict[str, Histogram] = field(default_factory=lambda: {name: Histogram() for name in TIMES})

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors.update(other.errors)
        for name, histogram in other.times.items():
            self.times[name].merge(histogram)

    @property
    def goodput(self) -> float | None:
        """Part of the requests that completed within the SLO. A failed one is a miss. None before any ended."""
        return self.good / self.ended if self.ended else None

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for `from_wire`."""
        times = {name: each.to_wire() for name, each in self.times.items() if each.count}
        return {**{name: getattr(self, name) for name in _COUNTS}, "errors": dict(self.errors), "times": times}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Tally:
        made = cls(**{name: wire[name] for name in _COUNTS})
        made.errors.update(wire["errors"])
        made.times.update({name: Histogram.from_wire(each) for name, each in wire["times"].items()})
        return made

    def as_json(self, seconds: float) -> dict[str, Any]:
        """Return the figures of a run of this many seconds."""
        per_s = 1 / seconds if seconds > 0 else 0.0
        return {
            "requests": self.ended,
            "completed": self.completed,
            "errors": dict(sorted(self.errors.items())),
            "error_rate": (self.ended - self.completed) / self.ended if self.ended else None,
            "good": self.good,
            "goodput": self.goodput,
            "goodput_rps": self.good * per_s,
            "rps": self.completed * per_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "messages": self.messages,
            "tokens_per_s": self.output_tokens * per_s,
            **{f"{name}_s": each.summary() for name, each in self.times.items()},
        }


@dataclass(slots=True)
class Generator:
    """Delays and CPU use of the generator itself."""

    lag: Histogram = field(default_factory=Histogram)
    """Seconds from a request's intended time to its sending."""
    loop_lag: Histogram = field(default_factory=Histogram)
    """Seconds by which the event loop woke up late. It may have read messages as late."""
    cpu_s: float = 0.0
    """CPU time of the drivers."""
    busiest: float = 0.0
    """Largest part of one core that a driver used in any second."""

    def merge(self, other: Generator) -> None:
        self.lag.merge(other.lag)
        self.loop_lag.merge(other.loop_lag)
        self.cpu_s += other.cpu_s
        self.busiest = max(self.busiest, other.busiest)

    def to_wire(self) -> list[Any]:
        """Return plain values for `from_wire`."""
        return [self.lag.to_wire(), self.loop_lag.to_wire(), self.cpu_s, self.busiest]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Generator:
        return cls(Histogram.from_wire(wire[0]), Histogram.from_wire(wire[1]), wire[2], wire[3])


@dataclass(slots=True)
class Window:
    """One second of a run."""

    second: int
    """Seconds since the start, from 0."""
    kinds: dict[str, Tally] = field(default_factory=dict)
    generator: Generator = field(default_factory=Generator)
    running: int = 0
    """Streams open at its end."""
    last_s: float = 0.0
    """Time of the last token or end that counts, in seconds since the start; 0 without any."""

    def of(self, kind: str) -> Tally:
        """Return the tally of a kind."""
        found = self.kinds.get(kind)
        if found is None:
            found = self.kinds[kind] = Tally()
        return found

    def total(self) -> Tally:
        """Return the tally of all kinds."""
        made = Tally()
        for each in self.kinds.values():
            made.merge(each)
        return made

    def merge(self, other: Window) -> None:
        """Add another process's part of this second."""
        for kind, tally in other.kinds.items():
            self.of(kind).merge(tally)
        self.generator.merge(other.generator)
        self.running += other.running
        self.last_s = max(self.last_s, other.last_s)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for `from_wire`."""
        kinds = {kind: tally.to_wire() for kind, tally in self.kinds.items()}
        return {
            "second": self.second,
            "kinds": kinds,
            "generator": self.generator.to_wire(),
            "running": self.running,
            "last_s": self.last_s,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Window:
        kinds = {kind: Tally.from_wire(each) for kind, each in wire["kinds"].items()}
        return cls(wire["second"], kinds, Generator.from_wire(wire["generator"]), wire["running"], wire["last_s"])
