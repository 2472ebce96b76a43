"""`python -m loadtest.benchmarks.cells`: a pool of cells on a virtual clock, and on a real Redis Cluster."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.terminal.console import screen
from cluster.terminal.lines import ProgressLines
from loadtest.benchmarks.cells import over_cells
from loadtest.benchmarks.cells.figures import SizeFigures, figures_of, phases_of, show, show_phases
from loadtest.benchmarks.cells.over_cells import CellBench
from loadtest.benchmarks.cells.setup import PoolSize
from loadtest.benchmarks.cells.simulation import PoolSimulation
from loadtest.benchmarks.ending import end

KEEP_S = 20.0
"""Time between two writes of the figures of a run that is under way."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-cells", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--cells", type=int, nargs="+", default=[1, 4], help="numbers of cells, each simulated")
    for field in fields(PoolSize):
        if field.name in ("cells", "weights", "day"):
            continue
        kind = type(getattr(PoolSize(), field.name))
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=kind, default=field.default, help=f"default: {field.default}")
    parser.add_argument("--only", choices=("simulate", "servers"), help="run one part")
    parser.add_argument("--servers", type=int, default=CellBench().servers, help="servers of the Redis Cluster")
    parser.add_argument("--processes", type=int, default=CellBench().processes, help="router processes")
    parser.add_argument("--rounds", type=int, default=CellBench().rounds, help="rounds on the Redis Cluster")
    parser.add_argument("--round-seconds", type=float, default=CellBench().seconds, help="of each number of cells")
    parser.add_argument("--redis", default="", help="redis-server to run (default: as `penstock up` finds it)")
    parser.add_argument("--no-weights", dest="weights", action="store_false", help="all tenants have weight 1")
    parser.add_argument(
        "--day",
        action="store_true",
        help="a wave, overload, hot homes, a cell that is cut off, replicas that go and come",
    )
    options = parser.parse_args()
    console = screen()
    given = {field.name: getattr(options, field.name) for field in fields(PoolSize) if field.name != "cells"}
    try:
        base = PoolSize(**given)
        sizes = [replace(base, cells=cells) for cells in options.cells]
    except ValueError as error:
        console.print(f"bench-cells: {error}", style="red", markup=False)
        return 2
    figures = dict[str, object]()
    if options.only != "servers":
        every = list[list[SizeFigures]]()
        for size in sizes:
            run = KeptSimulation(size, lambda so_far: _write(options.json, figures, [*every, so_far]))
            every.append(run.run(console))
        show([each[0] for each in every], console)
        for whole, *phases in every:
            if whole.size.day:
                show_phases(phases, console)
        _write(options.json, figures, every)
    if options.only != "simulate":
        bench = CellBench(
            options.servers, options.processes, options.round_seconds, options.rounds, redis=options.redis
        )
        figures["servers"] = on_servers(bench, console)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def _write(path: Path | None, figures: dict[str, object], every: list[list[SizeFigures]]) -> None:
    """Write the figures of the runs and of their phases, also of one that is under way."""
    figures["simulated"] = [whole.fields() | {"phases": [each.fields() for each in phases]} for whole, *phases in every]
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def on_servers(bench: CellBench, console: Console) -> list[dict[str, object]]:
    """Measure on a Redis Cluster, with a line of progress."""
    import uvloop

    with console.status("starting a Redis Cluster") as status:
        measured = uvloop.run(over_cells.measure(bench, status.update))
    over_cells.show(measured, bench, console)
    return over_cells.fields_of(measured)


class KeptSimulation:
    """One simulation, with a bar; figures are kept as it goes."""

    def __init__(self, size: PoolSize, keep: Callable[[list[SizeFigures]], None]) -> None:
        """`keep` is called with the figures until now: of the whole, then of each phase that has ended."""
        self._size = size
        self._run = PoolSimulation(size)
        self._keep = keep
        self._began, self._kept = time.process_time(), time.monotonic()

    def run(self, console: Console) -> list[SizeFigures]:
        """Simulate."""
        size, lines = self._size, ProgressLines(console)
        total = size.warm_up + size.seconds
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(f"{size.cells} cells: virtual seconds", total=total)

            def tick(second: int) -> None:
                progress.update(bar, completed=second)
                lines(f"{size.cells} cells, {second} of {total} virtual seconds, {self._run.arrived:,} requests")
                if time.monotonic() - self._kept > KEEP_S:
                    self._keep(self._figures())
                    self._kept = time.monotonic()

            # Hundreds of thousands of entries live at a time, and none is a part of a circle.
            gc.disable()
            try:
                self._run.run(tick)
            finally:
                gc.enable()
        return self._figures()

    def _figures(self) -> list[SizeFigures]:
        memory_mb = psutil.Process().memory_info().rss / 2**20
        return [figures_of(self._run, time.process_time() - self._began, memory_mb), *phases_of(self._run)]


if __name__ == "__main__":
    end("bench-cells", main)
