"""Figures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from loadtest.report.charts import Curve
from loadtest.simulate.pool.outcome import Outcome, RequestEnd, SimulatedRun
from loadtest.simulate.setup import Slo
from penstock.models import RequestClass

Slos: TypeAlias = Mapping[RequestClass, Slo]
Array: TypeAlias = "np.ndarray[Any, Any]"
_WORST_S = 300.0
_CURVE = 80
"""Number of steps of a distribution."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a time, in seconds. All are None where nothing was measured."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a run, and the fields of its JSON."""

    requests: int
    completed: int
    rejected: int
    """With those refused because of their estimated wait."""
    unfinished: int
    ttft_s: Spread
    """As `itl_s`, `e2e_s` and `queue_s`: of completed requests only."""
    itl_s: Spread
    """Of all gaps between tokens."""
    e2e_s: Spread
    queue_s: Spread
    attainment: float
    """Part of all requests that were completed within their SLO. A rejected one is a miss."""
    worst_5min_attainment: float
    """Smallest attainment of the requests that came within 5 minutes, in steps of one minute, with at least 20."""
    replica_hours: float
    """With those of starting and draining replicas."""
    preemptions: int
    """Sequences that started over because the KV cache was full."""
    scale_events: int
    reversals: int
    """Changes of the replica count in the other direction than the last one, within 30 minutes of it."""
    output_tokens: int
    cached_tokens: int
    virtual_s: float
    wall_s: float
    cpu_s: float
    classes: Mapping[str, Mapping[str, Any]]
    """Requests, completed and rejected ones, attainment, TTFT and output tokens per class. Empty with one class."""
    distributions: Mapping[str, Curve]
    """Distributions of TTFT and of all gaps between tokens: seconds, and the part of all values up to each."""

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        return asdict(self)


def figures_of(run: SimulatedRun, slos: Slos) -> Figures:
    """Return the figures of a run. `slos` must have every class that occurs."""
    done = [each for each in run.outcomes if each.end is RequestEnd.COMPLETED]
    members = [*run.fleet.gone, *run.fleet.members.values()]
    classes = sorted({each.request_class for each in run.outcomes})
    ttft, gaps = np.sort([each.ttft_s for each in done]), _gaps(run)
    return Figures(
        requests=len(run.outcomes),
        completed=len(done),
        rejected=sum(each.end is RequestEnd.REJECTED for each in run.outcomes),
        unfinished=sum(each.end is RequestEnd.UNFINISHED for each in run.outcomes),
        ttft_s=spread([each.ttft_s for each in done]),
        itl_s=_spread_of(*gaps),
        e2e_s=spread([each.e2e_s for each in done]),
        queue_s=spread([each.queue_s for each in done]),
        attainment=_attainment(run.outcomes, slos),
        worst_5min_attainment=_worst(run.outcomes, slos),
        replica_hours=run.fleet.hours(run.seconds),
        preemptions=sum(member.replica.preemptions for member in members),
        scale_events=len(run.fleet.changes),
        reversals=run.fleet.reversals(run.replicas_at_first),
        output_tokens=sum(each.output_tokens for each in done),
        cached_tokens=sum(each.cached_tokens for each in done),
        virtual_s=run.seconds,
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        classes={each.name.lower(): _of_class(run.outcomes, each, slos) for each in classes if len(classes) > 1},
        distributions={"ttft_s": _curve(ttft, np.arange(1, len(ttft) + 1)), "itl_s": _curve(*gaps)},
    )


def spread(values: Sequence[float]) -> Spread:
    """Return mean and percentiles, the latter by interpolation."""
    if not values:
        return Spread()
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(float(np.mean(values)), float(p50), float(p95), float(p99))


def _gaps(run: SimulatedRun) -> tuple[Array, Array]:
    """Return the gaps between tokens, rising, and how many gaps are up to each."""
    members = [*run.fleet.gone, *run.fleet.members.values()]
    logs = [member.replica.log for member in members]
    pauses = [np.asarray(member.replica.pauses) for member in members]
    seconds = np.concatenate([*(np.asarray(log.seconds) for log in logs), *pauses] or [np.zeros(0)])
    ones = [np.ones(len(each)) for each in pauses]
    weights = np.concatenate([*(np.asarray(log.decoded, dtype=float) for log in logs), *ones] or [np.zeros(0)])
    seconds, weights = seconds[weights > 0], weights[weights > 0]
    order = np.argsort(seconds)
    return seconds[order], np.cumsum(weights[order])


def _spread_of(seconds: Array, counted: Array) -> Spread:
    if not len(seconds):
        return Spread()
    p50, p95, p99 = (float(seconds[np.searchsorted(counted, part * counted[-1])]) for part in (0.5, 0.95, 0.99))
    mean = float(seconds @ np.diff(counted, prepend=0.0) / counted[-1])
    return Spread(mean, p50, p95, p99)


def _curve(seconds: Array, counted: Array) -> Curve:
    if not len(seconds):
        return ()
    wanted = np.linspace(0.0, 1.0, _CURVE + 1) * counted[-1]
    at = np.unique(np.minimum(np.searchsorted(counted, wanted), len(seconds) - 1))
    return [(float(seconds[each]), float(counted[each] / counted[-1])) for each in at]


def _attainment(outcomes: Sequence[Outcome], slos: Slos) -> float:
    return sum(each.attains(slos[each.request_class]) for each in outcomes) / len(outcomes) if outcomes else 1.0


def _worst(outcomes: Sequence[Outcome], slos: Slos) -> float:
    if not outcomes:
        return 1.0
    minutes = np.array([each.arrival_s for each in outcomes]) // 60
    met = np.array([each.attains(slos[each.request_class]) for each in outcomes])
    came = np.bincount(minutes.astype(int))
    good = np.bincount(minutes.astype(int), weights=met)
    width = min(int(_WORST_S // 60), len(came))
    windows, within = (np.convolve(each, np.ones(width), "valid") for each in (came, good))
    enough = windows >= min(20, len(outcomes))
    return float(np.min(within[enough] / windows[enough])) if enough.any() else _attainment(outcomes, slos)


def _of_class(outcomes: Sequence[Outcome], request_class: RequestClass, slos: Slos) -> dict[str, Any]:
    ours = [each for each in outcomes if each.request_class is request_class]
    done = [each for each in ours if each.end is RequestEnd.COMPLETED]
    return {
        "requests": len(ours),
        "completed": len(done),
        "rejected": sum(each.end is RequestEnd.REJECTED for each in ours),
        "attainment": _attainment(ours, slos),
        "ttft_s": asdict(spread([each.ttft_s for each in done])),
        "output_tokens": sum(each.output_tokens for each in done),
    }
