"""The report of a run as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.plural import counted
from loadtest.report.charts import Chart, Rule, distribution
from loadtest.report.compare import Measure, comparison
from loadtest.report.document import Document, Grid, Part, Tile, Verdict, render
from loadtest.report.origin import shown_origin
from loadtest.report.units import shown_bound, shown_part, shown_time
from loadtest.simulate.results.figures import Figures, Spread
from loadtest.simulate.results.simulated import Simulated
from loadtest.simulate.results.timeline import timeline_of
from loadtest.simulate.setup import Setup

GOAL = 0.99
"""Part of the requests within their SLO from which a run counts as one that held it."""
_COLUMNS = ("mean", "p50", "p95", "p99")


def write_html(path: Path, what: Simulated) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    figures = what.figures
    charts = timeline_of(what.run, what.setup)
    short = [] if charts else ["The run was too short for charts over time."]
    alone = {"this run": figures.as_json()}
    document = Document(
        what.title,
        "Simulation",
        _verdict(figures),
        what.load,
        tiles=_tiles(figures),
        parts=[
            *(_compared(figures, other, name) for name, other in what.others.items()),
            Part("Course and distributions", short, charts=[*charts, *_distributions(alone, what.setup)]),
            Part("Times", grid=_times(figures)),
            *_classes(figures),
        ],
        origin=shown_origin(what.origin),
    )
    path.write_text(render(document), encoding="utf-8")


def _verdict(figures: Figures) -> Verdict:
    if not figures.requests:
        return Verdict(None, "No verdict", "The trace has no requests.")
    held = figures.attainment >= GOAL
    text = (
        f"{shown_part(figures.attainment)} of {counted(figures.requests, 'request')} kept the SLO; the bound is 99 %."
    )
    return Verdict(held, "Held" if held else "Broken", text)


def _tiles(figures: Figures) -> list[Tile]:
    lost = f"{figures.rejected:,} rejected, {figures.unfinished:,} unfinished"
    worst = f"worst 5 minutes {shown_part(figures.worst_5min_attainment)}"
    changes = counted(figures.scale_events, "change of the count", "changes of the count")
    return [
        Tile("Within the SLO", shown_part(figures.attainment), worst),
        Tile("TTFT p99", shown_time(figures.ttft_s.p99), f"median {shown_time(figures.ttft_s.p50)}"),
        Tile("ITL p99", shown_time(figures.itl_s.p99), f"median {shown_time(figures.itl_s.p50)}"),
        Tile("Replica hours", f"{figures.replica_hours:.2f}", changes),
        Tile("Requests", f"{figures.requests:,}", lost, bad=figures.rejected + figures.unfinished > 0),
    ]


def _times(figures: Figures) -> Grid:
    rows = {"TTFT": figures.ttft_s, "ITL": figures.itl_s, "E2E": figures.e2e_s, "Queue": figures.queue_s}
    return Grid(("", *_COLUMNS), [[name, *_cells(each)] for name, each in rows.items()])


def _classes(figures: Figures) -> list[Part]:
    if not figures.classes:
        return []
    head = ("class", "requests", "completed", "rejected", "within the SLO", "TTFT p50", "TTFT p99", "output tokens")
    rows = [
        [name, *(f"{each[count]:,}" for count in ("requests", "completed", "rejected")), shown_part(each["attainment"]),
         shown_time(each["ttft_s"]["p50"]), shown_time(each["ttft_s"]["p99"]), f"{each['output_tokens']:,}"]
        for name, each in figures.classes.items()
    ]  # fmt: skip
    return [Part("Classes", grid=Grid(head, rows))]


def _compared(figures: Figures, other: Mapping[str, Any], file: str) -> Part:
    name, here = Path(file).stem, figures.as_json()

    def part(title: str, key: str) -> Measure:
        return Measure(title, here[key], other[key], ".2%", more_is_better=True)

    times = [
        Measure(f"{title} {figure}", here[key][figure], other[key][figure], "time")
        for key, title in (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("e2e_s", "E2E"))
        for figure in ("p50", "p95", "p99")
    ]
    measures = [
        part("Within the SLO", "attainment"),
        part("Worst 5 minutes", "worst_5min_attainment"),
        *times,
        Measure("Replica hours", here["replica_hours"], other["replica_hours"], ",.2f"),
        Measure("Rejected", here["rejected"], other["rejected"], ",.0f"),
        Measure("Preemptions", here["preemptions"], other["preemptions"], ",.0f"),
    ]  # fmt: skip
    said = [] if here["requests"] == other["requests"] else [
        f"{name} had {counted(other['requests'], 'request')}, so its figures are of another load."
    ]  # fmt: skip
    command = other.get("origin", {}).get("command")
    said += [f"{name}: {command}"] if command else []
    charts = _distributions({"this run": here, name: other}, None)
    return Part(f"Compared with {name}", said, charts=charts, grid=comparison(measures, name))


def _distributions(runs: Mapping[str, Mapping[str, Any]], setup: Setup | None) -> list[Chart]:
    bounds = {"ttft_s": setup.slo.ttft_s, "itl_s": setup.slo.itl_s} if setup is not None else {}
    return [
        distribution(
            title,
            [(name, each.get("distributions", {}).get(key, ())) for name, each in runs.items()],
            [Rule(f"SLO {shown_bound(bounds[key])}", 1e3 * bounds[key], across=True)] if key in bounds else [],
        )
        for key, title in (("ttft_s", "TTFT"), ("itl_s", "ITL"))
    ]


def _cells(each: Spread) -> list[str]:
    return [shown_time(value) for value in (each.mean, each.p50, each.p95, each.p99)]
