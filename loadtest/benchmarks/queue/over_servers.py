"""Requests per second of one pool over several servers of a Redis Cluster: with one cell, and with a cell for each.

The CPU of the busiest server bounds a pool, where routers have cores enough. So the figure is requests per second of
that server's CPU, which a machine with few cores gives too. Each cell has as many replicas and clients as the pool of
one cell, as a pool has that needs several.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.queue import end_to_end
from loadtest.benchmarks.queue.end_to_end import EndToEnd
from loadtest.benchmarks.queue.meter import Meter
from loadtest.benchmarks.queue.servers import cluster_url, redis_cluster

ROUNDS = 3
AIM = 3.2
"""Least ratio that four servers are to give."""


@dataclass(frozen=True, slots=True)
class OverServers:
    """Figures of one pool with one cell, and with one for each server, by kind of load."""

    servers: int
    one: tuple[EndToEnd, ...]
    many: tuple[EndToEnd, ...]

    @property
    def ratios(self) -> list[float]:
        """Requests per second that the servers' CPU allows with many cells, of those with one, round by round."""
        return [
            one.busiest_us_per_request / many.busiest_us_per_request
            for one, many in zip(self.one, self.many, strict=True)
        ]

    def fields(self) -> dict[str, object]:
        """Return the figures for a file."""
        found = {"servers": self.servers, "ratio": statistics.median(self.ratios), "ratios": self.ratios}
        return found | {"one": [asdict(each) for each in self.one], "many": [asdict(each) for each in self.many]}


async def measure(servers: int, sequences: int, seconds: float, binary: str, *, rounds: int = ROUNDS) -> OverServers:
    """Measure a pool with this many slots per replica, both ways in turns."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        async with redis_cluster(servers, Path(folder), binary) as clients:
            url, meters = cluster_url(clients), [Meter(client) for client in clients]
            found: dict[int, list[EndToEnd]] = {1: [], servers: []}
            for number in range(rounds):
                for cells in found:
                    pool = f"many-{cells}-{sequences}-{number}"
                    found[cells].append(await end_to_end.run(url, meters, sequences, seconds, pool=pool, cells=cells))
    return OverServers(servers, tuple(found[1]), tuple(found[servers]))


def show(measured: Sequence[OverServers], console: Console) -> None:
    """Print the figures."""
    if not measured:
        return
    table = Table(title=f"One pool on {measured[0].servers} servers of a Redis Cluster (medians)")
    names = ("slots", "cells", "requests/s here", "Redis us/request", "of the busiest server", "its requests/s")
    add_columns(table, *names)
    for each in measured:
        for cells, runs in ((1, each.one), (each.servers, each.many)):
            busiest = statistics.median(run.busiest_us_per_request for run in runs)
            table.add_row(
                f"{runs[0].slots}",
                f"{cells}",
                f"{statistics.median(run.grants_per_s for run in runs):,.0f}",
                f"{statistics.median(run.redis_us_per_request for run in runs):.0f}",
                f"{busiest:.0f}",
                f"{1e6 / busiest:,.0f}",
            )
    print_table(table, console)
    for each in measured:
        low, high = min(each.ratios), max(each.ratios)
        console.print(
            f"{each.servers} cells, of one: {statistics.median(each.ratios):.2f} times the requests "
            f"({low:.2f} to {high:.2f}; aim {AIM})",
            highlight=False,
        )
