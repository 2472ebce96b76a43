"""`python -m loadtest.benchmarks.queue`: prints a table, writes JSON. The status is 1 where a bar is missed."""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import redis.asyncio
from rich.console import Console
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.redis.check import server_of
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.queue import axes, cells, end_to_end, idle_path, over_servers
from loadtest.benchmarks.queue.axes import AxisBench, AxisCost, QueueSize
from loadtest.benchmarks.queue.cells import CallRatios, Ground
from loadtest.benchmarks.queue.end_to_end import EndToEnd
from loadtest.benchmarks.queue.idle_path import RoundTrips
from loadtest.benchmarks.queue.meter import Meter
from loadtest.benchmarks.queue.over_servers import OverServers

_COPY_TIMEOUT_S = 120.0
FULL_SEQUENCES = 8
"""Slots per replica if half of the clients wait."""
ROOMY_SEQUENCES = 64
"""Slots per replica if no client waits."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-queue", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--replicas", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--tenants", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--seconds", type=float, default=end_to_end.SECONDS, help="per end-to-end load")
    parser.add_argument("--servers", type=int, default=4, help="servers of a Redis Cluster, with a cell on each")
    parser.add_argument("--only", choices=("calls", "end-to-end", "servers"), help="run one part")
    parser.add_argument("--redis", default="", help="redis-server to run (default: as `penstock up` finds it)")
    options = parser.parse_args()
    console = screen()
    try:
        cells.check_memory(max(options.waiting))
    except MemoryError as error:
        console.print(f"bench-queue: {error}", style="red", markup=False)
        return 1
    import uvloop

    return int(uvloop.run(_bench(options, console)))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        server = await EmbeddedRedis.start(Path(folder), Path(folder) / "redis.log", options.redis)
        client = redis.asyncio.Redis.from_url(server.url, socket_timeout=_COPY_TIMEOUT_S, protocol=2)
        meter = Meter(client)
        try:
            version = server_of(await client.info("server"))
            trips = await idle_path.count_round_trips(server.url, meter)
            console.print(
                f"{version}; one request while nobody waits: {trips.before_dispatch} round trip before dispatch, "
                f"{trips.after} after",
                highlight=False,
            )
            measured: list[AxisCost] = []
            late: CallRatios | None = None
            if options.only in (None, "calls"):
                measured = await _calls(options, AxisBench(server.url, client, meter, console))
                late = await _late(options, server.url, client, meter, console)
            ends = await _ends(options, server.url, meter, console) if options.only in (None, "end-to-end") else []
        finally:
            await client.aclose()
            await server.stop()
    axes.show(measured, console)
    _print_late(late, console)
    _print_ends(ends, console)
    several = await _servers(options, console) if options.only in (None, "servers") else []
    over_servers.show(several, console)
    if options.json:
        fields = {"redis": version} | _fields(trips, measured, late, ends)
        fields["over_servers"] = [each.fields() for each in several]
        options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 0 if all(each.held for each in measured) else 1


async def _calls(options: argparse.Namespace, bench: AxisBench) -> list[AxisCost]:
    least = QueueSize(min(options.waiting), min(options.replicas), min(options.tenants))
    return await bench.measure(axes.points(options.waiting, options.replicas, options.tenants), least)


async def _late(
    options: argparse.Namespace, url: str, client: redis.asyncio.Redis, meter: Meter, console: Console
) -> CallRatios:
    """Compare a line of late entries, which have still to be moved, with a line without late ones."""
    waitings, replicas, tenants = sorted(options.waiting), min(options.replicas), min(options.tenants)
    waiting = waitings[len(waitings) // 2]
    usual, late = (Ground(url, client, tenants, f"late-{after_ms}", after_ms) for after_ms in (0, 1))
    for ground in (usual, late):
        await axes.load(ground, waiting, console)
    with console.status(f"{waiting:,} late requests against as many that are not"):
        async with usual.scene(waiting, replicas) as small, late.scene(waiting, replicas) as large:
            *_, ratios = await cells.compare(small, large, meter)
            return ratios


async def _ends(options: argparse.Namespace, url: str, meter: Meter, console: Console) -> list[EndToEnd]:
    ends = []
    for sequences in (FULL_SEQUENCES, ROOMY_SEQUENCES):
        with console.status(f"{end_to_end.PROCESSES} router processes, {sequences} slots per replica"):
            await meter.settle()
            ends.append(await end_to_end.run(url, [meter], sequences, options.seconds))
    return ends


async def _servers(options: argparse.Namespace, console: Console) -> list[OverServers]:
    several = []
    for sequences in (FULL_SEQUENCES, ROOMY_SEQUENCES):
        with console.status(f"one pool on {options.servers} servers, {sequences} slots per replica"):
            several.append(await over_servers.measure(options.servers, sequences, options.seconds, options.redis))
    return several


def _fields(
    trips: RoundTrips, measured: list[AxisCost], late: CallRatios | None, ends: list[EndToEnd]
) -> dict[str, object]:
    fields: dict[str, object] = {"round_trips": asdict(trips), "axes": [each.fields() for each in measured]}
    if late is not None:
        fields["late_over_usual"] = asdict(late)
    if ends:
        full, roomy = ends
        fields |= {
            "submits_per_s": full.submits_per_s,
            "grants_per_s": full.grants_per_s,
            "end_to_end": {"half_wait": asdict(full), "nobody_waits": asdict(roomy)},
        }
    return fields


def _print_late(late: CallRatios | None, console: Console) -> None:
    if late is not None:
        words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in asdict(late).items())
        console.print(f"a line that is late as a whole, of one without late requests: {words}", highlight=False)


def _print_ends(ends: list[EndToEnd], console: Console) -> None:
    if not ends:
        return
    clients = end_to_end.PROCESSES * end_to_end.CLIENTS
    table = Table(title=f"{end_to_end.PROCESSES} router processes, {clients} clients, {end_to_end.REPLICAS} replicas")
    add_columns(table, "slots", "submits/s", "grants/s", "granted at once", "Redis us/request", "Redis busy")
    for one in ends:
        table.add_row(
            f"{one.slots}",
            f"{one.submits_per_s:,.0f}",
            f"{one.grants_per_s:,.0f}",
            f"{100 * one.at_once:.0f} %",
            f"{one.redis_us_per_request:.0f}",
            f"{100 * one.redis_busy:.0f} %",
        )
    print_table(table, console)


if __name__ == "__main__":
    end("bench-queue", main)
