"""The report of a run as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from cluster.plural import counted
from loadtest.report.page import page
from loadtest.report.svg import Line, Points, line_chart, scatter

Figures = Mapping[str, Any]

_BIN_S = 5
_TIMES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("tpot_s", "time/token"), ("e2e_s", "E2E"), ("queue_s", "queue"))


def run_page(figures: Figures, verdicts: Sequence[tuple[str, bool]] = ()) -> str:
    """Return the report of a run.

    Args:
        figures: those of `outputs.figures`, with the cluster's side.
        verdicts: sentences about bounds, and whether they hold.
    """
    name = str(figures["scenario"].get("name", "load test"))
    judged = "".join(f'<p class="{"good" if held else "bad"}">{escape(text)}</p>' for text, held in verdicts)
    body = [f"<h1>{escape(name)}</h1>", judged, summary(figures), *charts(figures)]
    return page(f"load test: {name}", body)


def live_page(figures: Figures) -> str:
    """Return the charts of a running test. The page reloads itself every two seconds."""
    return page("LLM load test", [summary(figures), *charts(figures)], refresh_s=2)


def summary(figures: Figures) -> str:
    """Return a description of the run, and a table of times by kind."""
    scenario, generator = figures["scenario"], figures["generator"]
    said = ", ".join(f"{name} {value}" for name, value in scenario.items() if value != "" and name not in ("name",))
    failed = ", ".join(f"{count} {reason}" for reason, count in figures["errors"].items()) or "none"
    text = (
        f"{counted(figures['requests'], 'request')} in {figures['seconds']:.1f} s to {figures['target']}: "
        f"{figures['completed']:,} completed, failed: {failed}. "
        f"{figures['rps']:.2f} requests/s, {figures['tokens_per_s']:,.0f} tokens/s, "
        f"goodput {_part(figures['goodput'])} ({figures['goodput_rps']:.2f} requests/s within the SLO). "
        f"Generator: lag p99 {_ms(generator['lag_s']['p99'])} ms, {_us(generator['cpu_us_per_message'])} us of CPU per "
        f"message, {counted(figures['processes'], 'process', 'processes')}."
    )
    parts = [f"<p>{escape(said)}</p><p>{escape(text)}</p>"]
    parts += [f'<p class="bad">The generator was the bottleneck: {escape(why)}.</p>' for why in generator["why"]]
    if figures["clipped"]:
        cut = counted(figures["clipped"], "request was", "requests were")
        parts.append(f'<p class="bad">{cut} cut to the model\'s context.</p>')
    if figures["failures"]:
        said = "".join(f"<li>{each['count']:,} {escape(each['said'])}</li>" for each in figures["failures"])
        parts.append(f"<h3>Failures</h3><ul>{said}</ul>")
    for kind, each in {**figures["by_kind"], "all": figures}.items():
        rows = "".join(f"<tr><td>{name}, ms{_cells(each[key])}</tr>" for key, name in _TIMES)
        heading = f"{kind}: {counted(each['requests'], 'request')}, goodput {_part(each['goodput'])}"
        columns = "<th>mean<th>p50<th>p90<th>p95<th>p99<th>max"
        parts.append(f"<h3>{escape(heading)}</h3><table><tr><th>{columns}</tr>{rows}</table>")
    return "".join(parts)


def charts(figures: Figures) -> list[str]:
    """Return the charts of a run over time."""
    points = figures["timeline"]
    if len(points) < 2:
        return ["<p>Too short for a timeline.</p>"]
    times = [float(each["second"]) for each in points]

    def line(name: str, key: str, scale: float = 1.0) -> Line:
        return Line(name, [_scaled(each[key], scale) for each in points])

    def percentiles(of: str) -> list[Line]:
        return [line(f"p{percent}", f"{of}_p{percent}_s", 1e3) for percent in (50, 95, 99)]

    made = [
        _curve(figures),
        line_chart("Requests", "per second", times, [line("ended", "ended"), line("failed", "failed")]),
        line_chart("Throughput", "output tokens/s", times, [line("tokens", "output_tokens")]),
        line_chart("Streams", "open", times, [line("open", "running")]),
        line_chart("TTFT", "ms", times, [*percentiles("ttft"), *_slo(figures, "slo_ttft_s", times)]),
        line_chart("ITL", "ms", times, [*percentiles("itl"), *_slo(figures, "slo_itl_s", times)]),
        line_chart("SLO attainment", "% of requests that ended", times, [line("attainment", "goodput", 100)]),
        line_chart(
            "Wait in the queue", "ms", times, [line("p50", "queue_p50_s", 1e3), line("p95", "queue_p95_s", 1e3)]
        ),
        line_chart("Generator", "ms late", times, [line("lag p99", "lag_p99_s", 1e3)]),
    ]
    return made + cluster_charts(figures.get("cluster", ()), str(figures.get("cluster_failure", "")))


def cluster_charts(looks: Sequence[Mapping[str, Any]], failure: str = "") -> list[str]:
    """Return the charts of the cluster's side."""
    if len(looks) < 2:
        return [f"<p>The cluster's side is not known. {escape(failure)}</p>"] if failure else []
    times = [float(each["at_s"]) for each in looks]

    def line(name: str, key: str, scale: float = 1.0) -> Line:
        return Line(name, [_scaled(each[key], scale) for each in looks])

    return [
        line_chart("Queue depth", "requests", times, [line("waiting", "waiting")]),
        line_chart("Replicas", "count", times, [line(name, name) for name in ("ready", "starting", "draining")]),
        line_chart("Batch", "sequences", times, [line("limits", "batch_limit"), line("running", "running")]),
        line_chart("KV cache", "%", times, [line("used", "kv_usage", 100)]),
    ]


def _curve(figures: Figures) -> str:
    """Return the chart of throughput against latency, a point per five seconds."""
    bins: dict[int, list[Mapping[str, Any]]] = {}
    for each in figures["timeline"]:
        bins.setdefault(each["second"] // _BIN_S, []).append(each)

    def points(key: str) -> list[tuple[float, float]]:
        made = []
        for part in bins.values():
            known = [each[key] for each in part if each[key] is not None]
            if known:
                tokens = sum(each["output_tokens"] for each in part) / len(part)
                made.append((tokens, 1e3 * sum(known) / len(known)))
        return made

    series = [Points("TTFT p95", points("ttft_p95_s")), Points("ITL p95", points("itl_p95_s"))]
    return scatter("Throughput and latency", "output tokens/s, five seconds each", "ms", series)


def _slo(figures: Figures, key: str, times: Sequence[float]) -> list[Line]:
    bound = figures["scenario"].get(key)
    return [] if bound is None else [Line("SLO", [1e3 * bound] * len(times))]


def _scaled(value: float | None, scale: float) -> float:
    return math.nan if value is None else scale * value


def _cells(times: Mapping[str, float | None]) -> str:
    return "".join(f"<td>{_ms(times[name])}" for name in ("mean", "p50", "p90", "p95", "p99", "max"))


def _shown(form: str, scale: float) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else format(scale * value, form)


_ms = _shown(",.1f", 1e3)
_us = _shown(",.0f", 1.0)
_part = _shown(".2%", 1.0)
