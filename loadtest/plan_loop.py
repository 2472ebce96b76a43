"""The whole loop for real: profile an engine, plan for a load, run that load on a cluster, and compare.

The load is a part of what the profile says a replica can do, open loop: requests are sent when they are due, whatever
became of those before. Times are taken from when a request was due, so a late generator counts against the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cluster.bootstrap.local import LocalCluster
from cluster.settings import EngineKind, Settings, load_settings
from loadtest.plan.command import engine_of
from loadtest.plan.option import Impossible, Promise, operate
from loadtest.plan.review import Book, Kind, figures_in
from loadtest.plan.search import Candidate
from loadtest.plan.traffic import Load, steady_load
from loadtest.plan.trial import Ranges, ranges
from loadtest.profile.command import profile_pool, show
from loadtest.profile.stored import read_profile
from loadtest.traces import TraceRequest
from router.client.aio import AsyncClient
from router.client.events import Delta
from router.client.requests import Sampling

POOL = "demo"
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64
WARM_UP_S = 5.0
LATE_S = 0.02
"""A generator that is later than this measures itself."""


@dataclass(slots=True)
class Served:
    """Is what the client of one request saw, in seconds."""

    due: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    late: float = 0.0
    """By so much it was sent after it was due."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Is a run's result."""

    engine: str
    rate: float
    batch: int
    predicted: Ranges
    measured: dict[str, float]
    requests: int
    failed: int
    late_p99_s: float


def settings_for(engine: EngineKind, folder: Path) -> Settings:
    """Describe the cluster: one replica of the demo model."""
    pool: dict[str, Any] = {"engine": engine.value, "model": "demo", "control": {"mode": "off"}}
    pool["vllm"] = {"max_num_seqs": 64}
    flags = {"cluster": {"state_dir": str(folder)}, "router": {"port": 0}, "pools": {POOL: pool}}
    return load_settings(flags=flags, environ={})


def client_load(load: Load, seconds: float, seed: int) -> list[TraceRequest]:
    """Draw the requests of so many seconds."""
    count = max(50, round(load.rate * seconds))
    return load.slice(1.0, count, seed)


async def drive(client: AsyncClient, requests: Sequence[TraceRequest], seed: int = 1) -> tuple[list[Served], int]:
    """Send requests when they are due; returns what came, and how many failed."""
    rnd = random.Random(seed)
    begin = time.perf_counter() + 0.1
    served = [Served(begin + request.arrival_s) for request in requests]
    prompts = [[rnd.randint(3, 250) for _ in range(request.prompt_tokens)] for request in requests]

    async def one(number: int) -> None:
        seen, request = served[number], requests[number]
        await asyncio.sleep(max(0.0, seen.due - time.perf_counter()))
        seen.late = time.perf_counter() - seen.due
        sampling = Sampling(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True)
        async for event in client.stream(POOL, prompts[number], sampling, timeout=300.0):
            if isinstance(event, Delta) and event.token_ids:
                now = time.perf_counter()
                seen.first = seen.first or now
                seen.last, seen.tokens = now, seen.tokens + len(event.token_ids)

    ends = await asyncio.gather(*(one(number) for number in range(len(requests))), return_exceptions=True)
    return served, sum(isinstance(each, BaseException) for each in ends)


def measured_of(served: Sequence[Served]) -> dict[str, Any]:
    """Return the figures that a review reads, of requests that were due after the warm-up."""
    begin = min(each.due for each in served)
    last = max(each.due for each in served)
    counted = [s for s in served if s.tokens and s.due >= begin + min(WARM_UP_S, 0.2 * (last - begin))]
    ttft = [each.first - each.due for each in counted]
    itl = [(each.last - each.first) / (each.tokens - 1) for each in counted if each.tokens > 1]
    weights = [each.tokens - 1 for each in counted if each.tokens > 1]
    span = max(each.last for each in counted) - min(each.due for each in counted)
    return {
        "ttft_s": {"mean": float(np.mean(ttft)), "p50": float(np.median(ttft)), "p99": float(np.percentile(ttft, 99))},
        "itl_s": {"mean": float(np.average(itl, weights=weights))},
        "tokens_per_s": sum(each.tokens for each in counted) / span,
    }


async def run(engine: EngineKind, folder: Path, console: Console, options: argparse.Namespace) -> Loop:
    """Do it all; the cluster's state, the profile and the book are in the folder."""
    settings = settings_for(engine, folder)
    if options.profile:
        found = read_profile(Path(options.profile))
    else:
        found = await profile_pool(settings.pools[POOL], console, rounds=options.rounds)
        found.save(folder)
    show(found, console)
    planned = engine_of(found, {})
    loose = Promise(ttft_p99_s=60.0, itl_p95_s=10.0)
    whole = steady_load(1.0, PROMPT_TOKENS, OUTPUT_TOKENS, 0.3)
    operation = operate(planned, whole, loose)
    if isinstance(operation, Impossible):
        raise SystemExit(f"this engine serves no such load: {operation.why}")
    load = steady_load(options.part * operation.rate, PROMPT_TOKENS, OUTPUT_TOKENS, 0.3)
    predicted = ranges(planned, operation, load, loose, 1, draws=10, network_s=found.overhead_s)
    book, kind = Book(folder), Kind(planned.model, planned.gpu, planned.tensor_parallel)
    plan_id = book.predict(kind, {"name": load.name, "rate": load.rate}, asdict(predicted))
    candidate = Candidate(planned, operation, 1)
    console.print(f"planned: {load.name} on {candidate.replicas} replica, batch {operation.batch}", highlight=False)

    def tell(step: str, text: str) -> None:
        console.print(f"{step}: {text}", highlight=False)

    async with LocalCluster(settings, tell) as cluster, AsyncClient(cluster.target) as client:
        await drive(client, client_load(load, 2.0, 7))
        served, failed = await drive(client, client_load(load, options.seconds, 11))
    report = measured_of(served)
    book.observe(plan_id, report)
    late = float(np.percentile([each.late for each in served], 99))
    return Loop(planned.name, load.rate, operation.batch, predicted, figures_in(report), len(served), failed, late)


def compare(loop: Loop, console: Console) -> None:
    """Print predicted and measured side by side."""
    table = Table(title=f"{loop.engine}, {loop.rate:.1f} requests/s, batch limit {loop.batch}")
    for name in ("figure", "predicted", "range", "measured", "error", "within"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for name, value in loop.measured.items():
        made = getattr(loop.predicted, name)
        factor, unit = (1.0, "") if name == "tokens_per_s" else (1e3, " ms")
        table.add_row(
            name.removesuffix("_s") + unit,
            f"{factor * made.middle:,.1f}",
            f"{factor * made.low:,.1f}-{factor * made.high:,.1f}",
            f"{factor * value:,.1f}",
            f"{made.middle / value - 1:+.1%}",
            "yes" if made.low <= value <= made.high else "no",
        )
    console.print(table)
    console.print(
        f"{loop.requests} requests, {loop.failed} failed; the generator was {1e3 * loop.late_p99_s:.1f} ms late (p99).",
        highlight=False,
    )
    if loop.late_p99_s > LATE_S:
        console.print("The generator was the bottleneck: the measured TTFT is its own, not the cluster's.")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=[each.value for each in EngineKind], default="vllm")
    parser.add_argument("--part", type=float, default=0.5, help="of what a replica can do (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of load (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of the profile (default %(default)s)")
    parser.add_argument("--profile", help="a profile of this machine's engine, instead of a new one")
    parser.add_argument("--state-dir", help="default: a temporary folder")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="penstock-loop-") as scratch:
        folder = Path(options.state_dir or scratch)
        loop = asyncio.run(run(EngineKind(options.engine), folder, console, options))
    compare(loop, console)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(loop), indent=1) + "\n")


if __name__ == "__main__":
    main()
