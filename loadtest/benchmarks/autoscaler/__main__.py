"""`python -m loadtest.benchmarks.autoscaler`: tunes, runs, prints a table per scenario, writes JSON."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.errors import SettingsError
from cluster.terminal.console import messages, screen
from cluster.terminal.tables import print_table
from loadtest.benchmarks.autoscaler.contest import (
    NOWCAST,
    NOWCASTS,
    ORACLE,
    ORACLES,
    POLICIES,
    SAME_HOURS,
    TUNED,
    ContestResult,
    Policy,
    contend,
    same_hours,
)
from loadtest.benchmarks.autoscaler.report import OURS, rows, table_of
from loadtest.benchmarks.autoscaler.scenarios import SCENARIOS, Case, Span, case
from loadtest.benchmarks.autoscaler.tuning import ENOUGH, cheapest, cheapest_of_all, tune
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.ending import end

QUICK_SCENARIOS = ("azure", "series", "length x4")
QUICK_POLICIES = (ORACLE, "static", "hpa slots", "ray", "penstock")


@dataclass(frozen=True, slots=True)
class Job:
    """Tuning and runs of one policy, in scenarios that are the same to it."""

    scenarios: tuple[str, ...]
    policy: str
    seeds: tuple[int, ...]
    seconds: float
    data: Path
    enough: float = ENOUGH
    """Attainment that its dial is tuned to."""


def compete(job: Job) -> list[ContestResult]:
    """Tune a policy and let it serve every draw of the load. Runs in a process of its own.

    Dials are tuned on the same draws that are judged, so no policy loses because another draw was easier. Penstock has
    no dial; with one it competes under another name.
    """
    scenario = next(each for each in SCENARIOS if each.name == job.scenarios[0])
    policy = POLICIES[job.policy]
    loads = [case(scenario, seed, Span(job.seconds, scenario.lead_s), job.data) for seed in job.seeds]
    if policy.name == ORACLE:
        # It knows each load, so the cheapest plan for each load counts.
        found = [cheapest([_tuned(family, [load], ENOUGH)[0] for family in ORACLES]) for load in loads]
    elif policy.name == SAME_HOURS:
        found = [same_hours(load) for load in loads]
    elif policy.name == NOWCAST:
        found = cheapest_of_all([_tuned(family, loads, ENOUGH) for family in NOWCASTS])
    else:
        found = _tuned(policy, loads, job.enough)
    return [replace(each, scenario=name) for name in job.scenarios for each in found]


def _tuned(policy: Policy, loads: Sequence[Case], enough: float) -> list[ContestResult]:
    """Serve the loads with the cheapest dial that attains enough on average."""
    runs: dict[float, list[ContestResult]] = {}

    def serve(dial: float, *, all_of_them: bool = False) -> list[ContestResult]:
        found = runs.setdefault(dial, [])
        for load in loads[len(found) :]:
            best = sum(each.attainment for each in found) + len(loads) - len(found)
            if not all_of_them and best < enough * len(loads):
                # Too little even if the rest were perfect.
                break
            found.append(contend(load, policy, dial))
        return found

    return serve(tune(policy.dials, serve, enough) if policy.dials else 0.0, all_of_them=True)


def _least(scenario: str, found: Sequence[ContestResult]) -> float:
    """Return the attainment that a policy is tuned to: the required one, or Penstock's own if that is lower."""
    ours = [each.attainment for each in found if each.policy == OURS and each.scenario == scenario]
    return min(ENOUGH, sum(ours) / len(ours)) if ours else ENOUGH


def tuned_as_ours(job: Job, found: Sequence[ContestResult]) -> list[Job]:
    """Split a job by the attainment of its scenarios. They may be the same to its policy and not to Penstock."""
    if job.policy in (ORACLE, NOWCAST, TUNED) or not POLICIES[job.policy].dials:
        return [job]
    by_least: dict[float, list[str]] = {}
    for scenario in job.scenarios:
        by_least.setdefault(_least(scenario, found), []).append(scenario)
    return [replace(job, scenarios=tuple(names), enough=least) for least, names in by_least.items()]


def jobs_of(
    scenarios: Sequence[str], policies: Sequence[str], seeds: tuple[int, ...], seconds: float, data: Path
) -> list[Job]:
    """Return the jobs to run. Scenarios that are the same to a policy share a job."""
    same: dict[tuple[object, ...], list[str]] = {}
    for name in policies:
        for scenario in SCENARIOS:
            if scenario.name in scenarios:
                same.setdefault((name, POLICIES[name].sees(scenario)), []).append(scenario.name)
    return [Job(tuple(names), str(policy), seeds, seconds, data) for (policy, _), names in same.items()]


def _all_of(jobs: Sequence[Job], processes: int) -> list[ContestResult]:
    """Run all jobs.

    Penstock's go first, because its attainment is the common one where none reaches the required one.
    """
    found: list[ContestResult] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProcessPoolExecutor(processes) as pool, Progress(*columns, console=messages()) as progress:
        total = len(jobs)
        task = progress.add_task("policies in scenarios", total=total)
        for ours in (True, False):
            whole = [job for job in jobs if (job.policy == OURS) is ours]
            some = [part for job in whole for part in tuned_as_ours(job, found)]
            total += len(some) - len(whole)
            progress.update(task, total=total)
            running: list[Future[list[ContestResult]]] = [pool.submit(compete, job) for job in some]
            try:
                for done in as_completed(running):
                    found += done.result()
                    progress.advance(task)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return found


def main() -> int:
    """Run the benchmark.

    Raises:
        SettingsError: a name is unknown, or the traces are missing.
    """
    options = _options()
    scenarios, policies = _chosen(options)
    check_there(options.data, "--data")
    seeds = tuple(range(options.first_seed, options.first_seed + options.seeds))
    jobs = jobs_of(scenarios, policies, seeds, options.seconds, options.data)
    found = _all_of(jobs, options.processes)
    console = screen()
    order = {name: place for place, name in enumerate(policies)}
    found.sort(key=lambda each: (scenarios.index(each.scenario), order[each.policy], each.seed))
    written = rows(found)
    for scenario in scenarios:
        print_table(table_of(scenario, [each for each in written if each["scenario"] == scenario]), console)
    console.print(
        "Dials are the cheapest that attain 99 % over these loads, or as much as ours where nothing does. "
        "Attainment of classes with a promise, over all their requests. Hours include replicas that start or drain. "
        "Differences: ours less theirs, in points, over the same loads, with 95 % intervals; worst: on the draw "
        "where ours does worst beside theirs."
    )
    if options.json:
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-autoscaler", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the runs here")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the traces (default %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="three scenarios, five policies, two seeds, 20 minutes of load"
    )
    parser.add_argument("--seeds", type=int, help="draws of each load (default 5, quick 2)")
    parser.add_argument("--first-seed", type=int, default=1, help="others are other draws (default %(default)s)")
    parser.add_argument("--seconds", type=float, help="length of a load (default 2400, quick 1200)")
    parser.add_argument("--scenarios", help="names, separated by commas")
    parser.add_argument("--policies", help=f"the same; the oracle always runs, {NOWCAST} only where it is named")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: as many as cores")
    options = parser.parse_args()
    options.seeds = options.seeds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1200.0 if options.quick else 2400.0)
    return options


def _chosen(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    every = [each.name for each in SCENARIOS]
    usual = [each.name for each in POLICIES.values() if not each.on_request]
    scenarios = options.scenarios.split(",") if options.scenarios else QUICK_SCENARIOS if options.quick else every
    policies = options.policies.split(",") if options.policies else QUICK_POLICIES if options.quick else usual
    for noun, names, known in (("scenario", scenarios, every), ("policy", policies, list(POLICIES))):
        if unknown := [name for name in names if name not in known]:
            raise SettingsError(f"{noun} must be one of {', '.join(known)}, got {unknown[0]}")
    return list(scenarios), [ORACLE, *(each for each in policies if each != ORACLE)]


if __name__ == "__main__":
    end("bench-autoscaler", main)
