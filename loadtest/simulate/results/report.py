"""Tables of a run's figures."""

from __future__ import annotations

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from cluster.plural import counted
from cluster.terminal.tables import add_columns
from loadtest.simulate.results.figures import Figures, Spread


def table_of(figures: Figures, title: str, slo: str) -> Group:
    """Return the figures for a terminal. `slo` is the SLO of the attainment in words."""
    times = Table(title=escape(title))
    add_columns(times, "", "mean", "p50", "p95", "p99", words=("",))
    rows = {"TTFT": figures.ttft_s, "ITL": figures.itl_s, "E2E": figures.e2e_s, "queue": figures.queue_s}
    for name, each in rows.items():
        times.add_row(name, *_times(each))
    counts = Table.grid(padding=(0, 2))
    lost = f", {figures.unfinished:,} unfinished" if figures.unfinished else ""
    asleep = f" ({figures.asleep_hours:.2f} asleep)" if figures.asleep_hours else ""
    rate = f"{figures.output_tokens / max(figures.virtual_s, 1e-9):,.0f} output tokens/s"
    ends = f"{figures.completed:,} completed, {figures.rejected:,} rejected{lost}"
    for name, text in {
        "requests": f"{figures.requests:,}: {ends}; {rate}",
        "attainment": f"{figures.attainment:.2%} ({slo}), worst 5 minutes {figures.worst_5min_attainment:.2%}",
        "replicas": f"{figures.replica_hours:.2f} hours{asleep}, {counted(figures.scale_events, 'change')}, "
        f"{counted(figures.reversals, 'reversal')}",
        "preemptions": f"{figures.preemptions:,}",
        "queue": figures.queue,
        "took": f"{figures.wall_s:.1f} s ({figures.cpu_s:.1f} s of CPU) for {figures.virtual_s:,.0f} s",
        **{
            name: f"{counted(each['requests'], 'request')}, attainment {each['attainment']:.2%}, "
            f"{counted(each['output_tokens'], 'output token')}"
            for name, each in figures.classes.items()
        },
    }.items():
        counts.add_row(name, text)
    return Group(times, counts)


def _times(each: Spread) -> list[str]:
    values = (each.mean, each.p50, each.p95, each.p99)
    return ["-" if value is None else f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms" for value in values]
