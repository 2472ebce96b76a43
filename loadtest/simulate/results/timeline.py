"""The course of a run over time, for the page and the picture of a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.report.svg import Line
from loadtest.simulate.pool.outcome import RequestEnd, SimulatedRun
from loadtest.simulate.setup import Setup


@dataclass(frozen=True, slots=True)
class Panel:
    """One of several charts over the same time."""

    title: str
    unit: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All charts of a run."""

    times_s: Sequence[float]
    panels: Sequence[Panel]


def timeline_of(run: SimulatedRun, setup: Setup) -> Timeline | None:
    """Return charts of demand, replicas, batch limits, queue, TTFT and ITL; None for a run that was too short."""
    times = [sample.at_s for sample in run.samples]
    if len(times) < 2:
        return None
    return Timeline(times, [*_demand(run, times), *_cluster(run), *_latency(run, setup, times)])


def _demand(run: SimulatedRun, times: Sequence[float]) -> list[Panel]:
    width = times[1] - times[0]
    arrivals = [each.arrival_s for each in run.outcomes]
    tokens = [float(each.prompt_tokens + each.output_tokens) for each in run.outcomes]
    came = _binned(times, arrivals, [1.0] * len(arrivals), _sum)
    asked = _binned(times, arrivals, tokens, _sum)
    return [
        Panel("Demand", "requests/s", [Line("arrivals", [each / width for each in came])]),
        Panel("Demand", "1,000 tokens/s", [Line("prompt and output", [each / width / 1e3 for each in asked])]),
    ]


def _cluster(run: SimulatedRun) -> list[Panel]:
    samples = run.samples
    replicas = [
        Line("ready", [sample.ready for sample in samples]),
        Line("starting", [sample.starting for sample in samples]),
        Line("draining", [sample.draining for sample in samples]),
        Line("desired", [sample.desired for sample in samples]),
    ]
    batch = [
        Line("limits", [sample.limit for sample in samples]),
        Line("running", [sample.running for sample in samples]),
    ]
    return [
        Panel("Replicas", "count", replicas),
        Panel("Batch", "sequences", batch),
        Panel("KV cache", "%", [Line("used", [100 * sample.kv_usage for sample in samples])]),
        Panel("Queue", "requests", [Line("waiting", [sample.waiting for sample in samples])]),
    ]


def _latency(run: SimulatedRun, setup: Setup, times: Sequence[float]) -> list[Panel]:
    done = [each for each in run.outcomes if each.end is RequestEnd.COMPLETED]
    started_at, ttft = [each.arrival_s + each.ttft_s for each in done], [each.ttft_s for each in done]
    decoded = [each for each in done if each.output_tokens > 1]
    ended_at = [each.arrival_s + each.e2e_s for each in decoded]
    itl, itl_p95 = [1e3 * each.itl_mean_s for each in decoded], [1e3 * each.itl_p95_s for each in decoded]
    ttft_lines = [
        Line("p50", _binned(times, started_at, ttft, _part(50))),
        Line("p95", _binned(times, started_at, ttft, _part(95))),
        Line("SLO", [setup.slo.ttft_s] * len(times)),
    ]
    itl_lines = [
        Line("p50 of means", _binned(times, ended_at, itl, _part(50))),
        Line("p95 of p95", _binned(times, ended_at, itl_p95, _part(95))),
        Line("SLO", [1e3 * setup.slo.itl_s] * len(times)),
    ]
    return [Panel("TTFT", "s", ttft_lines), Panel("ITL of requests that end", "ms", itl_lines)]


def _binned(
    times: Sequence[float], at: Sequence[float], values: Sequence[float], figure: Callable[[Sequence[float]], float]
) -> list[float]:
    bins: list[list[float]] = [[] for _ in times]
    for place, value in zip(np.searchsorted(times, at, side="right"), values, strict=True):
        bins[max(0, int(place) - 1)].append(value)
    return [figure(each) for each in bins]


def _sum(values: Sequence[float]) -> float:
    return float(sum(values))


def _part(percent: float) -> Callable[[Sequence[float]], float]:
    return lambda values: float(np.percentile(values, percent)) if values else math.nan
