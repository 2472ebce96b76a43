"""`python -m loadtest.benchmarks.traces`: CPU of routers and Redis per token: without records of requests, with them as
by default, and with traces of a tenth of the requests.

Three clusters with simulated engines are up at the same time and take turns. The CPU of engines does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from aiohttp import web
from rich.console import Console
from rich.table import Table

from cluster.bootstrap.local import LocalCluster
from cluster.settings import load_settings
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.tokens import load
from loadtest.benchmarks.tokens.cpu import cpu_seconds, descendants
from loadtest.benchmarks.tokens.figures import interval
from penstock.v1 import inference_pb2_grpc as api_grpc

OFF: Mapping[str, Any] = {"router": {"records": {"most": 0}}}
LABELS = {"plain": "no records, no traces", "default": "records, no traces", "traced": "records, traces of 10 %"}
BARS = {"default": 1.02, "traced": 1.05}
"""Most CPU per token, as a multiple: of `plain` for `default`, of `default` for `traced`."""
BEFORE = {"default": "plain", "traced": "default"}


@dataclass(frozen=True, slots=True)
class _Path:
    send: load.Send
    cluster: LocalCluster

    def cpu_s(self) -> float:
        roots = [router.process.pid for router in self.cluster.routers]
        if self.cluster.redis is not None:
            roots.append(self.cluster.redis.pid)
        processes: list[psutil.Process] = descendants(roots)
        return cpu_seconds(processes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-traces", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every cluster (default %(default)s)")
    options = parser.parse_args()
    import uvloop

    return int(uvloop.run(_bench(options, screen())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(_collector())
        sections: dict[str, Mapping[str, Any]] = {
            "plain": OFF,
            "default": {},
            "traced": {"telemetry": {"otlp_endpoint": endpoint, "otlp_protocol": "http", "trace_ratio": 0.1}},
        }
        paths = {name: await stack.enter_async_context(_cluster(each)) for name, each in sections.items()}
        rounds: list[dict[str, float]] = []
        for path in paths.values():
            await load.saturate(path.send, 1, 90_000)
        for number in range(options.rounds):
            names = list(paths)
            found = {}
            for name in names[number % 3 :] + names[: number % 3]:
                with console.status(f"round {number + 1} of {options.rounds}: {LABELS[name]}"):
                    before = paths[name].cpu_s()
                    result = await load.saturate(paths[name].send, 2, number * 1_000)
                    # Records are stored, and spans sent, a moment after each request.
                    await asyncio.sleep(1.0)
                    found[name] = 1e6 * (paths[name].cpu_s() - before) / result.tokens
            rounds.append(found)
    fields = _fields(rounds)
    _print(fields, console)
    if options.json:
        options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 0


@asynccontextmanager
async def _collector() -> AsyncIterator[str]:
    """Run a collector that takes spans and keeps none."""
    received = 0

    async def export(request: web.Request) -> web.Response:
        nonlocal received
        received += len(await request.read())
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", export)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        if not received:
            sys.stderr.write("bench-traces: the collector received nothing\n")


@asynccontextmanager
async def _cluster(sections: Mapping[str, Any]) -> AsyncIterator[_Path]:
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "cluster": {"state_dir": folder, "log_level": "warning"},
            "router": {"port": 0, **sections.get("router", {})},
            "pools": {"demo": {"engine": "sim", "replicas": 1, "sim": {"base_ms": 4.0}}},
        }
        settings = load_settings(flags={**sections, **own})
        async with LocalCluster(settings, lambda step, text: None) as cluster:
            channel = grpc.aio.insecure_channel(cluster.target)
            try:
                yield _Path(load.grpc_send(api_grpc.InferenceServiceStub(channel), "demo"), cluster)
            finally:
                await channel.close(None)


def _fields(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    ratios = {name: [each[name] / each[other] for each in rounds] for name, other in BEFORE.items()}
    return {
        "cpu_us_per_token": {name: statistics.median(each[name] for each in rounds) for name in LABELS},
        "ratios": {name: statistics.median(values) for name, values in ratios.items()},
        "intervals": {name: interval(values) for name, values in ratios.items()},
        "rounds": ratios,
    }


def _print(fields: Mapping[str, Any], console: Console) -> None:
    table = Table(title="CPU of routers and Redis", caption="Each line is compared with the one above it.")
    add_columns(table, "cluster", "us/token", "ratio", "95 %", "bar", "rounds", words=("cluster", "rounds"))
    for name, label in LABELS.items():
        row = [label, f"{fields['cpu_us_per_token'][name]:.1f}"]
        if name in BEFORE:
            low, high = fields["intervals"][name]
            rounds = " ".join(f"{value:.2f}" for value in fields["rounds"][name])
            row += [f"{fields['ratios'][name]:.3f}", f"{low:.2f} to {high:.2f}", f"at most {BARS[name]}", rounds]
        table.add_row(*row)
    print_table(table, console)


if __name__ == "__main__":
    end("bench-traces", main)
