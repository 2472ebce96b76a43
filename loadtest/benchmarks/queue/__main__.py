"""`python -m loadtest.benchmarks.queue`: prints a table, writes JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import redis.asyncio
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.redis.check import server_of
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.queue import cells, end_to_end, idle_path, over_servers
from loadtest.benchmarks.queue.cells import CallCost, Corners, Ground
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
    parser.add_argument("--only", choices=("cells", "end-to-end", "servers"), help="run one part")
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
            measured: list[CallCost] = []
            corners: Corners | None = None
            late: Corners | None = None
            if options.only in (None, "cells"):
                measured, corners = await _cells(options, server.url, client, meter, console)
                late = await _late(options, server.url, client, meter, console)
            ends = await _ends(options, server.url, meter, console) if options.only in (None, "end-to-end") else []
        finally:
            await client.aclose()
            await server.stop()
    _print_cells(measured, corners, late, console)
    _print_ends(ends, console)
    several = await _servers(options, console) if options.only in (None, "servers") else []
    over_servers.show(several, console)
    if options.json:
        fields = {"redis": version} | _fields(trips, measured, corners, late, ends)
        fields["over_servers"] = [each.fields() for each in several]
        options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 0


async def _cells(
    options: argparse.Namespace, url: str, client: redis.asyncio.Redis, meter: Meter, console: Console
) -> tuple[list[CallCost], Corners]:
    measured = []
    waitings, replicas, tenants = sorted(options.waiting), sorted(options.replicas), sorted(options.tenants)
    for some_tenants in tenants:
        ground = Ground(url, client, some_tenants, f"ground-{some_tenants}")
        for some_waiting in waitings:
            await _load(ground, some_waiting, console)
            for some_replicas in replicas:
                title = f"{some_waiting:,} waiting, {some_replicas} replicas, {some_tenants:,} tenants: "
                with console.status(title + "measuring"):
                    cell = await cells.measure(ground, meter, some_waiting, some_replicas)
                measured.append(cell)
                figures = f"submit {cell.submit_us:.0f}, fill {cell.fill_us:.0f}, release {cell.release_us:.0f} us"
                console.print(title + figures, highlight=False)
        if some_tenants != tenants[-1]:
            await ground.clear()
    small_ground = Ground(url, client, tenants[0], "small")
    with console.status("the largest cell against the smallest"):
        await small_ground.grow(waitings[0])
        async with (
            small_ground.scene(waitings[0], replicas[0]) as small,
            ground.scene(waitings[-1], replicas[-1]) as large,
        ):
            corners = await cells.compare(small, large, meter)
    await small_ground.clear()
    await ground.clear()
    return measured, corners


async def _late(
    options: argparse.Namespace, url: str, client: redis.asyncio.Redis, meter: Meter, console: Console
) -> Corners:
    """Compare a line of late entries, which have still to be moved, with a line without late ones."""
    waitings, replicas, tenants = sorted(options.waiting), min(options.replicas), min(options.tenants)
    waiting = waitings[len(waitings) // 2]
    usual, late = (Ground(url, client, tenants, f"late-{after_ms}", after_ms) for after_ms in (0, 1))
    for ground in (usual, late):
        await _load(ground, waiting, console)
    with console.status(f"{waiting:,} late requests against as many that are not"):
        async with usual.scene(waiting, replicas) as small, late.scene(waiting, replicas) as large:
            return await cells.compare(small, large, meter)


async def _load(ground: Ground, waiting: int, console: Console) -> None:
    began = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"{waiting:,} waiting, {ground.tenants:,} tenants: loading", total=None)
        await ground.grow(waiting, lambda count: progress.advance(bar, count))
    title = f"{waiting:,} waiting, {ground.tenants:,} tenants: loaded after {time.monotonic() - began:.0f} s"
    console.print(title, highlight=False)


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
    trips: RoundTrips, measured: list[CallCost], corners: Corners | None, late: Corners | None, ends: list[EndToEnd]
) -> dict[str, object]:
    fields: dict[str, object] = {"round_trips": asdict(trips), "cells": [asdict(cell) for cell in measured]}
    if corners is not None:
        fields["largest_over_smallest"] = asdict(corners)
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


def _print_cells(measured: list[CallCost], corners: Corners | None, late: Corners | None, console: Console) -> None:
    if corners is None or late is None:
        return
    table = Table(title="CPU of Redis per call, us (in brackets: wall time inside the script)")
    names = ("waiting", "replicas", "tenants", "submit", "fill", "release", "router beat", "replica beat")
    add_columns(table, *names)
    for cell in measured:
        table.add_row(
            f"{cell.waiting:,}",
            f"{cell.replicas}",
            f"{cell.tenants:,}",
            f"{cell.submit_us:.1f} ({cell.submit_script_us:.1f})",
            f"{cell.fill_us:.1f} ({cell.fill_script_us:.1f})",
            f"{cell.release_us:.1f} ({cell.release_script_us:.1f})",
            f"{cell.router_beat_us:,.0f}",
            f"{cell.replica_beat_us:,.0f}",
        )
    print_table(table, console)
    for name, value in asdict(corners).items():
        ratio = asdict(late)[name]
        console.print(
            f"{name:8} largest over smallest cell {value:.2f}, all late over none {ratio:.2f}", highlight=False
        )


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
