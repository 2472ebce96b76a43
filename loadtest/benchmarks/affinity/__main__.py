"""`python -m loadtest.benchmarks.affinity`: prints a table, writes JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaRecord
from cluster.settings import AffinitySettings, SimSettings
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.affinity.simulation import AffinityResult, AffinitySimulation, ArrivalPattern
from loadtest.benchmarks.affinity.trace import TraceRequest, ideal_hit_rate, load_trace
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.ending import end
from penstock.models import ReplicaState
from router.affinity import Affinity, Trail

TRACE = "mooncake_conversation.jsonl"
ENGINE = SimSettings(
    base_ms=5.0,
    per_token_us=20.0,
    per_kv_token_us=0.02,
    kv_tokens=1_600_000,
    max_num_seqs=32,
    max_num_batched_tokens=4_096,
    max_model_len=131_072,
)
"""Engine like one H200 with a model of eight billion parameters and an 8-bit KV cache.

It computes 50,000 prompt tokens/s and has 1.6 million tokens of KV cache. The batch is bounded so that two thirds of
the cache can keep content of sequences that no longer run. With a batch that fills the cache, nothing survives until
the next turn, and no placement helps.
"""
WAITING_PER_REPLICA = 8
"""Length of the standing queue in requests per replica."""
PACED_PART = 0.7
"""Paced load as a part of the throughput without affinity under a standing queue."""


class LearnedOnly(Affinity):
    """Affinity that draws no home for a known prompt, for comparison. Unknown ones are left to the queue."""

    def _home(self, trail: Trail) -> None:
        return None


class DrawnOnly(Affinity):
    """Affinity that learns nothing, for comparison: placement by rendezvous alone."""

    def _known(self, trail: Trail) -> Iterator[str]:
        return iter(())


MODES: Mapping[str, tuple[type[Affinity], AffinitySettings]] = {
    "none": (Affinity, AffinitySettings(prefix=False, session=False)),
    "session": (Affinity, AffinitySettings(prefix=False)),
    "prefix": (Affinity, AffinitySettings(session=False)),
    "prefix+session": (Affinity, AffinitySettings()),
}
COMPARED: Mapping[str, tuple[type[Affinity], AffinitySettings]] = {
    "prefix, learned only": (LearnedOnly, AffinitySettings(session=False)),
    "prefix, drawn only": (DrawnOnly, AffinitySettings(session=False)),
}


@dataclass(frozen=True, slots=True)
class AffinityRow:
    """One row of the table."""

    load: str
    replicas: int
    mode: str
    hit_rate: float
    """Cached part of the prompt tokens."""
    on_preferred: float
    """Part of the requests with a preference that ran on a preferred replica."""
    ttft_p50_s: float
    ttft_p99_s: float
    prefill_p50_s: float
    engine_wait_p99_s: float
    requests_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class _Case:
    """One row to measure."""

    load_name: str
    load: ArrivalPattern
    replicas: int
    mode: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-affinity", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--trace", type=Path, default=data_folder() / TRACE, help="a Mooncake trace (default %(default)s)"
    )
    parser.add_argument("--requests", type=int, default=2000, help="requests per 4 replicas (default %(default)s)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 16], help="pool sizes (default %(default)s)")
    parser.add_argument("--routers", type=int, default=2, help="routers, chosen at random (default %(default)s)")
    parser.add_argument("--compare", action="store_true", help="also run the parts of the policy alone")
    parser.add_argument("--no-paced", action="store_true", help="only the standing queue")
    options = parser.parse_args()
    console = screen()
    check_there(options.trace, "--trace")
    cells, ideals = _cells(options, console)
    costs = _costs()
    _print(cells, ideals, costs, console)
    if options.json:
        fields = {"cells": [asdict(cell) for cell in cells], "ideal_hit_rate": ideals, "cost_us": costs}
        options.json.write_text(json.dumps({**fields, "ratios": _ratios(cells)}, indent=2) + "\n", encoding="utf-8")
    return 0


def _cells(options: argparse.Namespace, console: Console) -> tuple[list[AffinityRow], dict[int, float]]:
    modes = {**MODES, **(COMPARED if options.compare else {})}
    cells, ideals = [], {}
    for replicas in options.replicas:
        trace = load_trace(options.trace, options.requests * replicas // 4, ENGINE.max_model_len)
        ideals[replicas] = ideal_hit_rate(trace)
        standing = ArrivalPattern(waiting=WAITING_PER_REPLICA * replicas)
        rate = 0.0
        for load_name in ("standing",) if options.no_paced else ("standing", "paced"):
            load = standing if load_name == "standing" else ArrivalPattern(per_second=rate)
            for mode in modes:
                case = _Case(load_name, load, replicas, mode)
                cell = _run(case, options.routers, modes[mode], trace, console)
                cells.append(cell)
                rate = rate or PACED_PART * cell.requests_per_s
    return cells, ideals


def _run(
    case: _Case,
    routers: int,
    policy: tuple[type[Affinity], AffinitySettings],
    trace: Sequence[TraceRequest],
    console: Console,
) -> AffinityRow:
    kind, settings = policy
    simulation = AffinitySimulation(
        trace, case.load, replicas=case.replicas, routers=routers, settings=ENGINE, policy=lambda: kind(settings)
    )
    with console.status(f"{case.load_name}, {case.replicas} replicas, {case.mode}"):
        result = asyncio.run(simulation.run())
    return _cell(case.load_name, case.replicas, case.mode, result)


def _cell(load: str, replicas: int, mode: str, result: AffinityResult) -> AffinityRow:
    wishes = result.hits + result.misses
    return AffinityRow(
        load,
        replicas,
        mode,
        hit_rate=result.cached_tokens / result.prompt_tokens,
        on_preferred=result.hits / wishes if wishes else 0.0,
        ttft_p50_s=_percentile(result.ttft, 0.5),
        ttft_p99_s=_percentile(result.ttft, 0.99),
        prefill_p50_s=_percentile(result.prefill, 0.5),
        engine_wait_p99_s=_percentile(result.engine_wait, 0.99),
        requests_per_s=len(result.ttft) / result.seconds,
        output_tokens_per_s=result.output_tokens / result.seconds,
    )


def _percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def _costs() -> dict[str, float]:
    """Measure the policy's cost for a router: microseconds per request, and memory per remembered beginning."""
    records = {
        name: ReplicaRecord(name, b"", ReplicaState.READY, Windows(64, 400_000, 32_768), 1, 0, 0, 0)
        for name in (f"replica-{number}" for number in range(16))
    }
    costs = {}
    for tokens in (1_000, 8_000, 30_000):
        policy = Affinity(AffinitySettings())
        for temperature in ("cold", "warm"):
            taken = []
            for number in range(200):
                prompt = [number * 7 + index for index in range(tokens)]
                began = time.perf_counter()
                trail, preferred = policy.look(prompt, b"scope", "", records)
                policy.granted(trail, preferred, preferred[0], 0)
                taken.append(time.perf_counter() - began)
            costs[f"{tokens}_tokens_{temperature}"] = 1e6 * statistics.median(taken)
    tracemalloc.start()
    policy = Affinity(AffinitySettings())
    for number in range(1_000):
        trail, preferred = policy.look([number * 7 + index for index in range(8_000)], b"", "", records)
        policy.granted(trail, preferred, preferred[0], 0)
    costs["bytes_per_block"] = tracemalloc.get_traced_memory()[0] / policy.known_blocks
    tracemalloc.stop()
    return costs


def _ratios(cells: Sequence[AffinityRow]) -> dict[str, float]:
    base = {(cell.load, cell.replicas): cell for cell in cells if cell.mode == "none"}
    ratios = {}
    for cell in cells:
        if cell.mode == "none":
            continue
        none = base[cell.load, cell.replicas]
        name = f"{cell.load}_{cell.replicas}_{cell.mode}"
        ratios[f"{name}_hit_rate"] = cell.hit_rate / none.hit_rate
        ratios[f"{name}_ttft_p50"] = cell.ttft_p50_s / none.ttft_p50_s
        ratios[f"{name}_ttft_p99"] = cell.ttft_p99_s / none.ttft_p99_s
        ratios[f"{name}_requests"] = cell.requests_per_s / none.requests_per_s
    return ratios


def _print(
    cells: Sequence[AffinityRow], ideals: Mapping[int, float], costs: Mapping[str, float], console: Console
) -> None:
    for load, replicas in dict.fromkeys((cell.load, cell.replicas) for cell in cells):
        table = Table(title=f"{load} load, {replicas} replicas (an endless cache: {ideals[replicas]:.1%})")
        columns = ("affinity", "hit rate", "as wished", "TTFT p50 s", "p99 s", "prefill p50 s", "engine wait p99 s",
                   "requests/s", "output tokens/s")  # fmt: skip
        add_columns(table, *columns, words=("affinity",))
        for cell in cells:
            if (cell.load, cell.replicas) == (load, replicas):
                table.add_row(
                    cell.mode,
                    f"{cell.hit_rate:.1%}",
                    f"{cell.on_preferred:.0%}",
                    f"{cell.ttft_p50_s:.2f}",
                    f"{cell.ttft_p99_s:.2f}",
                    f"{cell.prefill_p50_s:.2f}",
                    f"{cell.engine_wait_p99_s:.2f}",
                    f"{cell.requests_per_s:.1f}",
                    f"{cell.output_tokens_per_s:,.0f}",
                )
        print_table(table, console)
    for name, ratio in _ratios(cells).items():
        console.print(f"{name:44} {ratio:.2f}", highlight=False)
    for name, cost in costs.items():
        unit = "" if name.startswith("bytes") else " us per request"
        console.print(f"{name:44} {cost:.0f}{unit}", highlight=False)


if __name__ == "__main__":
    end("bench-affinity", main)
