"""The report of a run as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.plural import counted
from loadtest.load.results.words import load_words, verdict_of
from loadtest.report.charts import Chart, Rule, Series, distribution
from loadtest.report.document import Document, Grid, Part, Tile, Verdict, render
from loadtest.report.origin import shown_origin
from loadtest.report.units import shown_bound, shown_part, shown_time

Figures = Mapping[str, Any]

TIMES = (
    ("ttft_s", "TTFT"),
    ("itl_s", "ITL"),
    ("tpot_s", "Time per token"),
    ("e2e_s", "E2E"),
    ("queue_s", "Queue"),
)
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
_MOST_HOLD = 75.0
"""Percentage from which on the axis of the attainment begins near its smallest value."""
_LIVE_LOAD = 2
"""Charts of the load on a live page: requests and tokens."""
LIVE_S = 5
"""Seconds between two looks of a live page."""


def run_page(
    figures: Figures, verdicts: Sequence[tuple[str, bool]] = (), compared: Sequence[Part] = (), title: str = ""
) -> str:
    """Return the report of a run.

    Args:
        figures: those of `outputs.figures`, with the cluster's side.
        verdicts: sentences about bounds, and whether they hold.
        compared: comparison with another run.
        title: the title; empty for the scenario's name.
    """
    name = title or str(figures["scenario"].get("name", "load test"))
    return render(
        Document(
            name,
            "Load test",
            verdict_of(figures, verdicts),
            load_words(figures),
            _warnings(figures),
            tiles(figures),
            [*compared, *parts(figures)],
            shown_origin(figures.get("origin", {})),
        )
    )


def live_page(figures: Figures) -> str:
    """Return the page of a running test. It fetches itself again every few seconds."""
    return render(
        Document(
            str(figures["scenario"].get("name", "load test")),
            "Load test, running",
            _so_far(verdict_of(figures, ())),
            load_words(figures),
            _warnings(figures),
            tiles(figures),
            [
                Part("Over time", charts=[*latency_charts(figures), *load_charts(figures)[:_LIVE_LOAD]]),
                *_table_parts(figures),
            ],
            refresh_s=LIVE_S,
        )
    )


def _so_far(verdict: Verdict) -> Verdict:
    return verdict if verdict.held is None else replace(verdict, word=f"{verdict.word} so far")


def parts(figures: Figures) -> list[Part]:
    """Return the parts of a run's report: latencies, load, cluster, generator, tables."""
    if len(figures["timeline"]) < 2:
        return [Part("Over time", ["The run was too short for charts over time."]), *_table_parts(figures)]
    looks, failure = figures.get("cluster", ()), str(figures.get("cluster_failure", ""))
    cluster = [f"The cluster did not say how it was: {failure}."] if failure and len(looks) < 2 else []
    made = [
        Part("Latency", charts=[*latency_charts(figures), *distribution_charts(figures)]),
        Part("Load", charts=load_charts(figures)),
    ]
    if cluster or len(looks) > 1:
        made.append(Part("Cluster", cluster, charts=cluster_charts(looks)))
    return [*made, *_table_parts(figures), _generator(figures)]


def tiles(figures: Figures) -> list[Tile]:
    """Return the figures that a reader looks for first."""
    failed = figures["requests"] - figures["completed"]
    return [
        Tile("Within the SLO", shown_part(figures["goodput"]), _interval(figures)),
        Tile("TTFT p99", shown_time(figures["ttft_s"]["p99"]), f"median {shown_time(figures['ttft_s']['p50'])}"),
        Tile("ITL p99", shown_time(figures["itl_s"]["p99"]), f"median {shown_time(figures['itl_s']['p50'])}"),
        Tile("Throughput", f"{figures['tokens_per_s']:,.0f} tokens/s", f"{figures['rps']:.3g} requests/s"),
        Tile("Requests", f"{figures['requests']:,}", f"{failed:,} failed", bad=failed > 0),
    ]


def _interval(figures: Figures) -> str:
    sure = figures.get("attainment")
    return f"95 % sure: {100 * sure['low']:.1f} to {shown_part(sure['high'], 1)}" if sure else ""


def _warnings(figures: Figures) -> list[str]:
    made = [f"The generator was the bottleneck: {why}." for why in figures["generator"]["why"]]
    if figures.get("interrupted"):
        made.append("The run was interrupted. The figures are of what was sent until then.")
    if figures["clipped"]:
        made.append(f"{counted(figures['clipped'], 'request was', 'requests were')} cut to the model's context.")
    return made


def latency_charts(figures: Figures) -> list[Chart]:
    """Return TTFT, ITL, attainment and queue over time."""
    return [
        _course(figures, "TTFT", "ms", _percentiles("ttft"), rules=_slo_rules(figures, "ttft_s")),
        _course(figures, "ITL", "ms", _percentiles("itl"), rules=_slo_rules(figures, "itl_s")),
        _attained(figures),
        _course(figures, "Wait in the queue", "ms", _percentiles("queue", (50, 95))),
    ]


def _attained(figures: Figures) -> Chart:
    chart = _course(figures, "SLO attainment", "% of requests that ended", [("attainment", "goodput", 100.0)])
    least = min((value for value in chart.series[0].y if math.isfinite(value)), default=0.0)
    # From 0 on, 98 and 100 would look the same.
    return replace(chart, from_zero=least < _MOST_HOLD, most=100.0)


def load_charts(figures: Figures) -> list[Chart]:
    """Return requests, tokens and streams over time."""
    failed = [("failed", "failed", 1.0)] if figures["errors"] else []
    return [
        _course(figures, "Requests", "per second", [("ended", "ended", 1.0), *failed]),
        _course(figures, "Throughput", "output tokens/s", [("tokens", "output_tokens", 1.0)]),
        _course(figures, "Streams", "open", [("open", "running", 1.0)]),
        _against(figures),
    ]


def distribution_charts(figures: Figures) -> list[Chart]:
    """Return the cumulative distributions of TTFT and ITL, of each kind."""
    known = figures.get("distributions", {})
    kinds = [kind for kind in known if kind != "all"] if len(known) > 2 else ["all"]
    return [
        distribution(
            title, [(kind, known.get(kind, {}).get(key, ())) for kind in kinds], _slo_rules(figures, key, across=True)
        )
        for key, title in (("ttft_s", "TTFT"), ("itl_s", "ITL"))
    ]


def cluster_charts(looks: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return the charts of the cluster's side."""
    times = [float(each["at_s"]) for each in looks]

    def chart(title: str, unit: str, lines: Sequence[tuple[str, str, float]]) -> Chart:
        series = [Series(name, times, [_scaled(each[key], scale) for each in looks]) for name, key, scale in lines]
        return Chart(title, unit, series, x_axis="clock")

    # Where none starts or drains, a line would only cover the axis.
    looks = [{**each, **{name: each[name] or None for name in ("starting", "draining")}} for each in looks]
    return [
        chart("Queue depth", "requests", [("waiting", "waiting", 1.0)]),
        chart("Replicas", "count", [(name, name, 1.0) for name in ("ready", "starting", "draining")]),
        chart("Batch", "sequences", [("running", "running", 1.0), ("limits", "batch_limit", 1.0)]),
        chart("KV cache", "% used", [("used", "kv_usage", 100.0)]),
    ]


def _course(
    figures: Figures, title: str, unit: str, lines: Sequence[tuple[str, str, float]], rules: Sequence[Rule] = ()
) -> Chart:
    points = figures.get("course") or [{**each, "seconds": 1} for each in figures["timeline"]]
    times = [each["second"] + each["seconds"] / 2 for each in points]
    series = [Series(name, times, [_scaled(each[key], scale) for each in points]) for name, key, scale in lines]
    return Chart(title, unit, series, rules, x_axis="clock")


def _percentiles(of: str, percents: Sequence[int] = (50, 95, 99)) -> list[tuple[str, str, float]]:
    return [(f"p{percent}", f"{of}_p{percent}_s", 1e3) for percent in percents]


def _slo_rules(figures: Figures, key: str, *, across: bool = False) -> list[Rule]:
    slos = {kind: each[key] for kind, each in figures.get("slos", {}).items() if each.get(key)}
    made = []
    for value in sorted(set(slos.values())):
        kinds = ", ".join(kind for kind, each in slos.items() if each == value)
        of = f" of {kinds}" if len(set(slos.values())) > 1 else ""
        made.append(Rule(f"SLO{of} {shown_bound(value)}", 1e3 * value, across))
    return made


def _against(figures: Figures) -> Chart:
    """Return the chart of throughput against latency, a point per bin of the course."""

    def points(name: str, key: str) -> Series:
        known = [each for each in figures.get("course", ()) if each[key] is not None]
        return Series(name, [each["output_tokens"] for each in known], [1e3 * each[key] for each in known], "points")

    series = [points("TTFT p95", "ttft_p95_s"), points("ITL p95", "itl_p95_s")]
    return Chart("Throughput and latency", "ms", series, x_name="output tokens/s")


def _table_parts(figures: Figures) -> list[Part]:
    kinds = figures["by_kind"]
    shown = {**({"all": figures} if len(kinds) != 1 else {}), **kinds}
    made = []
    for kind, each in shown.items():
        rows = [[name, *(shown_time(each[key][column]) for column in _COLUMNS)] for key, name in TIMES]
        said = f"{counted(each['requests'], 'request')}, {shown_part(each['goodput'])} within the SLO"
        made.append(Part(f"Times of {kind}", [said + "."], grid=Grid(("", *_COLUMNS), rows)))
    if figures.get("failures"):
        items = [f"{each['count']:,} {each['said']}" for each in figures["failures"]]
        made.append(Part("Failures", items=items))
    return made


def _generator(figures: Figures) -> Part:
    generator = figures["generator"]
    cpu = generator["cpu_us_per_message"]
    said = (
        f"It sent requests at most {shown_time(generator['lag_s']['p99'])} late (p99), and used "
        f"{'-' if cpu is None else f'{cpu:,.0f}'} µs of CPU per message."
    )
    return Part("Load generator", [said], charts=[_course(figures, "Lag", "ms late", [("p99", "lag_p99_s", 1e3)])])


def _scaled(value: float | None, scale: float) -> float:
    return math.nan if value is None else scale * value
