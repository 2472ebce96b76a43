"""`python -m loadtest.benchmarks.simulate`: prints tables, writes JSON. Exits with 1 if a bar is missed."""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from cluster.settings import SimSettings
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.ending import end
from loadtest.simulate.autoscalers.penstock import PenstockFast, model_of, penstock_slow, point_of
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.setup import Setup, Slo
from loadtest.traces import TraceRequest, read_trace, scale_rate
from loadtest.validation.errors import Errors, errors
from loadtest.validation.fit import fit
from loadtest.validation.model import expect
from loadtest.validation.recorded import read_run
from loadtest.validation.report import error_table
from penstock.models import RequestClass

TRACE = "azure_llm_2023_conv.csv"
RUN = "vllm_run_rtx4090_llama8b"
ENGINE = SimSettings(
    base_ms=12.5,
    per_token_us=42.0,
    per_kv_token_us=0.071,
    kv_tokens=400_000,
    max_num_seqs=64,
    max_num_batched_tokens=2_048,
    max_model_len=131_072,
)
"""Model of eight billion parameters in bfloat16 on an RTX PRO 6000, as fitted on a recorded run."""
REPLICAS = 20
SCALE = 25.0
"""Factor of the recorded rate. At its peak nearly all slots of 20 replicas are taken."""
FITTED = (1, 100)
BAR_CPU_S = 60.0
BAR_MEAN, BAR_P99 = 0.05, 0.10


@dataclass(frozen=True, slots=True)
class Speed:
    """Duration of one simulation."""

    requests: int
    policy: str
    """What sets the number of replicas."""
    queue: str
    """What ran the queue."""
    replicas: int
    busiest: float
    """Largest part of all slots that was taken."""
    steps: int
    wall_s: float
    cpu_s: float
    cpu_ms_per_request: float
    peak_mb: float
    """Most memory that this process has had so far."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-simulate", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--trace", type=Path, default=data_folder() / TRACE, help="an Azure trace (default %(default)s)"
    )
    parser.add_argument(
        "--run", type=Path, default=data_folder() / RUN, help="a recorded engine run (default %(default)s)"
    )
    parser.add_argument("--scale-rate", type=float, default=SCALE, help="times the recorded rate (default %(default)s)")
    options = parser.parse_args()
    check_there(options.trace, "--trace")
    check_there(options.run, "--run")
    console = screen()
    trace = scale_rate(read_trace(options.trace), options.scale_rate)
    sizes = [len(trace) // 4, len(trace) // 2, len(trace)]
    with console.status("speed"):
        speeds = [_speed(trace[:size]) for size in sizes]
        scripts = _speed(trace[: sizes[0]], scripts=True)
        policy = _speed(trace[: sizes[0]], penstock=True)
    print_table(_table([*speeds, scripts, policy]), console)
    with console.status("accuracy"):
        run = read_run(options.run)
        expected = expect(run)
        model = fit(run, expected, *FITTED)
        times = model.times
        rest = [place for place in range(len(run.trace)) if not FITTED[0] - 1 <= place < FITTED[1]]
        found = errors(run, expected, model, rest)
    print_table(error_table(found, f"errors on {len(rest)} requests after a fit on {FITTED[1]}"), console)
    console.print(f"step = {1e3 * times.base_s:.2f} ms + {1e6 * times.per_token_s:.1f} us per token "
                  f"+ {1e6 * times.per_kv_token_s:.3f} us per token of context", highlight=False)  # fmt: skip
    if options.json:
        fields = {
            "speed": [asdict(each) for each in (*speeds, scripts, policy)],
            "errors": asdict(found),
            "model": asdict(times),
        }
        options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 0 if _bars_hold(speeds[-1], found) else 1


def _speed(trace: Sequence[TraceRequest], *, scripts: bool = False, penstock: bool = False) -> Speed:
    """Simulate a load with a fixed count or under Penstock's policy, by the queue's scripts or its twin."""
    setup = Setup(ENGINE, replicas=REPLICAS, scripts=scripts)
    point, model = point_of({setup.default_class: setup.slo}), model_of(setup)
    slow = penstock_slow(setup, point) if penstock else None
    run = Simulation(trace, setup, fast=(lambda: PenstockFast(point, model)) if penstock else None, slow=slow).run()
    figures = figures_of(run, dict.fromkeys(RequestClass, Slo()))
    return Speed(
        requests=figures.requests,
        policy="penstock" if penstock else "static",
        queue=run.queue,
        replicas=REPLICAS,
        busiest=max(sample.running / max(1, sample.limit) for sample in run.samples),
        steps=sum(len(member.replica.log) for member in (*run.fleet.gone, *run.fleet.members.values())),
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        cpu_ms_per_request=1e3 * run.cpu_s / figures.requests,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _bars_hold(speed: Speed, found: Errors) -> bool:
    means = (found.ttft_mean_error, found.e2e_mean_error)
    return (
        speed.cpu_s <= BAR_CPU_S
        and all(abs(error) <= BAR_MEAN for error in means)
        and abs(found.ttft_p99_error) <= BAR_P99
    )


def _table(speeds: Sequence[Speed]) -> Table:
    table = Table(title=f"{REPLICAS} replicas on one core")
    add_columns(
        table, "requests", "policy", "queue", "busiest", "steps", "wall s", "CPU s", "CPU ms per request",
        words=("policy", "queue"),
    )  # fmt: skip
    for each in speeds:
        table.add_row(
            f"{each.requests:,}",
            each.policy,
            "scripts" if "scripts" in each.queue and "twin" not in each.queue else "twin",
            f"{each.busiest:.0%}",
            f"{each.steps:,}",
            f"{each.wall_s:.1f}",
            f"{each.cpu_s:.1f}",
            f"{each.cpu_ms_per_request:.2f}",
        )
    return table


if __name__ == "__main__":
    end("bench-simulate", main)
