"""`python -m loadtest.benchmarks.tokens`: prints tables, writes JSON.

All paths are up at the same time and take turns, a few rounds per mode. A shared machine changes its speed within
minutes, so compared phases should run close together. The CPU time of idle paths is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from cluster.errors import BootstrapError
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.ending import FAILED, end
from loadtest.benchmarks.tokens import load, rivals
from loadtest.benchmarks.tokens.cpu import cpu_seconds, descendants
from loadtest.benchmarks.tokens.figures import (
    LETTERS,
    MODES,
    RIVALS,
    Phase,
    Rounds,
    comparisons,
    fields_of,
    interval,
    pooled,
)
from loadtest.benchmarks.tokens.paths import InProcessPath, Opener, ServingPath, in_process, penstock, vllm_http

NAMES = {
    "inprocess": "in process",
    "vllm_http": "vLLM HTTP",
    "penstock": "Penstock gRPC",
    "penstock_http": "Penstock HTTP",
    "penstock_parsed": "the same with tools and reasoning",
    "vllm_rust": "vLLM's Rust front end, HTTP",
    "vllm_rust_grpc": "vLLM's Rust front end, gRPC",
    "smg_zmq": "SMG over ZeroMQ, HTTP",
    "smg_servicer": "SMG and its Rust servicer, HTTP",
}
LABELS = {name: f"({LETTERS[name]}) {text}" for name, text in NAMES.items()}
SERVERS: Mapping[tuple[str, ...], Opener] = {
    ("inprocess",): in_process,
    ("vllm_http",): vllm_http,
    ("penstock", "penstock_http", "penstock_parsed"): penstock,
}
"""What opens the paths of a server, in their order."""
WARM_UP = 10_000
"""Number of the first prompt that is not counted."""
QUIET_S = 1.5
"""Seconds of quiet between phases. An engine looks for work in a loop for a second after its last step."""
ALONE_ROUNDS = 3
"""Factor for the rounds of a single stream; each is shorter by it. Times scatter more between turns than within one."""

Opened = ServingPath | InProcessPath
Run = Callable[[], Awaitable[load.LoadResult]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-tokens", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every path in a mode (default %(default)s)")
    parser.add_argument("--waves", type=int, default=1, help="of all streams in a saturated turn (default %(default)s)")
    parser.add_argument("--paced-s", type=float, default=8.0, help="seconds of a paced turn (default %(default)s)")
    parser.add_argument("--requests", type=int, default=5, help="of a single stream's turn (default %(default)s)")
    parser.add_argument("--rivals", action="store_true", help="take other projects' front ends into the turns")
    parser.add_argument(
        "--rivals-folder",
        type=Path,
        default=Path("out/rivals"),
        metavar="FOLDER",
        help="where their programs are kept; what is missing is fetched with pip (default %(default)s)",
    )
    parser.add_argument("--only", choices=LETTERS, help="run one path, for profiling")
    options = parser.parse_args()
    options.rivals_folder = options.rivals_folder.resolve()
    import uvloop

    return int(uvloop.run(_bench(options, screen())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    async with AsyncExitStack() as stack:
        servers = dict(SERVERS)
        if options.rivals or options.only in RIVALS:
            servers.update(await rivals.openers(options.rivals_folder, console))
        paths: dict[str, Opened] = {}
        for names, open_server in servers.items():
            if options.only and options.only not in names:
                continue
            began, label = time.monotonic(), " and ".join(LABELS[name] for name in names)
            try:
                with console.status(f"{label}: starting"):
                    opened = await stack.enter_async_context(open_server(console))
            except (BootstrapError, TimeoutError) as error:
                if names[0] not in RIVALS:
                    raise
                console.print(f"{label}: left out, because it does not answer: {error}", highlight=False)
                continue
            paths.update(zip(names, opened if isinstance(opened, tuple) else (opened,), strict=True))
            console.print(f"{label}: up after {time.monotonic() - began:.0f} s", highlight=False)
        if options.only and options.only not in paths:
            return FAILED
        if options.only:
            paths = {options.only: paths[options.only]}
        phases = await _measure(paths, options, console)
        # Servers take their time to stop, and an interrupt meanwhile would lose the run.
        fields = fields_of(phases)
        _print(phases, fields, console)
        if options.json:
            options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 0


async def _measure(paths: Mapping[str, Opened], options: argparse.Namespace, console: Console) -> dict[str, Rounds]:
    run = {name: _phases(opened) for name, opened in paths.items()}
    meter = _Meter({name: _serving(opened) for name, opened in paths.items()})
    for name in paths:
        saturate, _pace, alone = run[name]
        await saturate(1, WARM_UP)
        await alone(5)
    phases: dict[str, Rounds] = {}

    async def turns(mode: str, work: Callable[[str, int], Run], count: int = options.rounds) -> None:
        rounds = []
        for number in range(count):
            found = {}
            for name in order(tuple(paths), number):
                with console.status(f"{mode}, round {number + 1} of {count}: {LABELS[name]}"):
                    await asyncio.sleep(QUIET_S)
                    found[name] = await meter.phase(name, work(name, number))
            rounds.append(found)
            speeds = ", ".join(f"{LABELS[name]} {found[name].tokens_per_s:,.0f}" for name in paths)
            console.print(f"{mode}, round {number + 1}: tokens/s {speeds}", highlight=False)
        phases[mode] = rounds

    await turns("saturated", lambda name, number: lambda: run[name][0](options.waves, number * 1_000))
    # Half of the rate that (b) reaches, for all paths.
    full = pooled([each["vllm_http" if "vllm_http" in paths else options.only] for each in phases["saturated"]])
    rate = full["tokens_per_s"] / 2 / load.TOKENS
    await turns("paced", lambda name, number: lambda: run[name][1](rate, options.paced_s, number + 1))
    await turns("alone", lambda name, _: lambda: run[name][2](options.requests), ALONE_ROUNDS * options.rounds)
    return phases


def order(names: Sequence[str], number: int) -> list[str]:
    """Let another path begin each round, so that drift affects all of them."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


class _Meter:
    """Reader of the CPU time of all running processes."""

    def __init__(self, paths: Mapping[str, ServingPath]) -> None:
        self._paths = paths

    async def phase(self, name: str, run: Run) -> Phase:
        path = self._paths[name]
        serving, control = path.serving(), path.control()
        own = {process.pid for process in _all_of(path)}
        others = [other for each, other in self._paths.items() if each != name]
        # Paths of one cluster share its processes.
        unlike = {process.pid: process for other in others for process in _all_of(other)}
        beside = [process for pid, process in unlike.items() if pid not in own]
        before = [cpu_seconds(each) for each in (serving, control, beside)]
        result = await run()
        used = [cpu_seconds(each) - was for each, was in zip((serving, control, beside), before, strict=True)]
        return Phase(result, *used)


def _all_of(path: ServingPath) -> list[psutil.Process]:
    """List a path's processes with its engines."""
    return descendants([process.pid for process in (*path.serving(), *path.control())])


def _serving(opened: Opened) -> ServingPath:
    return opened.path if isinstance(opened, InProcessPath) else opened


def _phases(opened: Opened) -> tuple[Any, Any, Any]:
    if isinstance(opened, InProcessPath):
        run = opened.run

        async def remote(phase: str, **arguments: Any) -> load.LoadResult:
            fields = await run(phase, **arguments)
            return load.LoadResult(fields["seconds"], [load.StreamTimes(*stream) for stream in fields["streams"]])

        return (
            lambda rounds, first: remote("saturate", rounds=rounds, first=first),
            lambda rate, seconds, seed: remote("pace", requests_per_s=rate, seconds=seconds, seed=seed),
            lambda requests: remote("alone", requests=requests),
        )
    send = opened.send
    return (
        lambda rounds, first: load.saturate(send, rounds, first),
        lambda rate, seconds, seed: load.pace(send, rate, seconds, seed),
        lambda requests: load.alone(send, requests),
    )


def _print(phases: Mapping[str, Rounds], fields: Mapping[str, Any], console: Console) -> None:
    for mode in MODES:
        table = Table(title=f"{mode}: {load.STREAMS} streams x {load.TOKENS} tokens" if mode == "saturated" else mode)
        names = (
            "path",
            "tokens/s",
            "TTFT ms",
            "ITL ms",
            "CPU us/token",
            "messages",
            "tokens",
            "Ray CPU",
            "idle beside",
        )
        add_columns(table, *names, words=("path",))
        for name, row in fields["modes"][mode].items():
            table.add_row(
                LABELS[name],
                f"{row['tokens_per_s']:,.0f}",
                f"{row['ttft_ms_p50']:.1f}",
                f"{row['itl_ms_p50']:.2f}",
                f"{row['cpu_us_per_token']:.1f}",
                f"{row['messages']:,}",
                f"{row['tokens']:,}",
                f"{row['control_cpu_percent']:.0f} %" if name.startswith("penstock") else "-",
                f"{row['beside_cpu_percent']:.0f} %",
            )
        print_table(table, console)
    if "ratios" not in fields:
        return
    table = Table(
        title="round by round",
        caption="Bars are for the medians; where these are is 95 % certain. TTFT and ITL above are medians of streams.",
    )
    for column in ("", "median", "95 %", "bar", "", "rounds"):
        table.add_column(column, justify="left" if not column else "right")
    for each in comparisons(fields["modes"][MODES[0]]):
        values = each.values(phases[each.mode])
        median = statistics.median(values)
        verdict = "" if not each.bar else "held" if each.held(median) else "[red]missed[/red]"
        between = "{:.2f} to {:.2f}".format(*interval(values))
        rounds = " ".join(f"{value:.2f}" for value in values)
        table.add_row(each.name, f"{median:.2f}", between, each.bar, verdict, rounds)
    console.print(table)


if __name__ == "__main__":
    end("bench-tokens", main)
