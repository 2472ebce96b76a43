"""The course of a run as one self-contained HTML file."""

from __future__ import annotations

from html import escape
from pathlib import Path

from cluster.plural import counted
from loadtest.report.page import page
from loadtest.report.svg import line_chart
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.results.figures import Figures, Spread
from loadtest.simulate.results.timeline import timeline_of
from loadtest.simulate.setup import Setup


def write_html(path: Path, run: SimulatedRun, figures: Figures, setup: Setup, title: str) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    body = [f"<h1>{escape(title)}</h1>", _table(figures), *_charts(run, setup)]
    path.write_text(page(title, body), encoding="utf-8")


def _table(figures: Figures) -> str:
    rows = {"TTFT": figures.ttft_s, "ITL": figures.itl_s, "E2E": figures.e2e_s, "queue": figures.queue_s}
    times = "".join(f"<tr><td>{name}, ms{_cells(each)}</tr>" for name, each in rows.items())
    text = (
        f"{counted(figures.requests, 'request')}: {figures.completed:,} completed, {figures.rejected:,} rejected, "
        f"{figures.unfinished:,} unfinished. Attainment {figures.attainment:.2%}, {figures.replica_hours:.2f} replica "
        f"hours, {counted(figures.scale_events, 'change')} of the count, {counted(figures.reversals, 'reversal')}, "
        f"{counted(figures.preemptions, 'preemption')}."
    )
    return f"<p>{text}</p><table><tr><th><th>mean<th>p50<th>p95<th>p99</tr>{times}</table>"


def _cells(each: Spread) -> str:
    values = (each.mean, each.p50, each.p95, each.p99)
    return "".join("<td>-" if value is None else f"<td>{1e3 * value:,.1f}" for value in values)


def _charts(run: SimulatedRun, setup: Setup) -> list[str]:
    timeline = timeline_of(run, setup)
    if timeline is None:
        return ["<p>The run was too short for a timeline.</p>"]
    return [line_chart(each.title, each.unit, timeline.times_s, each.lines) for each in timeline.panels]
