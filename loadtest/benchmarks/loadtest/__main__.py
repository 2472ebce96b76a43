"""`python -m loadtest.benchmarks.loadtest`: prints a table, writes JSON. Exits with 1 if a bar is missed."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.errors import GeneratorError
from loadtest.benchmarks.cancel.host import hosted
from loadtest.benchmarks.cancel.testbed import POOL
from loadtest.benchmarks.ending import end
from loadtest.load.driver.target import Target
from loadtest.load.results.histogram import Histogram
from loadtest.load.results.record import BUSY_BOUND, LAG_BOUND_S
from loadtest.load.runner import RunOptions, run_scenario
from loadtest.load.schedule.arrivals import Pattern
from loadtest.load.schedule.scenario import Scenario

PROMPT_TOKENS = 16
RAMP_S = 20.0
"""Seconds in which the streams begin, evenly."""
STEADY_S = 20.0
"""Seconds in which all of them run. Only these are measured."""
HELD = 0.98
"""Part of the streams that must be open, and of the messages that must come, to count as held."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-loadtest", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--streams", type=int, default=2_000, help="open at once (default %(default)s)")
    parser.add_argument("--rate", type=float, default=5.0, help="messages per second of each (default %(default)s)")
    parser.add_argument("--servers", type=int, default=2, help="processes with routers and replicas (default 2)")
    options = parser.parse_args()
    import uvloop

    figures = uvloop.run(_bench(options.streams, options.rate, options.servers))
    Console().print(_table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    misses = missed(figures)
    for miss in misses:
        Console().print(f"bench-loadtest: {miss}", style="red", markup=False)
    return int(bool(misses))


async def _bench(streams: int, rate: float, servers: int) -> dict[str, Any]:
    async with _served(streams, rate, servers) as targets:
        output = round(rate * (RAMP_S + STEADY_S + 2))
        scenario = Scenario(
            "bench",
            arrivals=Pattern.parse("constant"),
            rate=streams / RAMP_S,
            duration_s=RAMP_S,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=output,
        )
        run = RunOptions(Target(tuple(targets), POOL), drain_s=4 * (RAMP_S + STEADY_S))
        with Console(stderr=True).status(f"{streams:,} streams with {rate:g} messages/s each"):
            found = await asyncio.to_thread(run_scenario, scenario, run)
    return summed(found, streams, rate)


@asynccontextmanager
async def _served(streams: int, rate: float, servers: int) -> AsyncIterator[list[str]]:
    """Serve the sim engine from processes of their own. A step of all its sequences takes the time of one message."""
    sections = {
        "sim": {
            "base_ms": 1e3 / rate,
            "per_token_us": 0,
            "per_kv_token_us": 0,
            "max_num_seqs": min(4096, streams),
            "max_num_batched_tokens": 65_536,
            "kv_tokens": 100_000_000,
        },
        "queue": {"max_waiting": 2 * streams, "max_waiting_per_tenant": 2 * streams},
    }
    async with AsyncExitStack() as stack:
        targets: list[str] = []
        for _ in range(servers):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
            redis = await EmbeddedRedis.start(folder, folder / "redis.log")
            stack.push_async_callback(redis.stop)
            host = await stack.enter_async_context(hosted(folder, redis.url, sections))
            targets += host.targets
        yield targets


def summed(found: Mapping[str, Any], streams: int, rate: float) -> dict[str, Any]:
    """Sum up a run while all streams were open.

    Raises:
        GeneratorError: all streams were never open together.
    """
    steady = [each for each in found["timeline"] if each["running"] >= HELD * streams]
    steady = [each for each in steady if each["second"] > RAMP_S][: int(STEADY_S)]
    if not steady:
        most = max((each["running"] for each in found["timeline"]), default=0)
        raise GeneratorError(f"never more than {most:,} of {streams:,} streams were open; failed: {found['errors']}")
    messages = sum(each["messages"] for each in steady)
    cpu_s = sum(each["generator_cpu_s"] for each in steady)
    loop_lag = Histogram()
    for each in steady:
        loop_lag.add(each["loop_lag_p99_s"] or 0.0)
    return {
        "streams": streams,
        "asked_messages_per_s": streams * rate,
        "steady_s": len(steady),
        "messages_per_s": messages / len(steady),
        "ratio": messages / len(steady) / (streams * rate),
        "generator_cores": cpu_s / len(steady),
        "generator_cpu_us_per_message": 1e6 * cpu_s / messages if messages else None,
        "generator_cores_at_asked_rate": streams * rate * cpu_s / messages if messages else None,
        "send_lag_p99_ms": 1e3 * (found["generator"]["lag_s"]["p99"] or 0.0),
        "loop_lag_p99_ms": {"median second": 1e3 * (loop_lag.percentile(50) or 0.0), "worst": 1e3 * loop_lag.largest},
        "errors": found["errors"],
        "failures": [each["said"] for each in found["failures"]][:3],
        "flagged": found["generator"]["why"],
    }


def missed(figures: Mapping[str, Any]) -> list[str]:
    """List the bars that the figures miss."""
    misses = []
    asked = figures["generator_cores_at_asked_rate"]
    if asked is None or asked > 1:
        misses.append(f"the generator needs {asked or 0:.2f} cores for what was asked")
    if figures["errors"]:
        misses.append(f"requests failed: {figures['errors']}")
    if figures["ratio"] < HELD:
        cores = figures["generator_cores"]
        slow = "the generator was too slow" if cores > BUSY_BOUND else "the servers got too little of this machine"
        misses.append(f"{figures['ratio']:.1%} of the messages came, with {cores:.2f} cores of the generator: {slow}")
    if figures["send_lag_p99_ms"] > 1e3 * LAG_BOUND_S:
        misses.append(f"sending was {figures['send_lag_p99_ms']:.0f} ms late (p99; bound {1e3 * LAG_BOUND_S:.0f} ms)")
    return misses


def _table(figures: Mapping[str, Any]) -> Table:
    table = Table("figure", "value", title="one generator process")
    for name, value in figures.items():
        if isinstance(value, Mapping):
            shown = ", ".join(f"{part} {number:,.1f}" for part, number in value.items()) or "none"
        else:
            shown = f"{value:,.3f}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), shown)
    return table


if __name__ == "__main__":
    end("bench-loadtest", main)
