"""Figures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from loadtest.report.charts import Curve
from loadtest.simulate.pool.outcome import Outcomes, RequestEnd, SimulatedRun
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
    asleep_hours: float
    """Part of these hours in which replicas on standby slept."""
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
    queue: str = ""
    """What ran the queue, in words."""

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        return asdict(self)


def figures_of(run: SimulatedRun, slos: Slos) -> Figures:
    """Return the figures of a run. `slos` must have every class that occurs."""
    outcomes = run.outcomes
    done = outcomes.ended(RequestEnd.COMPLETED)
    members = [*run.fleet.gone, *run.fleet.members.values()]
    classes = [each for each in sorted(RequestClass) if outcomes.of_class(each).any()]
    met = _met(outcomes, slos)
    ttft, gaps = outcomes.column("ttft_s")[done], _gaps(run)
    return Figures(
        requests=len(outcomes),
        completed=int(done.sum()),
        rejected=int(outcomes.ended(RequestEnd.REJECTED).sum()),
        unfinished=int(outcomes.ended(RequestEnd.UNFINISHED).sum()),
        ttft_s=spread(ttft),
        itl_s=_spread_of(*gaps),
        e2e_s=spread(outcomes.column("e2e_s")[done]),
        queue_s=spread(outcomes.column("queue_s")[done]),
        attainment=_part(met),
        worst_5min_attainment=_worst(outcomes.column("arrival_s"), met),
        replica_hours=run.hours(run.seconds),
        asleep_hours=run.fleet.asleep_hours(run.seconds),
        preemptions=sum(member.replica.preemptions for member in members),
        scale_events=len(run.fleet.changes),
        reversals=run.fleet.reversals(run.replicas_at_first),
        output_tokens=int(outcomes.column("output_tokens")[done].sum()),
        cached_tokens=int(outcomes.column("cached_tokens")[done].sum()),
        virtual_s=run.seconds,
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        classes={each.name.lower(): _of_class(outcomes, each, met, done) for each in classes if len(classes) > 1},
        distributions={"ttft_s": _curve(np.sort(ttft), np.arange(1, len(ttft) + 1)), "itl_s": _curve(*gaps)},
        queue=run.queue,
    )


def _met(outcomes: Outcomes, slos: Slos) -> Array:
    """Return which requests were completed within the SLO of their class."""
    met = np.zeros(len(outcomes), dtype=bool)
    for request_class, slo in slos.items():
        ours = outcomes.of_class(request_class)
        met[ours] = outcomes.attain(slo)[ours]
    return met


def spread(values: Sequence[float] | Array) -> Spread:
    """Return mean and percentiles, the latter by interpolation."""
    if not len(values):
        return Spread()
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(float(np.mean(values)), float(p50), float(p95), float(p99))


def _gaps(run: SimulatedRun) -> tuple[Array, Array]:
    """Return the gaps between tokens, rising, and how many gaps are up to each."""
    members = [*run.fleet.gone, *run.fleet.members.values()]
    logs = [member.replica.log for member in members]
    pauses = [np.asarray(member.replica.pauses) for member in members]
    binned, counts = run.tally.gaps
    if bunched := sum(member.replica.bunched for member in members):
        binned, counts = np.append(binned, 0.0), np.append(counts, float(bunched))
    seconds = np.concatenate([*(np.asarray(log.seconds) for log in logs), *pauses, binned])
    ones = [np.ones(len(each)) for each in pauses]
    weights = np.concatenate([*(np.asarray(log.decoded, dtype=float) for log in logs), *ones, counts])
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


def _part(met: Array) -> float:
    return int(met.sum()) / len(met) if len(met) else 1.0


def _worst(arrivals: Array, met: Array) -> float:
    if not len(met):
        return 1.0
    minutes = arrivals // 60
    came = np.bincount(minutes.astype(int))
    good = np.bincount(minutes.astype(int), weights=met)
    width = min(int(_WORST_S // 60), len(came))
    windows, within = (np.convolve(each, np.ones(width), "valid") for each in (came, good))
    enough = windows >= min(20, len(met))
    return float(np.min(within[enough] / windows[enough])) if enough.any() else _part(met)


def _of_class(outcomes: Outcomes, request_class: RequestClass, met: Array, done: Array) -> dict[str, Any]:
    ours = outcomes.of_class(request_class)
    return {
        "requests": int(ours.sum()),
        "completed": int((ours & done).sum()),
        "rejected": int((ours & outcomes.ended(RequestEnd.REJECTED)).sum()),
        "attainment": _part(met[ours]),
        "ttft_s": asdict(spread(outcomes.column("ttft_s")[ours & done])),
        "output_tokens": int(outcomes.column("output_tokens")[ours & done].sum()),
    }
