"""The whole loop for real: a cluster, its replica's profile, a plan, the planned load with Locust, and a comparison.

The load is a part of a replica's capacity according to the profile. It is open loop: requests are sent when they are
due, and do not wait for earlier ones. Times count from the due time, so a late generator counts against the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.bootstrap.local import LocalCluster
from cluster.settings import EngineKind, Settings, load_settings
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.ending import end
from loadtest.load.driver.target import Target
from loadtest.load.runner import RunOptions, run_scenario
from loadtest.load.schedule.arrivals import Pattern
from loadtest.load.schedule.scenario import Scenario
from loadtest.plan.option import Impossible, Promise, operate
from loadtest.plan.profiled import engine_of
from loadtest.plan.review import FIGURES, Book, EngineGroup, FigureReview, figures_in
from loadtest.plan.search import Candidate
from loadtest.plan.traffic import Load, steady_load
from loadtest.plan.trial import Ranges, ranges
from loadtest.profile.cluster import profile_cluster
from loadtest.profile.command import ROUNDS, show
from loadtest.profile.stored import Profile, read_profile
from penstock.client import AsyncClient

POOL = "demo"
PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD = 64, 64, 0.3
WARM_UP_S = 5.0
DRAWS = 10
TIMES = ("ttft_mean_s", "ttft_p99_s", "itl_mean_s", "itl_p95_s")


@dataclass(frozen=True, slots=True)
class Sent:
    """One run of the load."""

    figures: dict[str, float]
    requests: int
    failed: int
    late_p99_s: float
    bottleneck: list[str]
    """Reasons why the generator may have been the bottleneck instead of the cluster."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Result of the loop."""

    engine: str
    rate: float
    batch: int
    profile_error: float
    profile_s: float
    predicted: Ranges
    measured: dict[str, float]
    """Medians over the runs in which the generator kept up, or over all if it never did."""
    review: Mapping[str, FigureReview]
    runs: tuple[Sent, ...]


def settings_for(engine: EngineKind, folder: Path) -> Settings:
    """Describe the cluster: one replica of the demo model, whose batch limit stays as planned."""
    pool: dict[str, Any] = {"engine": engine.value, "model": "demo", "control": {"mode": "off"}}
    pool["vllm"] = {"max_num_seqs": 64}
    flags = {"cluster": {"state_dir": str(folder)}, "router": {"port": 0}, "pools": {POOL: pool}}
    return load_settings(flags=flags, environ={})


def write_trace(path: Path, load: Load, seconds: float, seed: int) -> None:
    """Draw the requests of this many seconds, and write them for Locust to replay."""
    requests = load.slice(1.0, max(50, round(1.2 * load.rate * seconds)), seed)
    lines = [f"{each.arrival_s:.6f},{each.prompt_tokens},{each.output_tokens}" for each in requests]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n", encoding="utf-8")


async def run(engine: EngineKind, folder: Path, console: Console, options: argparse.Namespace) -> Loop:
    """Run all parts. The cluster's state, the profile and the book are in the folder."""
    told: set[tuple[str, str]] = set()

    def tell(step: str, text: str) -> None:
        if (step, text) not in told:
            told.add((step, text))
            console.print(escape(f"{step}: {text}"), highlight=False)

    settings = settings_for(engine, folder)
    async with LocalCluster(settings, tell) as cluster:
        if options.profile:
            found = read_profile(Path(options.profile))
        else:
            async with AsyncClient(cluster.target) as client:
                found = await profile_cluster(client, POOL, rounds=options.rounds, tell=lambda *_: None)
            found.save(folder)
        show(found, console)
        return await _meet(cluster.target, found, folder, console, options)


async def _meet(target: str, found: Profile, folder: Path, console: Console, options: argparse.Namespace) -> Loop:
    planned = engine_of(found, {})
    loose = Promise(ttft_p99_s=60.0, itl_p95_s=10.0)
    operation = operate(planned, steady_load(1.0, PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD), loose)
    if isinstance(operation, Impossible):
        raise SystemExit(f"this engine serves no such load: {operation.why}")
    load = steady_load(options.part * operation.rate, PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD)
    predicted = ranges(planned, operation, load, loose, 1, draws=DRAWS)
    book, kind = Book(folder), EngineGroup(planned.model, planned.gpu, planned.tensor_parallel)
    plan_id = book.predict(kind, {"name": load.name, "rate": load.rate}, asdict(predicted))
    candidate = Candidate(planned, operation, 1)
    console.print(
        f"planned: {escape(load.name)} on {candidate.replicas} replica, batch {operation.batch}", highlight=False
    )

    runs = []
    for number in range(options.repeats):
        report = await asyncio.to_thread(_send, target, load, folder, options.seconds, 11 + number)
        book.observe(plan_id, report)
        generator = report["generator"]
        failed = report["requests"] - report["completed"]
        why = generator["why"]
        runs.append(Sent(figures_in(report), report["requests"], failed, generator["lag_s"]["p99"], why))
    kept_up = [each for each in runs if not each.bottleneck] or runs
    names = [name for name in FIGURES if all(name in each.figures for each in kept_up)]
    measured = {name: statistics.median(each.figures[name] for each in kept_up) for name in names}
    return Loop(
        planned.name,
        load.rate,
        operation.batch,
        found.error,
        found.seconds,
        predicted,
        measured,
        book.review()[kind],
        tuple(runs),
    )


def _send(target: str, load: Load, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    trace = folder / f"load-{seed}.csv"
    write_trace(trace, load, seconds, seed)
    scenario = Scenario(
        "plan-loop", arrivals=Pattern.parse("trace"), duration_s=seconds, warmup_s=WARM_UP_S, trace=str(trace)
    )
    report = run_scenario(scenario, RunOptions(Target((target,), POOL)))
    (folder / f"report-{seed}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def compare(loop: Loop, console: Console) -> None:
    """Print predicted and measured figures side by side."""
    table = Table(title=f"{loop.engine}, {loop.rate:.1f} requests/s, batch limit {loop.batch}")
    add_columns(table, "figure", "predicted", "range", "measured", "error", "within", words=("figure",))
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
    print_table(table, console)
    for each in loop.runs:
        times = ", ".join(
            f"{name.removesuffix('_s')} {1e3 * value:,.1f} ms" for name, value in each.figures.items() if name in TIMES
        )
        why = f"; not counted, the generator was the bottleneck: {each.bottleneck[0]}" if each.bottleneck else ""
        console.print(
            f"{each.requests} requests, {each.failed} failed, generator {1e3 * each.late_p99_s:.1f} ms late (p99): "
            f"{times}{why}",
            highlight=False,
        )
    if all(each.bottleneck for each in loop.runs):
        console.print("In no run did the generator keep up: the measured times are its own.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=[each.value for each in EngineKind], default="vllm")
    parser.add_argument("--part", type=float, default=0.5, help="of what a replica can do (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=35.0, help="of each run of the load (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of the load (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the profile (default %(default)s)")
    parser.add_argument("--profile", help="a profile of this machine's engine, instead of a new one")
    parser.add_argument("--state-dir", help="default: a temporary folder")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    console = screen()
    with tempfile.TemporaryDirectory(prefix="penstock-loop-") as scratch:
        folder = Path(options.state_dir or scratch)
        loop = asyncio.run(run(EngineKind(options.engine), folder, console, options))
    compare(loop, console)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(loop), indent=1) + "\n")


if __name__ == "__main__":
    end("plan-loop", main)
