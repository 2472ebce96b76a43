"""`python -m loadtest.benchmarks.reconnect`: prints a table, writes JSON. Exits with 1 if a stream was lost."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.open_files import raise_open_files
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import above_zero, whole
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.reconnect import clients as herd


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-herd", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--streams", type=whole(2), default=20_000, help="half of them lose their router (20000)")
    parser.add_argument("--processes", type=whole(1), default=2, help="client processes (2)")
    parser.add_argument("--quiet", type=above_zero, default=herd.QUIET_S, help="seconds before and after it (20)")
    parser.add_argument("--nice", type=whole(0, 19), default=5, help="how far clients stand back for the cluster (5)")
    options = parser.parse_args()
    import uvloop

    raise_open_files()
    return int(uvloop.run(_bench(options, screen())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Progress(console=console, transient=True) as progress,
    ):
        server = await EmbeddedRedis.start(Path(folder), Path(folder) / "redis.log")
        bar = progress.add_task("opening", total=options.streams)
        try:
            plan = herd.HerdPlan(options.streams, options.processes, options.quiet, options.nice)
            figures = await herd.run(Path(folder), server.url, plan, lambda n: progress.advance(bar, n))
        finally:
            await server.stop()
    for table in tables(figures):
        print_table(table, console)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    found = missed(figures)
    for miss in found:
        console.print(f"bench-herd: {miss}", style="red", markup=False)
    return int(bool(found))


def tables(figures: dict[str, Any]) -> list[Table]:
    """Draw the figures."""
    own = Table("figure", "value", title="a router dies")
    names = ("streams", "broken", "ends", "arrived_s", "back_s", "cores", "cpu_of_a_return_ms", "turn_ms", "rss_mb")
    for name in (*names, "lag_s"):
        value = figures[name]
        shown = ", ".join(f"{part} {number:,}" for part, number in value.items()) if isinstance(value, dict) else value
        own.add_row(name, f"{shown:,}" if isinstance(shown, int) else str(shown))
    parts = ("streams", "failed", "ttft_p50_ms", "ttft_p99_ms", "total_p50_ms", "total_p99_ms")
    neighbour = Table(title="short streams of another pool, at the router that is left")
    add_columns(neighbour, "phase", *parts, words=("phase",))
    for phase, row in figures["neighbour"].items():
        neighbour.add_row(phase, *(f"{row[name]:,}" if name in row else "" for name in parts))
    return [own, neighbour]


def missed(figures: dict[str, Any]) -> list[str]:
    """List failures that must not happen."""
    found = [f"{count} streams ended with {end}" for end, count in figures["ends"].items() if end != "whole"]
    if "all" not in figures["back_s"]:
        found.append("not every stream came back")
    failed = sum(row["failed"] for row in figures["neighbour"].values())
    return [*found, *([f"{failed} streams of the neighbour failed"] if failed else [])]


if __name__ == "__main__":
    end("bench-herd", main)
