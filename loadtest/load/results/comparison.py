"""The comparison of a load test with another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.load.results.words import cached_part, load_words, mix_words
from loadtest.report.charts import Chart, Series, distribution
from loadtest.report.compare import Measure, comparison, read_report
from loadtest.report.document import Part

Figures = Mapping[str, Any]

_NEEDS = ("requests", "goodput", "ttft_s", "itl_s", "e2e_s", "tokens_per_s", "timeline", "scenario")
_LOAD = {
    "rate": "requests/s",
    "duration_s": "seconds",
    "arrivals": "arrivals",
    "mix": "kinds",
    "seed": "seed",
    "trace": "trace",
    "scale_rate": "speed",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
}
"""Fields of a scenario that make it another load, and what they are called."""


def read_run(name: str) -> dict[str, Any]:
    """Read the JSON of another load test.

    Raises:
        SettingsError: it cannot be read, or is no such report.
    """
    return read_report(name, _NEEDS, "a load test")


def compared(figures: Figures, other: Figures, file: str) -> Part:
    """Return the part of a report that compares a run with another one.

    Args:
        figures: this run.
        other: the other run.
        file: its file.
    """
    name = Path(file).stem
    at = str(other.get("origin", {}).get("at", "")).replace("T", " ").replace("+00:00", " UTC")
    said = [f"{name}{f' of {at}' if at else ''}: {' '.join(load_words(other))}"]
    said += _differences(figures["scenario"], other["scenario"], name)
    charts = [
        _over_time("TTFT p95", "ms", "ttft_p95_s", 1e3, {"this run": figures, name: other}),
        _over_time("ITL p95", "ms", "itl_p95_s", 1e3, {"this run": figures, name: other}),
        _over_time("Throughput", "output tokens/s", "output_tokens", 1.0, {"this run": figures, name: other}),
        *(
            distribution(
                title,
                [(run, each.get("distributions", {}).get("all", {}).get(key, ())) for run, each in
                 (("this run", figures), (name, other))],
            )
            for key, title in (("ttft_s", "TTFT"), ("itl_s", "ITL"))
        ),
    ]  # fmt: skip
    return Part(f"Compared with {name}", said, charts=charts, grid=comparison(_measures(figures, other), name))


def _measures(here: Figures, there: Figures) -> list[Measure]:
    times = [
        Measure(f"{title} {figure}", here[key][figure], there[key][figure], "time")
        for key, title in (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("e2e_s", "E2E"))
        for figure in ("p50", "p95", "p99")
    ]
    return [
        Measure("Within the SLO", here["goodput"], there["goodput"], ".2%", more_is_better=True),
        *times,
        Measure("Throughput", here["tokens_per_s"], there["tokens_per_s"], ",.0f", "tokens/s", more_is_better=True),
        Measure("Requests", here["rps"], there["rps"], ",.2f", "per s", more_is_better=True),
        Measure("Failed", here["error_rate"], there["error_rate"], ".2%"),
        Measure("Prompt tokens from caches", cached_part(here), cached_part(there), ".1%", more_is_better=None),
    ]


def _differences(here: Figures, there: Figures, name: str) -> list[str]:
    """Warn where the loads differ: then so do the figures, whatever the cluster does."""
    found = [field for field in _LOAD if here.get(field) != there.get(field)]
    if not found:
        return []
    words = "; ".join(f"{_LOAD[field]} {_value(here, field)} here, {_value(there, field)} there" for field in found)
    return [f"The loads differ, so the figures of {name} are of other work: {words}."]


def _value(scenario: Figures, field: str) -> str:
    value = scenario.get(field)
    if value in (None, ""):
        return "none"
    if field == "mix":
        return mix_words(scenario["mix"])
    return Path(value).name if field == "trace" else f"{value:g}" if isinstance(value, float) else str(value)


def _over_time(title: str, unit: str, key: str, scale: float, runs: Mapping[str, Figures]) -> Chart:
    series = []
    for name, figures in runs.items():
        points = figures.get("course") or [{**each, "seconds": 1} for each in figures["timeline"]]
        times = [each["second"] + each["seconds"] / 2 for each in points]
        series.append(Series(name, times, [math.nan if each[key] is None else scale * each[key] for each in points]))
    return Chart(title, unit, series, x_axis="clock")
