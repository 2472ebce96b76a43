"""The course of a run as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from loadtest.simulate.chart import Line, chart
from loadtest.simulate.figures import Figures, Spread
from loadtest.simulate.outcome import End, Run
from loadtest.simulate.setup import Setup

_STYLE = """
:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;max-width:940px;margin:2em auto;padding:0 1em}
svg{width:100%;margin:.4em 0}text{font-size:12px;fill:currentColor}.title{font-weight:600}.end{text-anchor:end}
.mid{text-anchor:middle}.grid{stroke:currentColor;opacity:.2}polyline{fill:none;stroke-width:1.5}
table{border-collapse:collapse}td,th{padding:.2em 1em;text-align:right}td:first-child{text-align:left}
"""


def write_html(path: Path, run: Run, figures: Figures, setup: Setup, title: str) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    body = [f"<h1>{escape(title)}</h1>", _table(figures), *_charts(run, setup)]
    page = f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    path.write_text(page + "\n".join(body) + "\n", encoding="utf-8")


def _table(figures: Figures) -> str:
    rows = {"TTFT": figures.ttft_s, "ITL": figures.itl_s, "E2E": figures.e2e_s, "queue": figures.queue_s}
    times = "".join(f"<tr><td>{name}, ms{_cells(each)}</tr>" for name, each in rows.items())
    text = (
        f"{figures.requests:,} requests: {figures.completed:,} completed, {figures.rejected:,} rejected, "
        f"{figures.unfinished:,} unfinished. Attainment {figures.attainment:.2%}, {figures.replica_hours:.2f} replica "
        f"hours, {figures.scale_events} changes of the count, {figures.reversals} reversals, "
        f"{figures.preemptions:,} preemptions."
    )
    return f"<p>{text}</p><table><tr><th><th>mean<th>p50<th>p95<th>p99</tr>{times}</table>"


def _cells(each: Spread) -> str:
    values = (each.mean, each.p50, each.p95, each.p99)
    return "".join("<td>-" if value is None else f"<td>{1e3 * value:,.1f}" for value in values)


def _charts(run: Run, setup: Setup) -> list[str]:
    samples = run.samples
    times = [sample.at_s for sample in samples]
    if len(times) < 2:
        return ["<p>The run was too short for a timeline.</p>"]
    width = times[1] - times[0]
    done = [each for each in run.outcomes if each.end is End.COMPLETED]
    came = _binned(times, [each.arrival_s for each in run.outcomes], [1.0] * len(run.outcomes), _sum)
    tokens = [float(each.prompt_tokens + each.output_tokens) for each in run.outcomes]
    asked = _binned(times, [each.arrival_s for each in run.outcomes], tokens, _sum)
    ended = [each.arrival_s + each.e2e_s for each in done]
    ttft = ([each.arrival_s + each.ttft_s for each in done], [each.ttft_s for each in done])
    decoded = [(at, each) for at, each in zip(ended, done, strict=True) if each.output_tokens > 1]
    itl_at = [at for at, _ in decoded]
    itl_p95 = [1e3 * each.itl_p95_s for _, each in decoded]
    itl = [1e3 * each.itl_mean_s for _, each in decoded]
    slo = setup.slo
    flat = [1.0] * len(times)
    return [
        chart("Demand", "requests/s", times, [Line("arrivals", [each / width for each in came])]),
        chart("Demand", "1,000 tokens/s", times, [Line("prompt and output", [each / width / 1e3 for each in asked])]),
        chart(
            "Replicas",
            "count",
            times,
            [
                Line("ready", [sample.ready for sample in samples]),
                Line("starting", [sample.starting for sample in samples]),
                Line("draining", [sample.draining for sample in samples]),
                Line("desired", [sample.desired for sample in samples]),
            ],
        ),
        chart(
            "Batch",
            "sequences",
            times,
            [
                Line("limits", [sample.limit for sample in samples]),
                Line("running", [sample.running for sample in samples]),
            ],
        ),
        chart("KV cache", "%", times, [Line("used", [100 * sample.kv_usage for sample in samples])]),
        chart("Queue", "requests", times, [Line("waiting", [sample.waiting for sample in samples])]),
        chart(
            "TTFT",
            "s",
            times,
            [
                Line("p50", _binned(times, *ttft, _part(50))),
                Line("p95", _binned(times, *ttft, _part(95))),
                Line("SLO", [slo.ttft_s * each for each in flat]),
            ],
        ),
        chart(
            "ITL of requests that end",
            "ms",
            times,
            [
                Line("p50 of means", _binned(times, itl_at, itl, _part(50))),
                Line("p95 of p95", _binned(times, itl_at, itl_p95, _part(95))),
                Line("SLO", [1e3 * slo.itl_s * each for each in flat]),
            ],
        ),
    ]


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
