"""`python -m loadtest.benchmarks.standby`: what standbys bring on the loads of `bench-autoscaler`.

Each load is served by Penstock without standbys, and with them at several prices. There is no oracle to tune, so a load
takes less than a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from cluster.errors import SettingsError
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.autoscaler.contest import POLICIES, ContestResult, contend
from loadtest.benchmarks.autoscaler.report import OURS, paired
from loadtest.benchmarks.autoscaler.scenarios import SCENARIOS, Span, case
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.ending import end

WITH = tuple(name for name, policy in POLICIES.items() if policy.standby_price is not None)
"""Policies with standbys."""


@dataclass(frozen=True, slots=True)
class StandbyJob:
    """One load, served by each policy."""

    scenario: str
    seed: int
    seconds: float
    data: Path
    policies: tuple[str, ...] = (OURS, *WITH)


def serve(job: StandbyJob) -> list[ContestResult]:
    """Serve a load with and without standbys."""
    scenario = next(each for each in SCENARIOS if each.name == job.scenario)
    load = case(scenario, job.seed, Span(job.seconds), job.data)
    return [contend(load, POLICIES[name], 0.0) for name in job.policies]


def table_of(found: Sequence[ContestResult]) -> Table:
    """Return attainment and hours of each load, as differences to the runs without standbys on the same draws."""
    table = Table()
    add_columns(table, "load", "without", *(f"{name}: points, hours %" for name in WITH), words=("load",))
    for scenario in dict.fromkeys(each.scenario for each in found):
        runs = {
            name: sorted((r for r in found if r.scenario == scenario and r.policy == name), key=lambda r: r.seed)
            for name in (OURS, *WITH)
        }
        cells = [f"{statistics.fmean(run.attainment for run in runs[OURS]):.1%}"]
        for name in WITH:
            points = paired([100 * run.attainment for run in runs[name]], [100 * run.attainment for run in runs[OURS]])
            ratios = [100 * one.gpu_hours / other.gpu_hours for one, other in zip(runs[name], runs[OURS], strict=True)]
            cells.append(f"{points}, {statistics.fmean(ratios):.0f}")
        table.add_row(scenario, *cells)
    return table


def main() -> int:
    """Run the benchmark.

    Raises:
        SettingsError: a name is unknown, or the traces are missing.
    """
    parser = argparse.ArgumentParser(prog="bench-standby", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the runs here")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the traces (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each load (default %(default)s)")
    parser.add_argument("--first-seed", type=int, default=131, help="others are other draws (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=2400.0, help="length of a load (default %(default)g)")
    parser.add_argument("--scenarios", help="names, separated by commas (default: all)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: as many as cores")
    options = parser.parse_args()
    known = [each.name for each in SCENARIOS]
    scenarios = options.scenarios.split(",") if options.scenarios else known
    if unknown := [name for name in scenarios if name not in known]:
        raise SettingsError(f"scenario must be one of {', '.join(known)}, got {unknown[0]}")
    check_there(options.data, "--data")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [StandbyJob(name, seed, options.seconds, options.data) for name in scenarios for seed in seeds]
    with ProcessPoolExecutor(options.processes) as pool:
        found = [result for results in pool.map(serve, jobs) for result in results]
    print_table(table_of(found), screen())
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    end("bench-standby", main)
