"""Figures of a simulated pool, and their tables."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.cells.fairness import fairness
from loadtest.benchmarks.cells.setup import PoolSize
from loadtest.benchmarks.cells.simulation import PoolSimulation
from loadtest.benchmarks.cells.tally import CellTally

LEAST_DUE = 10
"""Mean requests that a tenant must be due to count for Jain's index."""
_IN_PROPORTION = ("submits", "releases", "mail", "moves")
"""Kinds of messages that requests cause; the others come with time."""


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """What came of one simulation."""

    size: PoolSize
    requests: int
    """Requests that arrived in the measured time."""
    granted: int
    phase: str
    seconds: int
    """Virtual seconds that were counted."""
    unavailable: int
    """Requests whose cell did not answer."""
    busy: float
    """Slots in use, of those that are there: mean over time."""
    jain: float
    """Jain's index of the tokens that tenants were served, of their share by weight in each class; of those that were
    due ten mean requests or more."""
    attainment: float
    """Part of the requests with the first token in the time of their class."""
    attainment_pinned: float
    attainment_small: float
    """Of tenants that send less than the mean one."""
    attainment_by_class: list[float]
    wait_p99_ms: int
    longest_ms: int
    longest_pinned_ms: int
    longest_small_ms: int
    longest_by_class_ms: list[int]
    moved: float
    """Moves per request."""
    most_moved: int
    """Most moves of one request."""
    replicas_moved: int
    idle_beside_a_line: float
    """Part of all slots that was free while as many requests waited elsewhere: mean over time."""
    spread: float
    """Largest difference of the cells' work per room: mean over time."""
    hottest_home: float
    """Largest part of all requests that must go to one cell, times the number of cells."""
    messages_per_request: float
    """Script calls of requests, per request."""
    messages_per_s: float
    """All script calls, per second."""
    beats_per_s: float
    """Script calls of heartbeats and looks, per second."""
    messages_per_cell_s: float
    """All script calls, per cell and second."""
    messages: dict[str, int]
    cpu_us_per_request: float
    """CPU of this simulation per request."""
    memory_mb: float

    def fields(self) -> dict[str, object]:
        """Return the figures for a file."""
        return asdict(self)


def figures_of(run: PoolSimulation, cpu_s: float, memory_mb: float) -> SizeFigures:
    """Work out the figures of a run until now."""
    return _figures(run, run.whole(), "whole", cpu_s, memory_mb)


def phases_of(run: PoolSimulation) -> list[SizeFigures]:
    """Work out the figures of the phases that have ended, and of the one that is under way."""
    names = [phase.name for phase in run.traffic.day.phases]
    return [_figures(run, part, name, 0.0, 0.0) for name, part in zip(names, run.tallies(), strict=False)]


def _figures(run: PoolSimulation, tally: CellTally, phase: str, cpu_s: float, memory_mb: float) -> SizeFigures:
    size, asked, served = run.size, tally.due(), np.array(tally.served, dtype=float)
    seconds = max(1, len(tally.spread))
    judged = max(1, sum(tally.by_class))
    caused = sum(tally.messages[kind] for kind in _IN_PROPORTION)
    total = tally.messages.total()
    least = LEAST_DUE * float(np.array(tally.asked).sum()) / max(1, tally.arrived)

    def attained(kind: str) -> float:
        return 1 - tally.late[kind] / tally.kinds[kind] if tally.kinds[kind] else 1.0

    return SizeFigures(
        size=size,
        requests=tally.arrived,
        granted=tally.granted,
        phase=phase,
        seconds=len(tally.spread),
        unavailable=tally.unavailable,
        busy=_mean(tally.busy),
        jain=fairness(served, asked, np.array(run.traffic.weights), least),
        attainment=sum(tally.in_time) / judged,
        attainment_pinned=attained("pinned"),
        attainment_small=attained("small"),
        attainment_by_class=[
            good / judged if judged else 1.0 for good, judged in zip(tally.in_time, tally.by_class, strict=True)
        ],
        wait_p99_ms=tally.wait(0.99),
        longest_ms=max(tally.longest.values()),
        longest_pinned_ms=tally.longest["pinned"],
        longest_small_ms=tally.longest["small"],
        longest_by_class_ms=tally.longest_by_class,
        moved=tally.moved / max(1, tally.arrived),
        most_moved=tally.most_moved,
        replicas_moved=tally.replicas_moved,
        idle_beside_a_line=_mean(tally.idle_beside_a_line),
        spread=_mean(tally.spread),
        hottest_home=max(run.traffic.homes()) * size.cells,
        messages_per_request=caused / max(1, tally.arrived),
        messages_per_s=total / seconds,
        beats_per_s=(total - caused) / seconds,
        messages_per_cell_s=total / seconds / size.cells,
        messages=dict(tally.messages),
        cpu_us_per_request=1e6 * cpu_s / max(1, run.arrived),
        memory_mb=memory_mb,
    )


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def show_phases(found: list[SizeFigures], console: Console) -> None:
    """Print the figures of a run's phases, a line for each."""
    table = Table(title="By phase")
    names = ("phase", "s", "requests", "busy", "Jain", "in time", "pinned", "by class", "longest by class s")
    add_columns(table, *names, "no cell", "moves/req", "replicas moved", "calls/req", "calls/s")
    for each in found:
        table.add_row(
            each.phase,
            f"{each.seconds:,}",
            f"{each.requests:,}",
            f"{each.busy:.1%}",
            f"{each.jain:.3f}",
            f"{each.attainment:.2%}",
            f"{each.attainment_pinned:.2%}",
            " ".join(f"{part:.1%}" for part in each.attainment_by_class),
            " ".join(f"{wait / 1000:.1f}" for wait in each.longest_by_class_ms),
            f"{each.unavailable:,}",
            f"{each.moved:.3f}",
            f"{each.replicas_moved:,}",
            f"{each.messages_per_request:.2f}",
            f"{each.messages_per_s:,.0f}",
        )
    print_table(table, console)


def show(found: list[SizeFigures], console: Console) -> None:
    """Print the figures, a line for each number of cells."""
    table = Table(title="On the virtual clock")
    names = (
        "cells",
        "requests",
        "busy",
        "Jain",
        "in time",
        "pinned",
        "small",
        "p99 ms",
        "longest ms",
        "idle by a line",
    )
    add_columns(table, *names, "spread", "moves/req", "most", "replicas moved")
    for each in found:
        table.add_row(
            f"{each.size.cells}",
            f"{each.requests:,}",
            f"{each.busy:.1%}",
            f"{each.jain:.3f}",
            f"{each.attainment:.2%}",
            f"{each.attainment_pinned:.2%}",
            f"{each.attainment_small:.2%}",
            f"{each.wait_p99_ms:,}",
            f"{each.longest_ms:,}",
            f"{each.idle_beside_a_line:.2%}",
            f"{each.spread:.2f}",
            f"{each.moved:.3f}",
            f"{each.most_moved}",
            f"{each.replicas_moved}",
        )
    print_table(table, console)
    cost = Table(title="Messages to Redis, and the simulation's own cost")
    columns = ("cells", "per request", "of time per s", "per cell and s", "hottest home", "CPU us/request", "memory MB")
    add_columns(cost, *columns)
    for each in found:
        cost.add_row(
            f"{each.size.cells}",
            f"{each.messages_per_request:.2f}",
            f"{each.beats_per_s:,.0f}",
            f"{each.messages_per_cell_s:,.0f}",
            f"{each.hottest_home:.1f}",
            f"{each.cpu_us_per_request:.1f}",
            f"{each.memory_mb:.0f}",
        )
    print_table(cost, console)
