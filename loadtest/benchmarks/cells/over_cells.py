"""Cost of a request against the number of a pool's cells, on a real Redis Cluster with real routers' queues.

The load, the replicas and the servers stay the same. Figures are CPU per request, because a machine with few cores says
little of the rate that more would reach.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.queue import end_to_end
from loadtest.benchmarks.queue.end_to_end import EndToEnd, PoolParts
from loadtest.benchmarks.queue.meter import Meter
from loadtest.benchmarks.queue.servers import cluster_url, redis_cluster

CELLS = (1, 2, 4, 8, 16, 64)
REPLICAS = 64
SEQUENCES = {"half of the clients wait": 2, "nobody waits": 8}
"""Slots of a replica by kind of load."""
CLIENTS = 256


@dataclass(frozen=True, slots=True)
class CellCost:
    """Runs of a pool with one number of cells, under one kind of load."""

    load: str
    cells: int
    runs: tuple[EndToEnd, ...]

    def median(self, pick: Callable[[EndToEnd], float]) -> float:
        """Return the median of a figure over the runs."""
        return statistics.median(pick(run) for run in self.runs)


@dataclass(frozen=True, slots=True)
class CellBench:
    """What to measure."""

    servers: int = 4
    processes: int = 3
    seconds: float = 4.0
    rounds: int = 2
    cells: tuple[int, ...] = CELLS
    redis: str = ""
    """The redis-server to run; empty as `penstock up` finds it."""


async def measure(bench: CellBench, tick: Callable[[str], None] = lambda _: None) -> list[CellCost]:
    """Measure all numbers of cells in turns, so that other work on the machine slows all."""
    found = dict[tuple[str, int], list[EndToEnd]]()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        async with redis_cluster(bench.servers, Path(folder), bench.redis) as clients:
            url, meters = cluster_url(clients), [Meter(client) for client in clients]
            for number in range(bench.rounds):
                for load, sequences in SEQUENCES.items():
                    for cells in bench.cells:
                        tick(f"{cells} cells, {load}, round {number + 1} of {bench.rounds}")
                        name = f"cells-{cells}-{sequences}-{number}"
                        parts = PoolParts(name, cells, REPLICAS, bench.processes, CLIENTS)
                        run = await end_to_end.run_parts(url, meters, sequences, bench.seconds, parts)
                        found.setdefault((load, cells), []).append(run)
    return [CellCost(load, cells, tuple(runs)) for (load, cells), runs in found.items()]


def fields_of(measured: Sequence[CellCost]) -> list[dict[str, object]]:
    """Return the figures for a file."""
    return [{"load": each.load, "cells": each.cells, "runs": [asdict(run) for run in each.runs]} for each in measured]


def show(measured: Sequence[CellCost], bench: CellBench, console: Console) -> None:
    """Print the figures."""
    title = f"CPU per request, us: {bench.servers} servers, {bench.processes} routers (medians of {bench.rounds})"
    table = Table(title=title)
    names = ("cells", "Redis", "busiest", "least busy", "routers", "calls/request", "requests/s here")
    add_columns(table, "load", *names, words=("load",))
    for each in measured:
        table.add_row(
            each.load,
            f"{each.cells}",
            f"{each.median(lambda run: run.redis_us_per_request):.0f}",
            f"{each.median(lambda run: run.busiest_us_per_request):.0f}",
            f"{each.median(lambda run: min(run.servers_us_per_request)):.0f}",
            f"{each.median(lambda run: run.router_us_per_request):.0f}",
            f"{each.median(lambda run: run.scripts_per_request):.2f}",
            f"{each.median(lambda run: run.grants_per_s):,.0f}",
        )
    print_table(table, console)
