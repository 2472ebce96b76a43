"""`python -m loadtest.benchmarks.connections`: prints tables, writes JSON. Exits with 1 where a stream was lost."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.open_files import need_open_files
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import above_zero, whole
from loadtest.benchmarks.connections.run import PHASES, SPARE_FILES, ConnectionPlan, ConnectionRun
from loadtest.benchmarks.connections.wire import APIS
from loadtest.benchmarks.ending import end

_NAME = "bench-connections"


def main() -> int:
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--connections", type=whole(1), default=20_000, help="slow ones, all APIs together (20000)")
    parser.add_argument("--api", choices=APIS, help="of the slow ones (half of them over HTTP, half over gRPC)")
    parser.add_argument("--streams-each", type=whole(1), default=1, help="streams that share a gRPC connection (1)")
    parser.add_argument("--plain", action="store_true", help="without TLS: storms are of plain connections then")
    parser.add_argument("--processes", type=whole(1), default=2, help="client processes of the slow streams (2)")
    parser.add_argument("--rounds", type=whole(0), default=5, help="rounds of a quiet time and four storms (5)")
    parser.add_argument("--seconds", type=above_zero, default=6.0, help="duration of each (6)")
    parser.add_argument("--at-once", type=whole(1), default=64, help="handshakes of a storm at the same time (64)")
    parser.add_argument("--key", choices=("ecdsa", "rsa"), default="ecdsa", help="kind of the router's key")
    parser.add_argument("--nice", type=whole(0, 19), default=10, help="how far clients stand back for the cluster (10)")
    options = parser.parse_args()
    import uvloop

    need_open_files(options.connections + SPARE_FILES, "the router's process")
    plan = ConnectionPlan(
        connections=options.connections,
        apis=APIS if options.api is None else (options.api,),
        streams_each=options.streams_each,
        tls=not options.plain,
        processes=options.processes,
        rounds=options.rounds,
        seconds=options.seconds,
        at_once=options.at_once,
        key=options.key,
        nice=options.nice,
    )
    console = screen()
    figures = uvloop.run(_bench(plan, console))
    for table in tables(figures):
        print_table(table, console)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    found = missed(figures)
    for miss in found:
        console.print(f"{_NAME}: {miss}", style="red", markup=False)
    return int(bool(found))


async def _bench(plan: ConnectionPlan, console: Console) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Progress(console=console, transient=True) as progress,
    ):
        totals = {f"{api} connections": plan.connections_of(api) for api in plan.apis} | {
            "storms": len(PHASES) * plan.rounds
        }
        bars: dict[str, TaskID] = {name: progress.add_task(name, total=total) for name, total in totals.items()}
        server = await EmbeddedRedis.start(Path(folder), Path(folder) / "redis.log")
        try:
            told = lambda name, more: progress.advance(bars[name], more)  # noqa: E731
            return await ConnectionRun(plan, Path(folder), server.url, told).run()
        finally:
            await server.stop()


def tables(figures: dict[str, Any]) -> list[Table]:
    """Draw the figures."""
    memory = figures["memory_mb"]
    opened = Table(
        title=f"{figures['streams']:,} streams: {memory['idle']:,} MB before, "
        f"{memory['all']:,} with all, {memory['after']:,} after them"
    )
    names = ("connections", "streams", "KB per stream", "CPU ms per stream", "connections per s")
    add_columns(opened, "API", *names, words=("API",))
    for api, row in figures["open"].items():
        opened.add_row(api, *(f"{row[name]:,}" for name in ("connections", "streams", "kb", "cpu_ms", "per_s")))
    storms = Table(title=f"storms of handshakes ({figures['key']})")
    add_columns(storms, "port", "per s", "CPU ms each", "p50 ms", "p99 ms", words=("port",))
    for api, row in figures["storms"].items():
        storms.add_row(api, *(f"{row[name]:,}" for name in ("per_s", "cpu_ms", "p50_ms", "p99_ms")))
    gaps = Table(title="time between two tokens of watched streams, ms; p99 of another phase's; CPU of a turn")
    columns = ("p50", "p99", "of quiet", "of other router", "turn p50", "turn p99")
    add_columns(gaps, "phase", "API", *columns, words=("phase", "API"))
    for phase, row in figures["itl_ms"].items():
        for api, parts in row.items():
            storm = figures["storms"].get(phase, {})
            ratios = [_ratio(storm.get(name, {}).get(api)) for name in ("itl_p99_of_quiet", "itl_p99_of_other_router")]
            turns = [f"{value:,}" for value in figures["turn_ms"][phase].values()]
            gaps.add_row(phase, api, f"{parts['p50']:,}", f"{parts['p99']:,}", *ratios, *turns)
    shares = Table(title="cores in use")
    parties = tuple(next(iter(figures["cpu_share"].values())))
    add_columns(shares, "phase", *parties, words=("phase",))
    for phase, row in figures["cpu_share"].items():
        shares.add_row(phase, *(f"{row[party]:.2f}" for party in parties))
    return [opened, storms, gaps, shares] if figures["storms"] else [opened, shares]


def _ratio(values: Sequence[float] | None) -> str:
    return f"{sorted(values)[len(values) // 2]} ({min(values)} to {max(values)})" if values else ""


def missed(figures: dict[str, Any]) -> list[str]:
    """List failures that must not happen."""
    found = [f"{number} streams: {cause}" for cause, number in figures["ends"].items()]
    for api, row in figures["storms"].items():
        found += [f"{number} handshakes over {api}: {cause}" for cause, number in row["failed"].items()]
    return found


if __name__ == "__main__":
    end("bench-connections", main)
