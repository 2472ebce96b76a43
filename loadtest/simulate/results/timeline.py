"""The course of a run over time, for the page and the picture of a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from loadtest.report.charts import Chart, Rule, Series
from loadtest.simulate.pool.outcome import RequestEnd, SimulatedRun
from loadtest.simulate.setup import Setup

Values = Sequence[float]


def timeline_of(run: SimulatedRun, setup: Setup) -> list[Chart]:
    """Return charts of demand, replicas, batch limits, queue, TTFT and ITL; none for a run that was too short."""
    times = [sample.at_s for sample in run.samples]
    if len(times) < 2:
        return []
    return [*_latency(run, setup, times), *_cluster(run, times), *_demand(run, times)]


def _chart(
    title: str, unit: str, times: Values, lines: Sequence[tuple[str, Values]], rules: Sequence[Rule] = ()
) -> Chart:
    return Chart(title, unit, [Series(name, times, values) for name, values in lines], rules, x_axis="clock")


def _demand(run: SimulatedRun, times: Values) -> list[Chart]:
    width = times[1] - times[0]
    arrivals = [each.arrival_s for each in run.outcomes]
    tokens = [float(each.prompt_tokens + each.output_tokens) for each in run.outcomes]
    came = _binned(times, arrivals, [1.0] * len(arrivals), _sum)
    asked = _binned(times, arrivals, tokens, _sum)
    return [
        _chart("Demand", "requests/s", times, [("arrivals", [each / width for each in came])]),
        _chart(
            "Demand in tokens", "1,000 tokens/s", times, [("prompt and output", [each / width / 1e3 for each in asked])]
        ),
    ]


def _cluster(run: SimulatedRun, times: Values) -> list[Chart]:
    samples = run.samples
    counts: dict[str, Values] = {
        "ready": [sample.ready for sample in samples],
        "desired": [sample.desired for sample in samples],
        # Where there are none, a line would only cover the axis.
        "starting": [sample.starting or math.nan for sample in samples],
        "draining": [sample.draining or math.nan for sample in samples],
    }
    batch = [
        ("running", [sample.running for sample in samples]),
        ("limits", [sample.limit for sample in samples]),
    ]
    return [
        _chart("Replicas", "count", times, list(counts.items())),
        _chart("Batch", "sequences", times, batch),
        _chart("KV cache", "% used", times, [("used", [100 * sample.kv_usage for sample in samples])]),
        _chart("Queue", "requests", times, [("waiting", [sample.waiting for sample in samples])]),
    ]


def _latency(run: SimulatedRun, setup: Setup, times: Values) -> list[Chart]:
    done = [each for each in run.outcomes if each.end is RequestEnd.COMPLETED]
    started_at, ttft = [each.arrival_s + each.ttft_s for each in done], [each.ttft_s for each in done]
    decoded = [each for each in done if each.output_tokens > 1]
    ended_at = [each.arrival_s + each.e2e_s for each in decoded]
    itl, itl_p95 = [1e3 * each.itl_mean_s for each in decoded], [1e3 * each.itl_p95_s for each in decoded]
    slo = setup.slo
    ttft_lines = [
        ("p50", _binned(times, started_at, ttft, _part(50))),
        ("p95", _binned(times, started_at, ttft, _part(95))),
    ]
    itl_lines = [
        ("p50 of means", _binned(times, ended_at, itl, _part(50))),
        ("p95 of p95", _binned(times, ended_at, itl_p95, _part(95))),
    ]
    return [
        _chart("TTFT", "s", times, ttft_lines, [Rule(f"SLO {slo.ttft_s:g} s", slo.ttft_s)]),
        _chart(
            "ITL of requests that end", "ms", times, itl_lines, [Rule(f"SLO {1e3 * slo.itl_s:g} ms", 1e3 * slo.itl_s)]
        ),
    ]


def _binned(times: Values, at: Values, values: Values, figure: Callable[[Values], float]) -> list[float]:
    bins: list[list[float]] = [[] for _ in times]
    for place, value in zip(np.searchsorted(times, at, side="right"), values, strict=True):
        bins[max(0, int(place) - 1)].append(value)
    return [figure(each) for each in bins]


def _sum(values: Values) -> float:
    return float(sum(values))


def _part(percent: float) -> Callable[[Values], float]:
    return lambda values: float(np.percentile(values, percent)) if values else math.nan
