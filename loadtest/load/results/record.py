"""All figures of a run, second by second, from any number of processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.load.results.tally import Generator, Tally, Window

LAG_BOUND_S = 0.05
"""Bound of the generator's 99th percentile of lag in seconds. Above it, the lag is visible in latencies."""
BUSY_BOUND = 0.9
"""Bound of a driver's part of one core. Above it, the driver had no spare time."""
DISTRIBUTIONS = ("ttft", "itl")
"""Times whose whole distribution a report shows."""
_BINS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_BINS, _LEAST_BINS, _PER_BIN = 120, 12, 5


class RunRecord:
    """Sum of windows."""

    def __init__(self) -> None:
        self.kinds: dict[str, Tally] = {}
        self.generator = Generator()
        self.seconds: dict[int, Window] = {}
        """Window of each second, with the sum of its kinds only. Otherwise an hour's record would fill the memory."""
        self.clipped = 0
        self.last_s = 0.0
        """Time of the last token or end, in seconds since the start."""

    def add(self, window: Window) -> None:
        """Add a second of one process."""
        for kind, tally in window.kinds.items():
            self.kinds.setdefault(kind, Tally()).merge(tally)
        self.generator.merge(window.generator)
        self.last_s = max(self.last_s, window.last_s)
        flat = Window(window.second, {"all": window.total()} if window.kinds else {}, window.generator, window.running)
        known = self.seconds.get(window.second)
        if known is None:
            self.seconds[window.second] = Window(window.second)
            known = self.seconds[window.second]
        known.merge(flat)

    def total(self) -> Tally:
        """Return the tally of all kinds."""
        made = Tally()
        for tally in self.kinds.values():
            made.merge(tally)
        return made

    def bottleneck(self) -> list[str]:
        """Return the reasons why the generator may have been the bottleneck instead of the cluster; empty if it was
        not.
        """
        why = []
        for name, histogram in (("sending", self.generator.lag), ("reading", self.generator.loop_lag)):
            late = histogram.percentile(99)
            if late is not None and late > LAG_BOUND_S:
                why.append(f"{name} was {1e3 * late:.0f} ms late (p99; bound {1e3 * LAG_BOUND_S:.0f} ms)")
        if self.generator.busiest > BUSY_BOUND:
            why.append(f"a driver used {self.generator.busiest:.0%} of a core (bound {BUSY_BOUND:.0%})")
        return why

    def as_json(self, seconds: float) -> dict[str, Any]:
        """Return the figures of a run that counted requests for this many seconds."""
        total, generator = self.total(), self.generator
        per_message = 1e6 * generator.cpu_s / total.messages if total.messages else None
        why = self.bottleneck()
        return {
            "seconds": seconds,
            **total.as_json(seconds),
            "by_kind": {kind: tally.as_json(seconds) for kind, tally in sorted(self.kinds.items())},
            "clipped": self.clipped,
            "generator": {
                "lag_s": generator.lag.summary(),
                "loop_lag_s": generator.loop_lag.summary(),
                "cpu_s": generator.cpu_s,
                "cpu_us_per_message": per_message,
                "busiest": generator.busiest,
                "bottleneck": bool(why),
                "why": why,
            },
            "timeline": [point(self.seconds[second]) for second in sorted(self.seconds)],
            "course": course(self.seconds),
            "distributions": {
                kind: {f"{name}_s": tally.times[name].curve() for name in DISTRIBUTIONS}
                for kind, tally in {**dict(sorted(self.kinds.items())), "all": total}.items()
            },
        }


def course(seconds: Mapping[int, Window]) -> list[dict[str, Any]]:
    """Return a timeline in bins that are wide enough for a few requests each, so that a chart shows a course.

    Counts and tokens are per second. Percentiles are of the bin's own requests.
    """
    if not seconds:
        return []
    whole = max(seconds) + 1
    width = _bin_width(whole, sum(each.total().ended for each in seconds.values()))
    bins = []
    for start in range(0, whole, width):
        inside = [seconds[second] for second in range(start, min(start + width, whole)) if second in seconds]
        merged = Window(start)
        for each in inside:
            merged.merge(each)
        covered = min(width, whole - start)
        per_s = {name: value / covered for name, value in point(merged).items() if name in _RATES}
        running = merged.running / max(1, len(inside))
        bins.append({**point(merged), **per_s, "running": running, "seconds": covered})
    return bins


def _bin_width(whole: int, ended: int) -> int:
    wanted = min(max(whole / _MOST_BINS, _PER_BIN * whole / max(1, ended)), whole / _LEAST_BINS)
    return next((each for each in _BINS_S if each >= wanted), _BINS_S[-1])


_RATES = ("ended", "completed", "good", "failed", "output_tokens", "messages", "generator_cpu_s")


def point(window: Window) -> dict[str, Any]:
    """Return one second of the timeline."""
    tally = window.total()
    times = {
        f"{name}_p{percent}_s": tally.times[name].percentile(percent)
        for name, percents in (("ttft", (50, 95, 99)), ("itl", (50, 95, 99)), ("e2e", (50, 95)), ("queue", (50, 95)))
        for percent in percents
    }
    return {
        "second": window.second,
        "running": window.running,
        "ended": tally.ended,
        "completed": tally.completed,
        "good": tally.good,
        "failed": tally.ended - tally.completed,
        "goodput": tally.goodput,
        "output_tokens": tally.output_tokens,
        "messages": tally.messages,
        "lag_p99_s": window.generator.lag.percentile(99),
        "loop_lag_p99_s": window.generator.loop_lag.percentile(99),
        "generator_cpu_s": window.generator.cpu_s,
        **times,
    }
